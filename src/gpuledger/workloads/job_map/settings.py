"""Settings of the job-mapping directory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gpuledger.model.settings import ReloadPolicy, choice, setting, text


@dataclass(frozen=True)
class JobMapSettings:
    """The directory in which a batch system's prolog records the job of each GPU."""

    reload: ClassVar[ReloadPolicy] = ReloadPolicy()

    directory: str = setting(
        "job_map.dir",
        text,
        "",
        "directory in which the batch system's prolog writes one file per GPU (<minor>, <minor>.<gpu "
        "instance>, or a UUID as in CUDA_VISIBLE_DEVICES) with one job id per line",
        flags=("--hpc-job-mapping-dir",),
        metavar="DIR",
    )
    kind: str = setting(
        "job_map.kind",
        choice("slurm", "job"),
        "slurm",
        "kind of these jobs: slurm, or job for any other batch system",
        flags=("--hpc-job-kind",),
    )
