"""TLS settings by real handshakes: client certificates, versions, ciphers, curves, rotation."""

from __future__ import annotations

import asyncio
import shutil
import ssl

import pytest

from builders import FakeClock
from certificates import RSA, Certificates
from gpuledger.http.routes import Response, Routes
from gpuledger.http.web_config.parser import read_web_config
from gpuledger.http.web_config.passwords import PasswordChecker
from gpuledger.http.web_config.security import WebSecurity
from gpuledger.http.web_config.tls_contexts import TlsContexts
from unit.http.web_config.support import (
    TLS,
    CountingCheck,
    TlsClient,
    certificates,
    file,
    hash_of,
    issued,
    serve_under,
)

__all__ = ["certificates", "file", "issued"]


@pytest.fixture(scope="module")
def rsa_folder(tmp_path_factory, issued):
    """A certificate of `ca` with a key of RSA: creating one takes half a second."""
    copy = object.__new__(Certificates)
    copy.folder = shutil.copytree(issued.folder, tmp_path_factory.mktemp("rsa"), dirs_exist_ok=True)
    copy.issue("server", "subjectAltName=DNS:localhost", signer="ca", key=RSA)
    return copy


@pytest.fixture
def rsa_server(rsa_folder, certificates):
    """The server's certificate has a key of RSA."""
    for file_of in (Certificates.crt, Certificates.key):
        shutil.copy(file_of(rsa_folder, "server"), file_of(certificates, "server"))


async def try_once(server, context, path="/hello"):
    """The status of a response, or None if the handshake fails."""
    try:
        async with TlsClient(server, context) as client:
            return (await client.ask(path)).status
    except (OSError, asyncio.IncompleteReadError):
        return None


# client_auth_type; the results without a certificate, with one of a stranger, with one of the CA.
CLIENT_AUTH = [
    ("NoClientCert", 200, 200, 200),
    ("RequestClientCert", 200, 200, 200),
    ("VerifyClientCertIfGiven", 200, None, 200),
    ("RequireAndVerifyClientCert", None, None, 200),
]


@pytest.mark.parametrize("maximum", ["TLS12", "TLS13"])
@pytest.mark.parametrize(("kind", "nothing", "stranger", "signed"), CLIENT_AUTH)
def test_client_auth_types_accept_and_reject_certificates(
    file, certificates, maximum, kind, nothing, stranger, signed
):
    authority = ", client_ca_file: ca.crt" if "Verify" in kind else ""
    file.write_text(TLS.format(more=f", client_auth_type: {kind}{authority}, max_version: {maximum}"))

    async def scenario(server):
        return [
            await try_once(server, certificates.client_context(name)) for name in ("", "stranger", "client")
        ]

    assert serve_under(file, scenario) == [nothing, stranger, signed]


@pytest.mark.parametrize(
    ("allowed", "status"),
    [("scraper", 200), ("127.0.0.9", 200), ("0:0::1", 200), ("scrape", None), ("client", None)],
)
def test_a_client_certificate_needs_one_of_the_allowed_names(file, certificates, allowed, status, caplog):
    kind = "RequireAndVerifyClientCert, client_ca_file: ca.crt"
    more = f", client_auth_type: {kind}, client_allowed_sans: [other, '{allowed}']"
    file.write_text(TLS.format(more=more))

    async def scenario(server):
        return await try_once(server, certificates.client_context("client"))

    assert serve_under(file, scenario) == status
    assert ("client_allowed_sans" in caplog.text) == (status is None)


@pytest.mark.parametrize(
    ("server_versions", "client_version", "status"),
    [
        ("min_version: TLS12", "TLSv1_2", 200),
        ("min_version: TLS13", "TLSv1_2", None),
        ("min_version: TLS13", "TLSv1_3", 200),
        ("max_version: TLS12", "TLSv1_3", None),
        ("cipher_suites: [TLS_AES_128_GCM_SHA256]", "TLSv1_2", None),
        ("cipher_suites: [TLS_AES_128_GCM_SHA256]", "TLSv1_3", 200),
    ],
)
def test_tls_versions_are_enforced(file, certificates, server_versions, client_version, status):
    file.write_text(TLS.format(more=f", {server_versions}"))
    context = certificates.client_context()
    context.minimum_version = context.maximum_version = ssl.TLSVersion[client_version]

    async def scenario(server):
        return await try_once(server, context)

    assert serve_under(file, scenario) == status


async def agreed_cipher(server, context):
    async with TlsClient(server, context) as client:
        return client.writer.get_extra_info("cipher")[0]


@pytest.mark.parametrize(
    ("prefer_server", "cipher"),
    [("true", "ECDHE-ECDSA-AES256-GCM-SHA384"), ("false", "ECDHE-ECDSA-CHACHA20-POLY1305")],
)
def test_cipher_suites_of_tls_1_2_are_the_listed_ones_in_the_preferred_order(
    file, certificates, prefer_server, cipher
):
    listed = "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256"
    more = f", cipher_suites: [{listed}], max_version: TLS12, prefer_server_cipher_suites: {prefer_server}"
    file.write_text(TLS.format(more=more))
    context = certificates.client_context()
    context.set_ciphers(
        "ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-ECDSA-CHACHA20-POLY1305:ECDHE-ECDSA-AES256-GCM-SHA384"
    )
    other = certificates.client_context()
    other.set_ciphers("ECDHE-ECDSA-AES128-GCM-SHA256")

    async def scenario(server):
        return await agreed_cipher(server, context), await try_once(server, other)

    assert serve_under(file, scenario) == (cipher, None)


@pytest.mark.parametrize(
    ("offered", "status"), [("AES256-GCM-SHA384", None), ("ECDHE-RSA-AES256-GCM-SHA384", 200)]
)
@pytest.mark.usefixtures("rsa_server")
def test_without_a_list_cipher_suites_without_forward_secrecy_are_refused(
    file, certificates, offered, status
):
    """Also with a Python that keeps the defaults of OpenSSL, as in Debian."""
    file.write_text(TLS.format(more=""))
    context = certificates.client_context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(offered)

    async def scenario(server):
        return await try_once(server, context)

    assert serve_under(file, scenario) == status


@pytest.mark.parametrize("maximum", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize(
    ("curve", "status"), [("secp384r1", 200), ("X25519", None), ("prime256v1", None), (None, 200)]
)
@pytest.mark.usefixtures("rsa_server")
def test_the_first_listed_curve_is_the_only_one(file, certificates, curve, status, maximum, caplog):
    # With TLS 1.2 the client must also support the curve of an elliptic certificate.
    file.write_text(TLS.format(more=", curve_preferences: [CurveP384, X25519]"))
    context = certificates.client_context()
    context.maximum_version = maximum
    if curve:
        context.set_ecdh_curve(curve)

    async def scenario(server):
        return await try_once(server, context)

    assert serve_under(file, scenario) == status
    assert "curve_preferences: only the first curve is used: CurveP384" in caplog.text


def test_a_rotated_certificate_applies_to_new_connections_only(file, certificates):
    clock = FakeClock()

    def serial(client):
        return client.writer.get_extra_info("peercert")["serialNumber"]

    async def scenario(server):
        async with TlsClient(server, certificates.client_context()) as old:
            certificates.issue("server", "subjectAltName=DNS:localhost", signer="ca")
            clock.advance(2)
            async with TlsClient(server, certificates.client_context()) as new:
                statuses = [(await client.ask("/hello")).status for client in (old, new)]
                return statuses, serial(old) != serial(new)

    assert serve_under(file, scenario, clock=clock) == ([200, 200], True)


def test_a_rotated_client_ca_rejects_clients_of_the_old_one(file, certificates):
    clock = FakeClock()
    more = ", client_auth_type: RequireAndVerifyClientCert, client_ca_file: other.crt"
    (certificates.folder / "other.crt").write_bytes(certificates.crt("ca").read_bytes())
    file.write_text(TLS.format(more=more))
    context = certificates.client_context("client")

    async def scenario(server):
        before = await try_once(server, context)
        (certificates.folder / "other.crt").write_bytes(certificates.crt("stranger").read_bytes())
        clock.advance(2)
        return before, await try_once(server, context)

    assert serve_under(file, scenario, clock=clock) == (200, None)


@pytest.mark.parametrize(
    ("content", "authenticates"),
    [
        ("", False),
        ("rate_limit: {interval: 1s, burst: 5}", False),
        (f"basic_auth_users: {{alice: {hash_of('secret').decode()}}}", True),
        (TLS.format(more=""), False),
        (TLS.format(more=", client_auth_type: RequestClientCert"), False),
        (TLS.format(more=", client_auth_type: VerifyClientCertIfGiven, client_ca_file: ca.crt"), False),
        (TLS.format(more=", client_auth_type: RequireAndVerifyClientCert, client_ca_file: ca.crt"), True),
    ],
)
def test_only_a_password_or_a_required_certificate_authenticates(file, content, authenticates):
    file.write_text(content)
    assert WebSecurity(file, FakeClock()).authenticates is authenticates


@pytest.mark.parametrize(
    ("more", "name", "said"),
    [
        (", client_ca_file: ca.crt, client_auth_type: VerifyClientCertIfGiven", "client", "client"),
        (", client_ca_file: ca.crt, client_auth_type: RequireAndVerifyClientCert", "client", "client"),
        (", client_ca_file: ca.crt, client_auth_type: VerifyClientCertIfGiven", "", ""),
        # It is not requested, so nothing is proved.
        ("", "client", ""),
    ],
)
def test_a_request_has_the_name_in_the_verified_certificate(certificates, more, name, said):
    file = certificates.folder / "web.yml"
    file.write_text(TLS.format(more=more))

    async def scenario(server):
        async with TlsClient(server, certificates.client_context(name)) as client:
            return [(await client.ask("/name")).body.decode() for _ in range(2)]

    routes = Routes({"/name": lambda request: Response(body=request.identity.encode())})
    assert serve_under(file, scenario, routes=routes) == [said, said]


def test_with_users_the_name_is_that_of_the_password(certificates):
    file = certificates.folder / "web.yml"
    users = f"basic_auth_users: {{alice: {hash_of('secret').decode()}}}\n"
    more = ", client_ca_file: ca.crt, client_auth_type: RequireAndVerifyClientCert"
    file.write_text(TLS.format(more=more) + users)

    async def scenario(server):
        async with TlsClient(server, certificates.client_context("client")) as client:
            login = "Authorization: Basic YWxpY2U6c2VjcmV0"
            return (await client.ask("/name", login)).body, (await client.ask("/name")).status

    routes = Routes({"/name": lambda request: Response(body=request.identity.encode())})
    checker = PasswordChecker(CountingCheck())
    assert serve_under(file, scenario, routes=routes, passwords=checker) == (b"alice", 401)


@pytest.mark.parametrize(
    ("certificate", "has_own_authority", "name"),
    [
        ({"subject": ((("commonName", "dan"),),)}, True, "dan"),
        ({"subject": ((("organizationName", "lab"),), (("commonName", "dan"),))}, True, "dan"),
        # Any public authority could have signed it.
        ({"subject": ((("commonName", "dan"),),)}, False, ""),
        # Which of both is meant?
        ({"subject": ((("commonName", "dan"),), (("commonName", "root"),))}, True, ""),
        ({"subject": ((("commonName", "dan"), ("commonName", "root")),)}, True, ""),
        ({"subject": (), "subjectAltName": (("DNS", "dan"),)}, True, ""),
        ({}, True, ""),
        (None, True, ""),
    ],
)
def test_the_name_of_a_certificate(certificates, certificate, has_own_authority, name):
    file = certificates.folder / "web.yml"
    more = ", client_ca_file: ca.crt" if has_own_authority else ""
    file.write_text(TLS.format(more=f", client_auth_type: VerifyClientCertIfGiven{more}"))
    config = read_web_config(file).tls
    assert config is not None
    assert TlsContexts(config).client_name(certificate) == name
