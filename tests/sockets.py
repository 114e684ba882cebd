"""The sockets of a process, as reported by the kernel."""

from __future__ import annotations

import socket

import psutil


def listening(pid: int) -> set[str]:
    """All TCP addresses on which the process or its children listen, and all their UDP addresses."""
    found = set()
    for process in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True)):
        for connection in process.net_connections("inet"):
            if connection.status == psutil.CONN_LISTEN:
                found.add(f"tcp {connection.laddr.ip}:{connection.laddr.port}")
            elif connection.type == socket.SOCK_DGRAM:
                found.add(f"udp {connection.laddr.ip}:{connection.laddr.port}")
    return found


def named_sockets(pid: int) -> set[str]:
    """The paths of the unix sockets of the process."""
    return {
        connection.laddr for connection in psutil.Process(pid).net_connections("unix") if connection.laddr
    }
