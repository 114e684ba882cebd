"""Hosts: of URLs and Host headers, and those that a server answers to, against DNS rebinding.

An attacker can point the host name of a web page to this machine. A browser that shows the page then lets it
read responses of this server, even behind a firewall. The attack works only with host names that the attacker
controls: not with IP addresses, not with `localhost`, not with names of others.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import ip_address
from typing import ClassVar, Final
from urllib.parse import SplitResult, urlsplit

from gpuledger.http.addresses import Address
from gpuledger.model.errors import UsageError
from gpuledger.model.settings import ReloadPolicy, comma_separated, setting, text
from gpuledger.model.text import to_short_line

# RFC 8305, 5: the connection attempt delay.
_NEXT_ADDRESS_SECONDS: Final = 0.25


def host_field(netloc: str) -> str:
    """The Host header for a URL's `netloc`: without credentials, non-ASCII names in IDNA encoding.

    Raises UnicodeError for a name that cannot be encoded.
    """
    place = netloc.rpartition("@")[2]
    if place.isascii():
        return place
    host, colon, port = place.partition(":")
    return f"{host.encode('idna').decode()}{colon}{port}"


def parse_server_name(value: object) -> str:
    """Parse the host name or address that a server's certificate must match. Raises ValueError."""
    name = text(value)
    try:
        # Longer names, a leading dot and control characters are refused by OpenSSL.
        usable = len(name.encode("idna")) < 256 and name.isprintable() and not name.startswith(".")
    except UnicodeError:
        usable = False
    if not usable:
        raise ValueError("expected a host name such as gpu-1.example.com, or an IP address")
    return name


def is_address(host: str) -> bool:
    """Whether the host is an IPv4 address or an IPv6 address (no brackets, optional zone), not a name."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Whether the host, without brackets, is a loopback address or `localhost`."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def connection_attempt_delay(host: str) -> float | None:
    """Seconds until the next address of a host name is tried in parallel; None for an IP address."""
    return None if is_address(host) else _NEXT_ADDRESS_SECONDS


def parse_http_url(url: str, flag: str, example: str) -> SplitResult:
    """Parse an HTTP URL; `http://` may be omitted. Raises UsageError that names the flag."""
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        right = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        right = False
    if not right or " " in url or not url.isprintable():
        # The part before an @ may be a password, even in a malformed URL.
        named = to_short_line(url.rpartition("@")[2])
        raise UsageError(f"{flag}: expected a URL such as {example}, not '{named}'")
    return parts


ANY_HOST: Final = "*"

_NAME: Final = re.compile(r"(\*\.)?[a-z0-9_-]+(\.[a-z0-9_-]+)*")
_PORT: Final = re.compile(r":[0-9]*$")


def _name(value: object) -> str:
    written = text(value).strip().lower()
    name = written.removesuffix(".")
    if written != ANY_HOST and not _NAME.fullmatch(name):
        raise ValueError("expected a host name such as gpu-1.example.com or *.example.com, without a port")
    return name


@dataclass(frozen=True)
class HostNameSettings:
    """The host names under which clients may send requests."""

    reload: ClassVar[ReloadPolicy] = ReloadPolicy()

    names: tuple[str, ...] = setting(
        "web.hosts",
        comma_separated(_name),
        (),
        "answer only requests for these host names, IP addresses and localhost; *.example.com means all "
        "subdomains, * any name; default: any name, but none on a loopback address",
        metavar="NAME,...",
    )


class AllowedHosts:
    """Allows IP addresses, localhost and the given names."""

    def __init__(self, names: Iterable[str]) -> None:
        given = frozenset(names)
        self._names = given | {"localhost"}
        # Browsers resolve subdomains of localhost to loopback without DNS (RFC 6761, 6.3).
        self._below = (".localhost", *(name[1:] for name in given if name.startswith("*.")))

    def allow(self, authority: str) -> bool:
        """Whether the host, with or without a port, is allowed. Without a host, yes: browsers send one."""
        bare = _PORT.sub("", authority.strip().lower())
        if not bare or _is_address(bare):
            return True
        name = bare.removesuffix(".")
        return name in self._names or name.endswith(self._below)


def allowed_hosts(names: tuple[str, ...], listening: Address) -> AllowedHosts | None:
    """The filter for a listen address under these `web.hosts`; None allows all hosts.

    A loopback address serves this machine only, so there all host names must be listed.
    """
    if ANY_HOST in names or not (names or is_loopback(listening.host)):
        return None
    return AllowedHosts(names)


def _is_address(host: str) -> bool:
    """Whether the host of a URL's authority is an IP address: IPv6 in brackets, IPv4 without."""
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    return (":" in bare) is (bare != host) and is_address(bare)


def base_of_redirect(location: str) -> str:
    """The URL to give instead, of the Location of a request to the API: the API's path is added again."""
    base, found, _ = location.partition("?")[0].partition("/api/v1/")
    return base if base and found else location
