"""The map of the job-mapping directory that the settings ask for."""

from __future__ import annotations

from pathlib import Path

from gpuledger.model.source import Clock
from gpuledger.workloads.job_map.files import NO_MAP, JobMap, JobMapReader
from gpuledger.workloads.job_map.settings import JobMapSettings
from gpuledger.workloads.maps import Polled

PERIOD = 5.0


def open_job_map(settings: JobMapSettings, *, clock: Clock) -> Polled[JobMap] | None:
    """The map, not begun; None where no directory is named."""
    if not settings.directory:
        return None
    reader = JobMapReader(Path(settings.directory), clock=clock)
    return Polled("job_map", reader.read, NO_MAP, period=PERIOD, clock=clock)
