"""OpenSSL's side of `tls_server_config`. Only here and in what imports it is `ssl` loaded: 4 MiB."""

from __future__ import annotations

import ssl
from contextlib import suppress
from socket import AF_INET, AF_INET6, inet_pton
from typing import Any, Final

from gpuledger.http.openssl import VERSIONS, load_chain, reason_of
from gpuledger.http.web_config.model import OPENSSL_CURVES, ClientAuth, Pem, TlsConfig
from gpuledger.model.errors import UsageError

_CERTIFICATE: Final = 11
_TLS_1_3: Final = 0x0304
# X509_V_FLAG_NO_CHECK_TIME of OpenSSL's x509_vfy.h, which Python does not name.
_NO_CHECK_TIME: Final = 0x200000


def trust_whoever_comes(context: ssl.SSLContext) -> None:
    """Make the context take any certificate whose key the client has. It must serve one connection only.

    Python has no way to ask for a certificate without verifying it. It does show handshake messages
    before OpenSSL acts on them, so the certificate that comes is made a trusted one of this very context.
    One made for servers alone (its extended key usage says so) is refused all the same. Raises UsageError
    where this Python does not show the messages.
    """
    if not hasattr(context, "_msg_callback"):
        raise UsageError("client_auth_type: this Python verifies all client certificates or asks for none")
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | ssl.VerifyFlags(_NO_CHECK_TIME)
    context._msg_callback = _look


# Not a closure over the context, which would then be a garbage cycle per connection.
def _look(
    connection: ssl.SSLObject, direction: str, version: int, _content: object, message: int, data: bytes
) -> None:
    shown = first_certificate(data, version) if direction == "read" and message == _CERTIFICATE else b""
    if shown:
        # What is no certificate at all OpenSSL is about to refuse.
        with suppress(ssl.SSLError):
            connection.context.load_verify_locations(cadata=shown)


def first_certificate(message: bytes, version: int) -> bytes:
    """The client's own certificate (DER) in a Certificate message (RFC 5246 7.4.2, RFC 8446 4.4.2)."""
    at = 4
    if version == _TLS_1_3:
        at += 1 + message[at] if len(message) > at else 1
    at += 3
    length = int.from_bytes(message[at : at + 3], "big")
    return message[at + 3 : at + 3 + length]


_MISMATCH: Final = "KEY_VALUES_MISMATCH"


class Contexts:
    """What handshakes need, made once from what the files hold at that moment.

    Raises UsageError with one line for a file that cannot be read or does not fit.
    """

    def __init__(self, config: TlsConfig) -> None:
        self._config = config
        self._certificate = config.certificate.read()
        self._key = config.key.read()
        self._authority = config.client_ca.read() if config.client_ca else ""
        self._check_texts()
        # OpenSSL as Python knows it takes one group or all: a context for each, chosen by what is offered.
        self._by_group = {group: self._make(group) for group in config.curves or (0,)}
        self._allowed = frozenset(map(_canonical, config.client_allowed_sans))

    def choose(self, offered: frozenset[int]) -> ssl.SSLContext:
        """The context for a client that can use the `offered` groups: the first of our preference."""
        preferred = next((group for group in self._by_group if group in offered), next(iter(self._by_group)))
        if self._config.client_auth in (ClientAuth.REQUEST, ClientAuth.REQUIRE_ANY):
            return self._make(preferred)
        return self._by_group[preferred]

    def allows(self, certificate: dict[str, Any] | None) -> bool:
        """Whether a client's certificate (from `SSLObject.getpeercert`) has one of the names asked for."""
        if not self._allowed:
            return True
        names = (certificate or {}).get("subjectAltName", ())
        return any(_canonical(name) in self._allowed for _, name in names)

    def _make(self, group: int) -> ssl.SSLContext:
        config = self._config
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.maximum_version = VERSIONS[config.max_version]
        # Without a suite for TLS 1.2 there is only 1.3, whose suites are always offered.
        context.minimum_version = VERSIONS[13 if config.ciphers == () else config.min_version]
        # A client could otherwise keep the server computing; TLS 1.3 has no such thing.
        context.options |= ssl.OP_NO_RENEGOTIATION
        if config.prefer_server_ciphers:
            context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
        else:
            context.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
        if config.ciphers:
            context.set_ciphers(":".join(config.ciphers))
        if group:
            context.set_ecdh_curve(OPENSSL_CURVES[group])
        context.set_alpn_protocols(["http/1.1"])
        self._load_certificate(context)
        self._set_client_auth(context)
        return context

    def _check_texts(self) -> None:
        config = self._config
        _expect(config.certificate, self._certificate, "BEGIN CERTIFICATE", "certificate")
        _expect(config.key, self._key, "PRIVATE KEY-----", "private key")
        if "ENCRYPTED" in self._key:
            raise UsageError(f"{config.key}: the private key is encrypted; one without passphrase is wanted")
        if config.client_ca is not None:
            _expect(config.client_ca, self._authority, "BEGIN CERTIFICATE", "certificate")

    def _load_certificate(self, context: ssl.SSLContext) -> None:
        try:
            load_chain(context, self._certificate, self._key)
        except ssl.SSLError as error:
            raise UsageError(self._trouble(error)) from None
        except OSError as error:
            raise UsageError(f"{self._config.certificate}: cannot be used: {error.strerror}") from None

    def _trouble(self, error: ssl.SSLError) -> str:
        config = self._config
        if error.reason == _MISMATCH:
            return f"{config.key}: the private key is not that of the certificate"
        return f"{config.certificate}: certificate or key cannot be used: {reason_of(error)}"

    def _set_client_auth(self, context: ssl.SSLContext) -> None:
        auth = self._config.client_auth
        if auth is ClientAuth.NONE:
            return
        context.verify_mode = ssl.CERT_REQUIRED if auth.requires else ssl.CERT_OPTIONAL
        if not auth.verifies:
            trust_whoever_comes(context)
        elif self._config.client_ca is None:
            # As Go does: who the machine trusts.
            context.load_default_certs(ssl.Purpose.CLIENT_AUTH)
        else:
            try:
                context.load_verify_locations(cadata=self._authority)
            except ssl.SSLError:
                raise UsageError(f"{self._config.client_ca}: its certificates cannot be read") from None


def _expect(pem: Pem, text: str, mark: str, what: str) -> None:
    if mark not in text:
        raise UsageError(f"{pem}: no {what} in PEM form (-----BEGIN ...) is in it")


def _canonical(name: str) -> str:
    """An IP address in one spelling; any other name as it is."""
    for family in (AF_INET, AF_INET6):
        try:
            return inet_pton(family, name.strip()).hex()
        except OSError:
            continue
    return name
