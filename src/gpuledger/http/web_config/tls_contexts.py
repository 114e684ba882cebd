"""OpenSSL contexts from `tls_server_config`. Imports `ssl` (4 MiB): import this module lazily."""

from __future__ import annotations

import ssl
from socket import AF_INET, AF_INET6, inet_pton
from typing import Any, Final

from gpuledger.http.openssl import VERSIONS, load_cert_chain, ssl_reason
from gpuledger.http.web_config.model import ClientAuth, Pem, TlsConfig
from gpuledger.model.errors import UsageError

_MISMATCH: Final = "KEY_VALUES_MISMATCH"


class TlsContexts:
    """The TLS contexts of a server, created from the current content of the files.

    Raises UsageError with one line for a file that cannot be read or used.
    """

    def __init__(self, config: TlsConfig) -> None:
        self._config = config
        self._certificate = config.certificate.read()
        self._key = config.key.read()
        self._authority = config.client_ca.read() if config.client_ca else ""
        self._check_texts()
        self.context = self._make()
        self._allowed = frozenset(map(_canonical, config.client_allowed_sans))

    def allows_certificate(self, certificate: dict[str, Any] | None) -> bool:
        """Whether a client's certificate (`SSLObject.getpeercert`) has a name of client_allowed_sans."""
        if not self._allowed:
            return True
        names = (certificate or {}).get("subjectAltName", ())
        return any(_canonical(name) in self._allowed for _, name in names)

    def _make(self) -> ssl.SSLContext:
        config = self._config
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
        if config.ciphers:
            context.set_ciphers(":".join(config.ciphers))
        if config.curve:
            context.set_ecdh_curve(config.curve)
        context.set_alpn_protocols(["http/1.1"])
        self._load_certificate(context)
        self._set_client_auth(context)
        return context

    def _check_texts(self) -> None:
        config = self._config
        _expect(config.certificate, self._certificate, "BEGIN CERTIFICATE", "certificate")
        _expect(config.key, self._key, "PRIVATE KEY-----", "private key")
        if "ENCRYPTED" in self._key:
            raise UsageError(f"{config.key}: the private key is encrypted; expected one without passphrase")
        if config.client_ca is not None:
            _expect(config.client_ca, self._authority, "BEGIN CERTIFICATE", "certificate")

    def _load_certificate(self, context: ssl.SSLContext) -> None:
        try:
            load_cert_chain(context, self._certificate, self._key)
        except ssl.SSLError as error:
            raise UsageError(self._describe(error)) from None
        except OSError as error:
            raise UsageError(f"{self._config.certificate}: cannot load it: {error.strerror}") from None

    def _describe(self, error: ssl.SSLError) -> str:
        config = self._config
        if error.reason == _MISMATCH:
            return f"{config.key}: the private key does not match the certificate"
        return f"{config.certificate}: cannot load certificate or key: {ssl_reason(error)}"

    def _set_client_auth(self, context: ssl.SSLContext) -> None:
        auth = self._config.client_auth
        if auth is ClientAuth.NONE:
            return
        required = auth is ClientAuth.REQUIRE_AND_VERIFY
        context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
        if self._config.client_ca is None:
            # Like Go: the system's trusted CAs.
            context.load_default_certs(ssl.Purpose.CLIENT_AUTH)
        else:
            try:
                context.load_verify_locations(cadata=self._authority)
            except ssl.SSLError:
                raise UsageError(f"{self._config.client_ca}: cannot load its certificates") from None


def _expect(pem: Pem, text: str, mark: str, what: str) -> None:
    if mark not in text:
        raise UsageError(f"{pem}: expected a {what} in PEM format (-----BEGIN ...)")


def _canonical(name: str) -> str:
    """An IP address in canonical form; any other name unchanged."""
    for family in (AF_INET, AF_INET6):
        try:
            return inet_pton(family, name.strip()).hex()
        except OSError:
            continue
    return name
