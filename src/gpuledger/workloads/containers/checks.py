"""What `doctor` says of the names of containers outside Kubernetes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from gpuledger.model.checks import Check, Finding, parted, skipped, warning, works
from gpuledger.model.errors import GpuledgerError
from gpuledger.workloads.containers.open import ContainerReader, is_socket
from gpuledger.workloads.containers.settings import ContainerSettings

NAMES: Final = "containers.names"


def container_checks(settings: ContainerSettings) -> tuple[Check, ...]:
    """One check for each socket of the settings."""
    sockets = tuple(settings.sockets())
    if not sockets:
        what = "names of containers"
        return (Check(NAMES, what, lambda: (skipped(NAMES, what, "switched off"),)),)
    return tuple(
        Check(NAMES, _what(name), _look(name, path, flag), limit=15.0) for name, path, flag in sockets
    )


def _what(name: str) -> str:
    return f"{name.capitalize()} containers"


def _look(name: str, path: str, flag: str) -> Callable[[], Iterator[Finding]]:
    def look() -> Iterator[Finding]:
        if not is_socket(path):
            yield skipped(NAMES, _what(name), f"no socket at {path}")
            return
        try:
            found = ContainerReader(path, flag).read()
        except GpuledgerError as error:
            why, remedy = parted(error)
            # Without names containers are told by their ids.
            yield warning(NAMES, _what(name), why, remedy)
        else:
            yield works(NAMES, _what(name), f"{len(found)} running at {path}")

    return look
