"""What a host is, of a URL or in a Host header: an address or a name, and how it is told and looked up."""

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
