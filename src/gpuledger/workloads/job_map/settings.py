"""What a user sets about the job-mapping directory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gpuledger.model.settings import Reload, choice, setting, text


@dataclass(frozen=True, slots=True)
class JobMapSettings:
    """Where a batch system's prolog writes which job has which GPU."""

    reload: ClassVar[Reload] = Reload()

    directory: str = setting(
        "job_map.dir",
        text,
        "",
        "directory in which the batch system's prolog writes one file per GPU (<minor>, or <minor>.<gpu "
        "instance>) with one job id per line",
        flags=("--hpc-job-mapping-dir",),
        metavar="DIR",
    )
    kind: str = setting(
        "job_map.kind",
        choice("slurm", "job"),
        "slurm",
        "what these jobs are: slurm, or job for any other batch system",
        flags=("--hpc-job-kind",),
        metavar="slurm|job",
    )
