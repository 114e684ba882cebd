"""Check of `doctor` for the job-mapping directory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from gpuledger.model.checks import Check, Finding, Subject, skipped, warning, works
from gpuledger.model.devices import Device
from gpuledger.model.source import Clock
from gpuledger.model.text import escape_to_one_line, list_some
from gpuledger.workloads.job_map.job_map_reader import JobMapReader, find_map_problems
from gpuledger.workloads.job_map.settings import JobMapSettings

_JOB_MAP: Final = Subject("job_map.directory", "job-mapping directory")
_FILES: Final = Subject(_JOB_MAP.check, "job-mapping files")
_NAME_FILES: Final = (
    "let the prolog write one file per GPU, named after its minor number, such as 0 or 0.1, or its UUID"
)
_SHOWN: Final = 5


def job_map_checks(
    settings: JobMapSettings,
    clock: Clock,
    devices: Callable[[], Sequence[Device] | None] = lambda: None,
    needs: tuple[str, ...] = (),
) -> tuple[Check, ...]:
    """One check of the job-mapping directory.

    `devices` returns the Devices of this machine, None if they are not known; `needs` are the checks that
    must not fail before it is called.
    """
    if not settings.directory:
        return (Check(*_JOB_MAP, lambda: [skipped(*_JOB_MAP, "no --hpc-job-mapping-dir")]),)
    return (
        Check(*_JOB_MAP, lambda: _check_job_map(settings.directory, clock, devices()), needs, limit=30.0),
    )


def _check_job_map(directory: str, clock: Clock, devices: Sequence[Device] | None) -> Iterator[Finding]:
    found = JobMapReader(Path(directory), clock=clock).read()
    if found.files:
        number = len({ref for ref, _ in found.devices})
        yield works(*_JOB_MAP, f"{number} devices, {len(found)} job entries in {directory}")
    else:
        yield warning(*_JOB_MAP, f"{directory} has no file for a GPU", _NAME_FILES)
    if found.strange:
        yield warning(
            *_FILES, f"names of no GPU: {list_some(found.strange)}", f"{_NAME_FILES}; remove the others"
        )
    for name, problem in found.damaged[:_SHOWN]:
        remedy = "let the prolog write one job id per line, readable to gpuledger"
        yield warning(*_FILES, f"{escape_to_one_line(name)}: {problem}", remedy)
    if devices is None:
        return
    problems = find_map_problems(found, devices)
    if problems.unknown:
        why = f"no GPU of this machine has these names, or several have: {list_some(problems.unknown)}"
        yield warning(*_FILES, why, "use one directory per node, and full UUIDs; remove files of other nodes")
    for pair in problems.contradicting[:_SHOWN]:
        first, other = map(escape_to_one_line, pair)
        yield warning(
            *_FILES,
            f"{first} and {other} are of one GPU and have different jobs: it belongs to all of them",
            f"remove the file that the prolog no longer writes: `rm {directory}/{first}` or `.../{other}`",
        )
