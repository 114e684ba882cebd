"""What a user sets about the jobs of Slurm."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

from gpuledger.model.settings import Reload, automatic, setting, text
from gpuledger.workloads.slurm.gres import USUAL
from gpuledger.workloads.slurm.tree import has_slurm

# Where slurmd is, there is one of these, even before the first job.
SIGNS: Final = (Path("/etc/slurm"), Path("/etc/slurm-llnl"), Path("/var/spool/slurmd"), Path("/run/slurm"))


@dataclass(frozen=True, slots=True)
class SlurmSettings:
    """Whether and where jobs of Slurm are looked up, and who holds which GPU without running anything."""

    reload: ClassVar[Reload] = Reload()

    enabled: str = setting(
        "slurm.enabled",
        automatic,
        "auto",
        "look up which GPUs are allocated to which Slurm job, even if nothing runs on them; auto does so "
        "where slurmd has a cgroup or a directory",
        flags=("--slurm",),
        metavar="auto|true|false",
    )
    cgroup_root: str = setting(
        "slurm.cgroup_root",
        text,
        "",
        "where the tree of cgroups of the machine is mounted (default: fs/cgroup below --sysfs)",
        flags=("--slurm-cgroup-root",),
        metavar="DIR",
    )
    gres_conf: str = setting(
        "slurm.gres_conf",
        text,
        "",
        "Slurm's gres.conf, by which numbers of allocated GPUs are read (default: in the usual places)",
        flags=("--slurm-gres-conf",),
        metavar="FILE",
    )

    def root(self, sysfs: str) -> Path:
        """The tree of cgroups."""
        return Path(self.cgroup_root) if self.cgroup_root else Path(sysfs) / "fs/cgroup"

    def gres(self) -> tuple[Path, ...]:
        """Where gres.conf may be, the first that can be read counts."""
        return (Path(self.gres_conf),) if self.gres_conf else USUAL


def is_enabled(settings: SlurmSettings, sysfs: str, signs: Iterable[Path] = SIGNS) -> bool:
    """Whether Slurm is on by the settings, or by what this machine has."""
    if settings.enabled != "auto":
        return settings.enabled == "true"
    return any(sign.is_dir() for sign in signs) or has_slurm(settings.root(sysfs))
