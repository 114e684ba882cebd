"""What `doctor` says of the job-mapping directory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from gpuledger.model.checks import Check, Finding, fails, parted, skipped, warning, works
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.source import Clock
from gpuledger.workloads.job_map.files import JobMapReader
from gpuledger.workloads.job_map.settings import JobMapSettings

JOB_MAP: Final = "job_map.directory"

_WHAT: Final = "job-mapping directory"


def job_map_checks(settings: JobMapSettings, clock: Clock) -> tuple[Check, ...]:
    """One check of the directory that the settings name."""
    return (Check(JOB_MAP, _WHAT, lambda: _look(settings, clock)),)


def _look(settings: JobMapSettings, clock: Clock) -> Iterator[Finding]:
    if not settings.directory:
        yield skipped(JOB_MAP, _WHAT, "no --hpc-job-mapping-dir")
        return
    try:
        found = JobMapReader(Path(settings.directory), clock=clock).read()
    except GpuledgerError as error:
        why, remedy = parted(error)
        yield fails(JOB_MAP, _WHAT, why, remedy)
        return
    if not found.files:
        yield warning(
            JOB_MAP,
            _WHAT,
            f"{settings.directory} has no file of a GPU",
            "let the prolog write a file named for the minor number of each GPU, such as 0 or 0.1",
        )
        return
    yield works(
        JOB_MAP, _WHAT, f"{found.files} devices, {len(found)} entries of jobs in {settings.directory}"
    )
