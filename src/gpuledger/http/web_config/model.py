"""The validated content of a web config file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Final

from gpuledger.host.files import read_at_most
from gpuledger.model.errors import UsageError

# Bytes of a PEM file. A bundle of all public CAs has some hundred KiB.
_LONGEST: Final = 1 << 20


class ClientAuth(Enum):
    """The types of Go's `tls.ClientAuthType` that Python supports: it verifies each requested certificate."""

    NONE = "NoClientCert"
    VERIFY_IF_GIVEN = "VerifyClientCertIfGiven"
    REQUIRE_AND_VERIFY = "RequireAndVerifyClientCert"


@dataclass(frozen=True, slots=True)
class Pem:
    """A PEM text: in a separate file, or inline in the web config file when `path` is None.

    `place` names it in messages: the web config file and the key path in it.
    """

    place: str
    path: Path | None
    inline: str = field(default="", repr=False)

    def read(self) -> str:
        """The text. Raises UsageError with the key path, the file and the reason."""
        if self.path is None:
            return self.inline
        try:
            return read_at_most(self.path, _LONGEST).decode("ascii", "replace")
        except OSError as error:
            raise UsageError(f"{self.place}: cannot read {self.path}: {error.strerror}") from None

    def __str__(self) -> str:
        return self.place if self.path is None else f"{self.place}: {self.path}"


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """`tls_server_config`. Versions are 12 or 13; `ciphers` are OpenSSL's names of TLS 1.2 cipher suites.

    `ciphers` is None if the file lists none, and empty if it lists none for TLS 1.2. `curve` is OpenSSL's
    name of the only allowed TLS group, empty for OpenSSL's default.
    """

    certificate: Pem
    key: Pem
    client_auth: ClientAuth = ClientAuth.NONE
    client_ca: Pem | None = None
    client_allowed_sans: frozenset[str] = frozenset()
    min_version: int = 12
    max_version: int = 13
    ciphers: tuple[str, ...] | None = None
    prefer_server_ciphers: bool = True
    curve: str = ""

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that are read in addition to the web config file."""
        found = (self.certificate, self.key, self.client_ca)
        return tuple(pem.path for pem in found if pem is not None and pem.path is not None)


@dataclass(frozen=True, slots=True)
class RateLimit:
    """`rate_limit`: one request per `interval` seconds, and `burst` of them at once."""

    interval: float
    burst: int


@dataclass(frozen=True, slots=True)
class WebConfig:
    """The whole file. `users` are bcrypt hashes by name; `http2` is the value in the file, if any."""

    tls: TlsConfig | None = None
    http2: bool | None = None
    headers: tuple[tuple[str, str], ...] = ()
    users: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    rate_limit: RateLimit | None = None


# Go's `tls.CipherSuites()`, plus the four with RSA key exchange that Go 1.22 removed from it.
CIPHERS: Final = {
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "ECDHE-ECDSA-AES128-GCM-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": "ECDHE-ECDSA-AES256-GCM-SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305": "ECDHE-ECDSA-CHACHA20-POLY1305",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA": "ECDHE-ECDSA-AES128-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA": "ECDHE-ECDSA-AES256-SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305": "ECDHE-RSA-CHACHA20-POLY1305",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA": "ECDHE-RSA-AES128-SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA": "ECDHE-RSA-AES256-SHA",
    "TLS_RSA_WITH_AES_128_GCM_SHA256": "AES128-GCM-SHA256",
    "TLS_RSA_WITH_AES_256_GCM_SHA384": "AES256-GCM-SHA384",
    "TLS_RSA_WITH_AES_128_CBC_SHA": "AES128-SHA",
    "TLS_RSA_WITH_AES_256_CBC_SHA": "AES256-SHA",
}

# Always offered with TLS 1.3, as in Go; naming them in the file has no effect.
TLS_1_3_CIPHERS: Final = (
    "TLS_AES_128_GCM_SHA256",
    "TLS_AES_256_GCM_SHA384",
    "TLS_CHACHA20_POLY1305_SHA256",
)

# The names by which `SSLContext.set_ecdh_curve` finds them.
CURVES: Final = {
    "CurveP256": "prime256v1",
    "CurveP384": "secp384r1",
    "CurveP521": "secp521r1",
    "X25519": "X25519",
}

# Headers that a file may add, with their allowed values; empty allows any.
HEADERS: Final[dict[str, tuple[str, ...]]] = {
    "Content-Security-Policy": (),
    "Strict-Transport-Security": (),
    "X-Content-Type-Options": ("nosniff",),
    "X-Frame-Options": ("deny", "sameorigin"),
    "X-XSS-Protection": (),
}
