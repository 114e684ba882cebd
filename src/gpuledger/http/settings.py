"""The settings of the HTTP server."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from gpuledger.http.addresses import Address, parse_address
from gpuledger.http.routes import HEALTH, HEALTHY, READY
from gpuledger.model.settings import ReloadPolicy, boolean, setting, text

_TAKEN = frozenset({"/", HEALTHY, READY, HEALTH})
_TAKEN_BELOW = ("/metrics/", "/api/")


@dataclass(frozen=True)
class ListenAddress:
    """One address to listen on, and the dialects of its metrics page; empty for the default ones."""

    address: Address
    dialects: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.address}{'=' if self.dialects else ''}{','.join(self.dialects)}"


def parse_listen_addresses(value: object) -> tuple[ListenAddress, ...]:
    """Parse `ADDR[=dialect,...]`: a YAML list, the values of a repeated flag, or a space-separated text."""
    given: Iterable[object] = value if isinstance(value, list | tuple) else text(value).split()
    found = tuple(_parse_listen_address(item) for item in given)
    if not found:
        raise ValueError("expected at least one address")
    return found


def parse_metrics_path(value: object) -> str:
    """Parse an absolute path that no other page uses. Raises ValueError."""
    path = text(value).strip()
    if not path.startswith("/") or any(char in path for char in "?#% \t\r\n") or not path.isascii():
        raise ValueError("expected a path such as /metrics")
    if path in _TAKEN or path.startswith(_TAKEN_BELOW):
        raise ValueError(f"{path} is another page of gpuledger; expected a path such as /metrics")
    return path


def _parse_listen_address(item: object) -> ListenAddress:
    if isinstance(item, ListenAddress):
        return item
    address, equals, names = text(item).partition("=")
    dialects = tuple(dict.fromkeys(name.strip() for name in names.split(",") if name.strip()))
    if equals and not dialects:
        raise ValueError("expected at least one dialect after =, as in :9400=native")
    return ListenAddress(parse_address(address), dialects)


@dataclass(frozen=True)
class HttpSettings:
    """Listen addresses, path of the metrics, and the web config file."""

    reload: ClassVar[ReloadPolicy] = ReloadPolicy(restart=("listen_address", "web.config.file"))

    listen_address: tuple[ListenAddress, ...] = setting(
        "listen_address",
        parse_listen_addresses,
        (ListenAddress(Address("", 9400)),),
        "serve on this address; with =dialect,... its metrics page exports these dialects",
        metavar="ADDR[=DIALECT,...]",
        repeatable=True,
    )
    metrics_path: str = setting(
        "metrics_path",
        parse_metrics_path,
        "/metrics",
        "path of the metrics page; does not change /metrics/<dialect>",
        metavar="PATH",
    )
    web_config: str = setting(
        "web.config.file",
        text,
        "",
        "web config file of Prometheus's exporter-toolkit: TLS, client certificates, basic auth, rate limit",
        flags=("--web.config.file", "--web.config-file"),
        metavar="FILE",
    )


@dataclass(frozen=True)
class SocketActivationSettings:
    """Sockets that systemd opens."""

    reload: ClassVar[ReloadPolicy] = ReloadPolicy(restart=("systemd_socket",))

    systemd_socket: bool = setting(
        "systemd_socket",
        boolean,
        False,
        "serve on the sockets of a systemd .socket unit instead of opening the addresses of --listen-address",
    )
