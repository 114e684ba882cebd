"""Which host names a server answers to.

A web page on a name of its owner's can have that name point to this machine (DNS rebinding). A browser in
which the page is open then lets it read what is served here, with no password asked behind a firewall. It
cannot do so under an address, nor under `localhost`, nor under a name that is not its owner's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import ip_address
from typing import ClassVar, Final

from gpuledger.http.addresses import Address
from gpuledger.model.settings import Reload, setting, text, words

# RFC 8305, 5: what it calls the connection attempt delay.
_NEXT_ADDRESS_SECONDS: Final = 0.25


def host_field(netloc: str) -> str:
    """The Host header for a URL's `netloc`: without a login, a name beyond ASCII as it is in the DNS.

    Raises UnicodeError for a name that cannot be there.
    """
    place = netloc.rpartition("@")[2]
    if place.isascii():
        return place
    host, colon, port = place.partition(":")
    return f"{host.encode('idna').decode()}{colon}{port}"


def is_address(host: str) -> bool:
    """Whether it is an IPv4 address, or one of IPv6 without brackets, and no name. A zone may follow that."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Whether the host, without brackets, is this machine as nobody else can reach it."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def next_address_after(host: str) -> float | None:
    """Seconds after which a name's next address is tried beside one that does not answer; None where the
    host is an address, which has no next.
    """
    return None if is_address(host) else _NEXT_ADDRESS_SECONDS


ANY: Final = "*"

_NAME: Final = re.compile(r"(\*\.)?[a-z0-9_-]+(\.[a-z0-9_-]+)*")
_PORT: Final = re.compile(r":[0-9]*$")


def _name(value: object) -> str:
    written = text(value).strip().lower()
    name = written.removesuffix(".")
    if written != ANY and not _NAME.fullmatch(name):
        raise ValueError("a host name such as gpu-1.example.com or *.example.com, without a port, is wanted")
    return name


@dataclass(frozen=True, slots=True)
class HostNames:
    """Under which names gpuledger may be asked."""

    reload: ClassVar[Reload] = Reload()

    names: tuple[str, ...] = setting(
        "web.hosts",
        words(_name),
        (),
        "answer requests for these host names alone (and for addresses and localhost); *.example.com is all "
        "below, * any; without a word: any, but on a loopback address none else",
        metavar="NAME,...",
    )


class AllowedHosts:
    """Addresses, localhost and these names."""

    def __init__(self, names: Iterable[str]) -> None:
        given = frozenset(names)
        self._names = given | {"localhost"}
        # Browsers look up nothing below localhost (RFC 6761, 6.3).
        self._below = (".localhost", *(name[1:] for name in given if name.startswith("*.")))

    def allow(self, authority: str) -> bool:
        """Whether this host, with or without a port, is one of them. A browser always names one: who does
        not is let in.
        """
        bare = _PORT.sub("", authority.strip().lower())
        if not bare or _is_address(bare):
            return True
        name = bare.removesuffix(".")
        return name in self._names or name.endswith(self._below)


def allowed_hosts(names: tuple[str, ...], listening: Address) -> AllowedHosts | None:
    """Who may ask at an address under these `web.hosts`; None for everybody.

    Who listens on a loopback address means this machine alone, so there names must be given.
    """
    if ANY in names or not (names or is_loopback(listening.host)):
        return None
    return AllowedHosts(names)


def _is_address(host: str) -> bool:
    """As the authority of a URL has it: IPv6 in brackets, and nothing else in them."""
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    return (":" in bare) is (bare != host) and is_address(bare)
