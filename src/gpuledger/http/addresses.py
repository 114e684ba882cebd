"""Listen addresses: their text form, and opening their sockets."""

from __future__ import annotations

import errno
import re
import socket
from collections.abc import MutableMapping
from dataclasses import dataclass, replace
from typing import Final

from gpuledger.model.errors import GpuledgerError
from gpuledger.model.settings import text
from gpuledger.model.text import join_host_port

_ADDRESS = re.compile(r"(?:\[(?P<bracketed>[^\[\]\s]+)\]|(?P<plain>[^:\[\]\s/@]*)):(?P<port>[0-9]{1,5})")
_EXPECTED = "expected an address such as :9400, 127.0.0.1:9400 or [::1]:9400"

# Errors of a kernel without IPv6, or with IPv6 disabled, for an IPv6 address.
_NO_SUCH_FAMILY = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)

_ALL_INTERFACES = ("", "::", "0.0.0.0")

# Connections that may wait to be accepted: many scrapers can connect in the same second. The kernel caps it.
BACKLOG = 256


@dataclass(frozen=True, slots=True)
class Address:
    """A host to listen on and a port. An empty host means all interfaces, IPv4 and IPv6; port 0 means any."""

    host: str
    port: int

    def __str__(self) -> str:
        return join_host_port(self.host, self.port)

    @property
    def means_all(self) -> bool:
        """Whether it is all interfaces, of one IP version or both."""
        return self.host in _ALL_INTERFACES


def parse_address(written: str) -> Address:
    """Parse `[HOST]:PORT`, an IPv6 host in brackets. Raises ValueError with the expected form."""
    match = _ADDRESS.fullmatch(written.strip())
    if match is None:
        raise ValueError(_EXPECTED)
    port = int(match["port"])
    if port > 65535:
        raise ValueError("expected a port from 0 to 65535")
    return Address(match["bracketed"] or match["plain"] or "", port)


def parse_address_setting(value: object) -> Address:
    """An Address from a setting's value: an Address or a text. Raises ValueError."""
    return value if isinstance(value, Address) else parse_address(text(value))


def open_listening_sockets(address: Address) -> list[socket.socket]:
    """Open non-blocking listening sockets: one, or one for each address of a host name.

    The lookup of a host name may wait for DNS, so call this only at start. With port 0 all sockets get the
    port of the first one. Raises GpuledgerError with the reason and the remedy.
    """
    try:
        if not address.host:
            return [_listen_on_all_interfaces(address.port)]
        return _listen_on_host(address)
    # UnicodeError: a name that cannot be looked up, such as one with a label of 64 letters.
    except (OSError, UnicodeError) as error:
        raise GpuledgerError(
            f"cannot listen on {address}: {_reason(error, address)}; choose another with --listen-address"
        ) from None


def with_bound_port(address: Address, listening: socket.socket) -> Address:
    """The address with the port of the bound socket."""
    return replace(address, port=listening.getsockname()[1])


def bound_address(listening: socket.socket) -> Address:
    """The address of a socket that listens on TCP."""
    host, port = listening.getsockname()[:2]
    return Address("" if host in _ALL_INTERFACES else host, port)


# sd_listen_fds(3): the first file descriptor that systemd passes.
_FIRST_DESCRIPTOR: Final = 3


def inherited_sockets(environment: MutableMapping[str, str], pid: int) -> list[socket.socket]:
    """The listening sockets that systemd passed to this process (socket activation, sd_listen_fds(3)).

    Removes the variables, so that no child takes them for its own. Raises GpuledgerError if there are none,
    or one that does not listen on TCP.
    """
    given = {name: environment.pop(name, "") for name in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")}
    count = int(given["LISTEN_FDS"]) if given["LISTEN_FDS"].isdecimal() else 0
    if not count or given["LISTEN_PID"] != str(pid):
        raise GpuledgerError(
            "--systemd-socket: systemd passed no socket to this process; start it through a .socket unit "
            "with ListenStream=9400 (not through a shell script without exec), or leave the flag out"
        )
    found = []
    for descriptor in range(_FIRST_DESCRIPTOR, _FIRST_DESCRIPTOR + count):
        try:
            listening = socket.socket(fileno=descriptor)
            accepts = listening.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            if listening.family not in (socket.AF_INET, socket.AF_INET6) or not accepts:
                raise OSError
        except OSError:
            raise GpuledgerError(
                f"--systemd-socket: file descriptor {descriptor} is no listening TCP socket; expected "
                "ListenStream= with a port or an address, and Accept=no, in the .socket unit"
            ) from None
        listening.set_inheritable(False)
        listening.setblocking(False)
        found.append(listening)
    return found


def _listen_on_all_interfaces(port: int) -> socket.socket:
    """One socket for IPv6 and IPv4; IPv4 only where the kernel has no IPv6."""
    try:
        return _listen(socket.AF_INET6, ("::", port), dual_stack=True)
    except OSError as error:
        if error.errno not in _NO_SUCH_FAMILY:
            raise
    return _listen(socket.AF_INET, ("0.0.0.0", port))


def _listen_on_host(address: Address) -> list[socket.socket]:
    # Bytes: for an ASCII name Python then does not load the IDNA codec.
    host_name = address.host.encode() if address.host.isascii() else address.host
    found = socket.getaddrinfo(
        host_name, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE | socket.AI_NUMERICSERV
    )
    opened: list[socket.socket] = []
    failure: OSError | None = None
    # The lookup may return an address twice (two lines in /etc/hosts).
    for family, where in dict.fromkeys((entry[0], entry[4]) for entry in found):
        host, requested_port, *rest = where
        port = opened[0].getsockname()[1] if opened else requested_port
        try:
            opened.append(_listen(family, (host, port, *rest)))
        except OSError as error:
            # localhost often resolves to ::1 even with IPv6 disabled: one working address is enough.
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
        # A restart must not wait for old connections in TIME_WAIT. This does not allow two listeners.
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
