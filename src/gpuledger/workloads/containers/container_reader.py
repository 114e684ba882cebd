"""Indexes of running containers, read from the sockets of Docker and Podman.

The HTTP client is imported lazily, by the first read: machines without a socket do not load it.
"""

from __future__ import annotations

import stat
from collections.abc import Collection
from functools import partial
from pathlib import Path

from gpuledger.host.owner_index import PolledIndex, is_tried
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.source import Clock
from gpuledger.workloads.containers.container import Containers, RuntimeList, parse_containers
from gpuledger.workloads.containers.settings import ContainerSettings

CONTAINER_PERIOD = 30.0


def open_container_indexes(
    settings: ContainerSettings, *, clock: Clock
) -> tuple[PolledIndex[Containers], ...]:
    """One index, not started, for each socket that exists. No socket is not an error."""
    nothing: Containers = {}
    return tuple(
        PolledIndex(name, partial(read_containers, path, flag), nothing, period=CONTAINER_PERIOD, clock=clock)
        for name, path, flag in settings.sockets()
        if is_socket(path)
    )


def list_runtime(index: PolledIndex[Containers], rootless: Collection[str] = ()) -> RuntimeList:
    """The containers that an index knows now, and how new the list is; `rootless` are indexes of logins."""
    health = index.health
    is_rootless = health.name in rootless
    return RuntimeList(
        index.value, health.last_success, is_tried(health), health.success, health.name, is_rootless
    )


def is_socket(path: str) -> bool:
    """Whether `path` is a socket. An unreadable directory counts as one: the read reports the reason."""
    try:
        return stat.S_ISSOCK(Path(path).stat().st_mode)
    except PermissionError:
        return True
    except OSError:
        return False


def read_containers(path: str, flag: str, *, timeout: float = 5.0) -> Containers:
    """The containers that run now, from a socket. Raises GpuledgerError with a one-line remedy.

    `flag` is the command-line flag of the socket, for error messages.
    """
    from gpuledger.workloads.containers.docker_api import list_containers

    try:
        return parse_containers(list_containers(path, flag, timeout=timeout))
    except ValueError as error:
        remedy = f"check that Docker or Podman serves this socket, or set another with {flag}"
        raise GpuledgerError(f"{path}: {error}; {remedy}") from None
