"""Where to listen: the text that users write, and the sockets behind it."""

from __future__ import annotations

import errno
import re
import socket
from dataclasses import dataclass, replace

from gpuledger.model.errors import GpuledgerError
from gpuledger.model.settings import text
from gpuledger.model.text import host_and_port

_ADDRESS = re.compile(r"(?:\[(?P<bracketed>[^\[\]\s]+)\]|(?P<plain>[^:\[\]\s/@]*)):(?P<port>[0-9]{1,5})")
_WANTED = "an address such as :9400, 127.0.0.1:9400 or [::1]:9400 is wanted"

# What a kernel without IPv6, or with it switched off, says of an address of that family.
_NO_SUCH_FAMILY = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)

# Waiting to be accepted: a burst of scrapers that all begin at the same second. The kernel caps it.
BACKLOG = 256


@dataclass(frozen=True, slots=True)
class Address:
    """A host to listen on and a port. An empty host is every interface, IPv4 and IPv6; port 0 is any."""

    host: str
    port: int

    def __str__(self) -> str:
        return host_and_port(self.host, self.port)


def parse_address(written: str) -> Address:
    """`[HOST]:PORT`, an IPv6 host in brackets. Raises ValueError with what is wanted."""
    match = _ADDRESS.fullmatch(written.strip())
    if match is None:
        raise ValueError(_WANTED)
    port = int(match["port"])
    if port > 65535:
        raise ValueError("a port from 0 to 65535 is wanted")
    return Address(match["bracketed"] or match["plain"] or "", port)


def as_address(value: object) -> Address:
    """A setting's value: one that is read already, or text. Raises ValueError."""
    return value if isinstance(value, Address) else parse_address(text(value))


def listening_sockets(address: Address) -> list[socket.socket]:
    """Bound, listening, non-blocking sockets: one, or one for each address that the host name has.

    A host name is looked up, which may wait for DNS: only done at start, when nothing is served yet. With
    port 0 all get the port that the first one got. Raises GpuledgerError with the reason and the remedy.
    """
    try:
        if not address.host:
            return [_every_interface(address.port)]
        return _named(address)
    # UnicodeError: a name that cannot be looked up at all, such as one with a part of 64 letters.
    except (OSError, UnicodeError) as error:
        raise GpuledgerError(
            f"cannot listen on {address}: {_reason(error, address)}; choose another with --listen-address"
        ) from None


def bound_address(asked: Address, listening: socket.socket) -> Address:
    """The asked address with the real port."""
    return replace(asked, port=listening.getsockname()[1])


def _every_interface(port: int) -> socket.socket:
    """One socket for IPv6 and IPv4; IPv4 alone where the kernel has no IPv6."""
    try:
        return _listen(socket.AF_INET6, ("::", port), dual_stack=True)
    except OSError as error:
        if error.errno not in _NO_SUCH_FAMILY:
            raise
    return _listen(socket.AF_INET, ("0.0.0.0", port))


def _named(address: Address) -> list[socket.socket]:
    # As bytes, a name or an address in ASCII does not load what encodes other names.
    asked = address.host.encode() if address.host.isascii() else address.host
    found = socket.getaddrinfo(
        asked, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE | socket.AI_NUMERICSERV
    )
    opened: list[socket.socket] = []
    failure: OSError | None = None
    # The same address may be found twice (two lines in /etc/hosts).
    for family, where in dict.fromkeys((entry[0], entry[4]) for entry in found):
        host, asked_port, *rest = where
        port = opened[0].getsockname()[1] if opened else asked_port
        try:
            opened.append(_listen(family, (host, port, *rest)))
        except OSError as error:
            # localhost is often ::1 as well on machines whose IPv6 is switched off: one that works will do.
            if error.errno not in _NO_SUCH_FAMILY:
                for other in opened:
                    other.close()
                raise
            failure = error
    if failure is not None and not opened:
        raise failure
    return opened


def _listen(family: int, where: tuple[object, ...], *, dual_stack: bool = False) -> socket.socket:
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        # A restart must not wait for the old connections' TIME_WAIT. It does not share a port in use.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if dual_stack else 1)
        listening.bind(where)
        listening.listen(BACKLOG)
        listening.setblocking(False)
    except OSError:
        listening.close()
        raise
    return listening


def _reason(error: OSError | UnicodeError, address: Address) -> str:
    if isinstance(error, socket.gaierror | UnicodeError):
        return f"unknown host {address.host!r}"
    known = {
        errno.EADDRINUSE: "port in use (by another exporter?)",
        errno.EACCES: "no permission (ports below 1024 need a privilege)",
        errno.EADDRNOTAVAIL: "this machine has no such address",
    }
    return known.get(error.errno or 0) or error.strerror or str(error)
