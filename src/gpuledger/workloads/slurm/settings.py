"""Settings of the Slurm job lookup."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

from gpuledger.model.settings import ReloadPolicy, auto_or_boolean, setting, text
from gpuledger.workloads.slurm.job_cgroups import has_slurm_cgroup

# At least one of these exists on a machine with slurmd, even before the first job.
SLURM_DIRECTORIES: Final = (
    Path("/etc/slurm"),
    Path("/etc/slurm-llnl"),
    Path("/var/spool/slurmd"),
    Path("/run/slurm"),
)

# Paths of distribution packages and of `configless` slurmd. The first readable file is used.
GRES_CONF_PATHS: Final = (
    Path("/etc/slurm/gres.conf"),
    Path("/run/slurm/conf/gres.conf"),
    Path("/var/spool/slurmd/conf-cache/gres.conf"),
    Path("/var/spool/slurm/d/conf-cache/gres.conf"),
    Path("/etc/slurm-llnl/gres.conf"),
    Path("/usr/local/etc/gres.conf"),
)


@dataclass(frozen=True)
class SlurmSettings:
    """Whether and where Slurm jobs and their allocated GPUs are looked up."""

    reload: ClassVar[ReloadPolicy] = ReloadPolicy()

    enabled: str = setting(
        "slurm.enabled",
        auto_or_boolean,
        "auto",
        "look up which GPUs are allocated to which Slurm job, even if no process uses them; auto enables it "
        "if slurmd has a cgroup or a directory",
        flags=("--slurm",),
        metavar="auto|true|false",
    )
    cgroup_root: str = setting(
        "slurm.cgroup_root",
        text,
        "",
        "mount point of the machine's cgroup tree (default: fs/cgroup below --sysfs)",
        flags=("--slurm-cgroup-root",),
        metavar="DIR",
    )
    gres_conf: str = setting(
        "slurm.gres_conf",
        text,
        "",
        "Slurm's gres.conf, which defines the numbers of allocated GPUs (default: the usual paths)",
        flags=("--slurm-gres-conf",),
        metavar="FILE",
    )

    def root(self, sysfs: str) -> Path:
        """Root of the cgroup tree."""
        return Path(self.cgroup_root) if self.cgroup_root else Path(sysfs) / "fs/cgroup"

    def gres(self) -> tuple[Path, ...]:
        """Candidate paths of gres.conf; the first readable file is used."""
        return (Path(self.gres_conf),) if self.gres_conf else GRES_CONF_PATHS


def is_slurm_enabled(settings: SlurmSettings, sysfs: str, signs: Iterable[Path] = SLURM_DIRECTORIES) -> bool:
    """Whether Slurm is enabled by the settings, or detected on this machine."""
    if settings.enabled != "auto":
        return settings.enabled == "true"
    return any(sign.is_dir() for sign in signs) or has_slurm_cgroup(settings.root(sysfs))
