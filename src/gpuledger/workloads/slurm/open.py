"""The map of Slurm's jobs that the settings ask for."""

from __future__ import annotations

from collections.abc import Callable

from gpuledger.model.source import Clock
from gpuledger.workloads.maps import Polled
from gpuledger.workloads.slurm.job import NO_JOBS, SlurmJobs
from gpuledger.workloads.slurm.reader import SlurmReader
from gpuledger.workloads.slurm.settings import SlurmSettings

PERIOD = 10.0


def open_slurm(
    settings: SlurmSettings,
    *,
    clock: Clock,
    sysfs: str = "/sys",
    procfs: str = "/proc",
    user_name: Callable[[int], str] = str,
) -> Polled[SlurmJobs]:
    """The map, not begun; to be called only where Slurm is on (`settings.is_enabled`)."""
    reader = SlurmReader(settings.root(sysfs), procfs=procfs, gres=settings.gres(), user_name=user_name)
    return Polled("slurm", reader.read, NO_JOBS, period=PERIOD, clock=clock)
