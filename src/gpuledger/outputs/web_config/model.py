"""What a web config file says, checked and under its own words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Final

from gpuledger.host.files import read_at_most
from gpuledger.model.errors import UsageError

# Room for all authorities of the web, in PEM; some hundred KiB.
_LONGEST: Final = 1 << 20


class ClientAuth(Enum):
    """Whether a client shows a certificate, and whether it is verified: Go's `tls.ClientAuthType`."""

    NONE = "NoClientCert"
    REQUEST = "RequestClientCert"
    REQUIRE_ANY = "RequireAnyClientCert"
    VERIFY_IF_GIVEN = "VerifyClientCertIfGiven"
    REQUIRE_AND_VERIFY = "RequireAndVerifyClientCert"

    @property
    def verifies(self) -> bool:
        """A certificate that is shown must be signed by a known authority."""
        return self in (ClientAuth.VERIFY_IF_GIVEN, ClientAuth.REQUIRE_AND_VERIFY)

    @property
    def requires(self) -> bool:
        """Without a certificate there is no connection."""
        return self in (ClientAuth.REQUIRE_ANY, ClientAuth.REQUIRE_AND_VERIFY)


@dataclass(frozen=True, slots=True)
class Pem:
    """PEM text: in a file of its own, or in the web config file itself when `path` is None.

    `place` is what a message calls it: the web config file and the key path in it.
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
    """`tls_server_config`. Versions are 12 or 13; `ciphers` are OpenSSL's names of TLS 1.2 suites.

    `ciphers` is None where the file lists none; an empty tuple is a list without any for TLS 1.2. `curves`
    are numbers of TLS groups in the order preferred, none for OpenSSL's own choice.
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
    curves: tuple[int, ...] = ()

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that are read besides the web config file."""
        found = (self.certificate, self.key, self.client_ca)
        return tuple(pem.path for pem in found if pem is not None and pem.path is not None)


@dataclass(frozen=True, slots=True)
class RateLimit:
    """`rate_limit`: one request per `interval` seconds, and `burst` of them at once."""

    interval: float
    burst: int


@dataclass(frozen=True, slots=True)
class WebConfig:
    """The whole file. `users` are bcrypt hashes by name; `http2` is what the file says, None for nothing."""

    tls: TlsConfig | None = None
    http2: bool | None = None
    headers: tuple[tuple[str, str], ...] = ()
    users: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    rate_limit: RateLimit | None = None
