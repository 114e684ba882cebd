"""Check of `doctor` for the job-mapping directory."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from gpuledger.model.checks import Check, Finding, Subject, skipped, warning, works
from gpuledger.model.source import Clock
from gpuledger.workloads.job_map.job_map_reader import JobMapReader
from gpuledger.workloads.job_map.settings import JobMapSettings

_JOB_MAP: Final = Subject("job_map.directory", "job-mapping directory")


def job_map_checks(settings: JobMapSettings, clock: Clock) -> tuple[Check, ...]:
    """One check of the job-mapping directory."""
    return (Check(*_JOB_MAP, lambda: [_check_job_map(settings.directory, clock)]),)


def _check_job_map(directory: str, clock: Clock) -> Finding:
    if not directory:
        return skipped(*_JOB_MAP, "no --hpc-job-mapping-dir")
    found = JobMapReader(Path(directory), clock=clock).read()
    if found.files:
        return works(*_JOB_MAP, f"{found.files} devices, {len(found)} job entries in {directory}")
    return warning(
        *_JOB_MAP,
        f"{directory} has no file for a GPU",
        "let the prolog write one file per GPU, named after its minor number, such as 0 or 0.1",
    )
