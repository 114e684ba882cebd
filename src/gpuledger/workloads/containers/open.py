"""The maps of containers that the settings ask for. h11 is loaded only when there are any."""

from __future__ import annotations

import stat
from pathlib import Path

from gpuledger.host.background import PolledIndex
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.source import Clock
from gpuledger.workloads.containers.container import NO_CONTAINERS, Containers, containers_of
from gpuledger.workloads.containers.settings import ContainerSettings

PERIOD = 30.0


def open_containers(settings: ContainerSettings, *, clock: Clock) -> tuple[PolledIndex[Containers], ...]:
    """One map, not begun, for each socket that is there: none is no failure."""
    return tuple(
        PolledIndex(name, ContainerReader(path, flag).read, NO_CONTAINERS, period=PERIOD, clock=clock)
        for name, path, flag in settings.sockets()
        if is_socket(path)
    )


def is_socket(path: str) -> bool:
    """Whether there is a socket, as far as can be seen. One in a closed directory counts: it is told why."""
    try:
        return stat.S_ISSOCK(Path(path).stat().st_mode)
    except PermissionError:
        return True
    except OSError:
        return False


class ContainerReader:
    """Reads Containers from the service behind a socket, the same object while they stay the same.

    `flag` is the one that names the socket.
    """

    def __init__(self, path: str, flag: str, *, timeout: float = 5.0) -> None:
        self._path = path
        self._flag = flag
        self._timeout = timeout
        self._last = NO_CONTAINERS

    def read(self) -> Containers:
        """What runs now. Raises GpuledgerError with one line that says what to do."""
        from gpuledger.workloads.containers.service import list_containers

        try:
            found = containers_of(list_containers(self._path, self._flag, timeout=self._timeout))
        except ValueError as error:
            remedy = f"see that Docker or Podman is behind it, or name another with {self._flag}"
            raise GpuledgerError(f"{self._path}: {error}; {remedy}") from None
        self._last = self._last if found == self._last else found
        return self._last
