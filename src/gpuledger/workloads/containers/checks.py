"""Checks of `doctor` for names of containers."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

from gpuledger.model.checks import Check, Finding, Subject, skipped, split_remedy, warning, works
from gpuledger.model.errors import GpuledgerError
from gpuledger.workloads.containers.container_reader import is_socket, read_containers
from gpuledger.workloads.containers.settings import ContainerSettings

_CONTAINERS: Final = Subject("containers.names", "names of containers")


def container_checks(settings: ContainerSettings) -> tuple[Check, ...]:
    """One check per container runtime socket in the settings."""
    sockets = tuple(settings.sockets())
    if not sockets:
        return (Check(*_CONTAINERS, lambda: [skipped(*_CONTAINERS, "switched off")]),)
    subjects = [Subject(_CONTAINERS.check, f"{name.capitalize()} containers") for name, _, _ in sockets]
    return tuple(
        Check(*subject, partial(_check_containers, subject, path, flag), limit=15.0)
        for subject, (_, path, flag) in zip(subjects, sockets, strict=True)
    )


def _check_containers(subject: Subject, path: str, flag: str) -> Iterator[Finding]:
    if not is_socket(path):
        yield skipped(*subject, f"no socket at {path}")
        return
    try:
        yield works(*subject, f"{len(read_containers(path, flag))} running at {path}")
    except GpuledgerError as error:
        # Only a warning: without names, containers are identified by their ids.
        yield warning(*subject, *split_remedy(error))
