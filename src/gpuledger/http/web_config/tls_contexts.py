"""OpenSSL contexts from `tls_server_config`. Imports `ssl` (4 MiB): import this module lazily."""

from __future__ import annotations

import ssl
from socket import AF_INET, AF_INET6, inet_pton
from typing import Any, Final

from gpuledger.http.openssl import NO_PAIR, VERSIONS, load_cert_chain, ssl_reason
from gpuledger.http.web_config.model import ClientAuth, Pem, TlsConfig
from gpuledger.model.errors import UsageError

_MISMATCH: Final = "KEY_VALUES_MISMATCH"
# For TLS 1.2, if the file lists none. The defaults of Debian's Python include suites without forward secrecy.
_FORWARD_SECRET: Final = ("ECDHE+AESGCM", "ECDHE+CHACHA20", "ECDHE+AES", "!SHA1")


class TlsContexts:
    """The TLS contexts of a server, created from the current content of the files.

    Raises UsageError with one line for a file that cannot be read or used.
    """

    def __init__(self, config: TlsConfig) -> None:
        certificate = _read(config.certificate, "BEGIN CERTIFICATE", "certificate")
        key = _read(config.key, "PRIVATE KEY-----", "private key")
        if "ENCRYPTED" in key:
            raise UsageError(f"{config.key}: the private key is encrypted; expected one without passphrase")
        self.context = _create_context(config)
        _load_certificate(self.context, config, certificate, key)
        _set_client_auth(self.context, config)
        self._allowed = frozenset(map(_canonical, config.client_allowed_sans))
        # Public authorities certify names of others, not of users of this machine.
        self._identifies = config.client_ca is not None

    def client_name(self, certificate: dict[str, Any] | None) -> str:
        """The common name of the subject of a verified client certificate, as `getpeercert` returns it.

        Empty without one, with several, and for certificates that any public authority may have signed.
        """
        if not self._identifies or not certificate:
            return ""
        subject = certificate.get("subject", ())
        names = [value for parts in subject for key, value in parts if key == "commonName"]
        return str(names[0]) if len(names) == 1 else ""

    def allows_certificate(self, certificate: dict[str, Any] | None) -> bool:
        """Whether a client's certificate (`SSLObject.getpeercert`) has a name of client_allowed_sans."""
        if not self._allowed:
            return True
        names = (certificate or {}).get("subjectAltName", ())
        return any(_canonical(name) in self._allowed for _, name in names)


def _create_context(config: TlsConfig) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.maximum_version = VERSIONS[config.max_version]
    # Without a cipher suite for TLS 1.2, only TLS 1.3 is possible: its suites are always offered.
    context.minimum_version = VERSIONS[13 if config.ciphers == () else config.min_version]
    # Renegotiation lets a client exhaust the CPU; TLS 1.3 has none.
    context.options |= ssl.OP_NO_RENEGOTIATION
    if config.prefer_server_ciphers:
        context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
    else:
        context.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
    context.set_ciphers(":".join(config.ciphers or _FORWARD_SECRET))
    if config.curve:
        context.set_ecdh_curve(config.curve)
    context.set_alpn_protocols(["http/1.1"])
    return context


def _load_certificate(context: ssl.SSLContext, config: TlsConfig, certificate: str, key: str) -> None:
    try:
        load_cert_chain(context, certificate, key)
    except ssl.SSLError as error:
        if error.reason == _MISMATCH:
            raise UsageError(f"{config.key}: the private key does not match the certificate") from None
        raise UsageError(
            f"{config.certificate}: cannot load certificate or key: {ssl_reason(error, NO_PAIR)}"
        ) from None
    except OSError as error:
        raise UsageError(f"{config.certificate}: cannot load it: {error.strerror}") from None


def _set_client_auth(context: ssl.SSLContext, config: TlsConfig) -> None:
    if config.client_auth is ClientAuth.NONE:
        return
    required = config.client_auth is ClientAuth.REQUIRE_AND_VERIFY
    context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
    if config.client_ca is None:
        # Like Go: the system's trusted CAs.
        context.load_default_certs(ssl.Purpose.CLIENT_AUTH)
        return
    authority = _read(config.client_ca, "BEGIN CERTIFICATE", "certificate")
    try:
        context.load_verify_locations(cadata=authority)
    except ssl.SSLError:
        raise UsageError(f"{config.client_ca}: cannot load its certificates") from None


def _read(pem: Pem, mark: str, what: str) -> str:
    text = pem.read()
    if mark not in text:
        raise UsageError(f"{pem}: expected a {what} in PEM format (-----BEGIN ...)")
    return text


def _canonical(name: str) -> str:
    """An IP address in canonical form; any other name unchanged."""
    for family in (AF_INET, AF_INET6):
        try:
            return inet_pton(family, name.strip()).hex()
        except OSError:
            continue
    return name
