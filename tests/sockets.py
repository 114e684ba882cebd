"""On what a program listens, by what the kernel says."""

from __future__ import annotations

import socket

import psutil


def listening(pid: int) -> set[str]:
    """Every TCP address on which the process or one of its children listens, and every UDP address that it
    has, by the kernel's own tables.
    """
    found = set()
    for process in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True)):
        for one in process.net_connections("inet"):
            if one.status == psutil.CONN_LISTEN:
                found.add(f"tcp {one.laddr.ip}:{one.laddr.port}")
            elif one.type == socket.SOCK_DGRAM:
                found.add(f"udp {one.laddr.ip}:{one.laddr.port}")
    return found


def named_sockets(pid: int) -> set[str]:
    """The unix sockets that have a name."""
    return {one.laddr for one in psutil.Process(pid).net_connections("unix") if one.laddr}
