"""What a user sets about the HTTP server."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from gpuledger.http.addresses import Address, parse_address
from gpuledger.http.routes import HEALTH, HEALTHY, READY
from gpuledger.model.settings import Reload, setting, text

_TAKEN = frozenset({"/", HEALTHY, READY, HEALTH})
_TAKEN_BELOW = ("/metrics/", "/api/")


@dataclass(frozen=True, slots=True)
class Listen:
    """One address to listen on, and the dialects of its metrics page; none are the default ones."""

    address: Address
    dialects: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.address}{'=' if self.dialects else ''}{','.join(self.dialects)}"


def listens(value: object) -> tuple[Listen, ...]:
    """`ADDR[=dialect,...]`: a YAML list, a repeated flag's values, or one text parted by spaces."""
    given: Iterable[object] = value if isinstance(value, list | tuple) else text(value).split()
    found = tuple(_listen(item) for item in given)
    if not found:
        raise ValueError("at least one address is wanted")
    return found


def metrics_path(value: object) -> str:
    """An absolute path that no other page has."""
    path = text(value).strip()
    if not path.startswith("/") or any(char in path for char in "?#% \t\r\n") or not path.isascii():
        raise ValueError("a path such as /metrics is wanted")
    if path in _TAKEN or path.startswith(_TAKEN_BELOW):
        raise ValueError(f"{path} is another page of gpuledger; a path such as /metrics is wanted")
    return path


def _listen(item: object) -> Listen:
    if isinstance(item, Listen):
        return item
    address, equals, names = text(item).partition("=")
    dialects = tuple(dict.fromkeys(name.strip() for name in names.split(",") if name.strip()))
    if equals and not dialects:
        raise ValueError("after = at least one dialect is wanted, as in :9400=native")
    return Listen(parse_address(address), dialects)


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """Where gpuledger is asked."""

    reload: ClassVar[Reload] = Reload(restart=("listen_address", "web.config.file"))

    listen_address: tuple[Listen, ...] = setting(
        "listen_address",
        listens,
        (Listen(Address("", 9400)),),
        "serve on this address; with =dialect,... its metrics page tells these dialects",
        metavar="ADDR[=DIALECT,...]",
        repeatable=True,
    )
    metrics_path: str = setting(
        "metrics_path",
        metrics_path,
        "/metrics",
        "path of the metrics page; /metrics/<dialect> stays where it is",
        metavar="PATH",
    )
    web_config: str = setting(
        "web.config.file",
        text,
        "",
        "TLS, client certificates, basic auth and a rate limit, as exporter-toolkit's file says",
        flags=("--web.config.file", "--web.config-file"),
        metavar="FILE",
    )
