"""The host of a URL, as a client names it to the server and looks it up."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Final

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
    try:
        ip_address(host)
    except ValueError:
        return _NEXT_ADDRESS_SECONDS
    return None
