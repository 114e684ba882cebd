"""Checks of `doctor` for Slurm jobs and gres.conf."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from gpuledger.model.checks import Check, Finding, Subject, skipped, unknown, warning, works
from gpuledger.workloads.slurm.job_reader import SlurmReader
from gpuledger.workloads.slurm.jobs import SlurmJobs
from gpuledger.workloads.slurm.settings import SLURM_DIRECTORIES, SlurmSettings, is_slurm_enabled

_JOBS: Final = Subject("slurm.jobs", "Slurm jobs")
_GRES: Final = Subject("slurm.gres_conf", "Slurm's gres.conf")
_SET_GRES_CONF: Final = "set the gres.conf that slurmd uses with --slurm-gres-conf"


def slurm_checks(
    settings: SlurmSettings,
    *,
    sysfs: str = "/sys",
    procfs: str = "/proc",
    signs: Iterable[Path] = SLURM_DIRECTORIES,
) -> tuple[Check, ...]:
    """Checks of Slurm jobs and gres.conf; a single skipped one if Slurm is off or not on this machine."""
    if not is_slurm_enabled(settings, sysfs, signs):
        why = "switched off" if settings.enabled == "false" else "no Slurm on this machine"
        return (Check(*_JOBS, lambda: [skipped(*_JOBS, why)]),)
    reader = SlurmReader(settings.root(sysfs), procfs=procfs, gres=settings.gres())
    return (
        Check(*_JOBS, lambda: _jobs(reader.read())),
        Check(*_GRES, lambda: [_gres(settings.gres(), is_configured=bool(settings.gres_conf))]),
    )


def _jobs(jobs: SlurmJobs) -> Iterator[Finding]:
    if not jobs.missing:
        holding = sum(1 for job in jobs if job.devices)
        stale = f"; {jobs.stale} cgroups of ended jobs left behind" if jobs.stale else ""
        yield works(*_JOBS, f"{len(jobs)} running, {holding} of them with GPUs{stale}")
    if shared := sum(1 for job in jobs if job.devices and job.fraction is None):
        yield warning(
            *_JOBS,
            f"the part of their GPUs that {shared} of {len(jobs)} jobs have is not known",
            f"run gpuledger as root, and {_SET_GRES_CONF}, beside its slurm.conf",
        )
    for reason, count in sorted(jobs.missing.items()):
        yield _unknown_devices(reason, f"the allocated GPUs of {count} of {len(jobs)} jobs are not known")


def _unknown_devices(reason: str, lost: str) -> Finding:
    if reason == "permission":
        return warning(
            *_JOBS,
            f"{lost}: only root can read their environment",
            "run gpuledger as root, or with CAP_SYS_PTRACE (systemd: AmbientCapabilities=CAP_SYS_PTRACE)",
        )
    if reason == "unmatched":
        return warning(
            *_JOBS,
            f"{lost}: gres.conf has no device file for their GPU numbers, or they have no GPU numbers",
            _SET_GRES_CONF,
        )
    return unknown(*_JOBS, f"{lost}: none of their processes has Slurm's environment variables")


def _gres(places: tuple[Path, ...], *, is_configured: bool) -> Finding:
    for path in places:
        try:
            path.read_bytes()
        except FileNotFoundError:
            continue
        except OSError as error:
            remedy = f"`chmod o+r {path}`, or run gpuledger as root"
            return warning(*_GRES, f"{path}: {error.strerror}", remedy)
        return works(*_GRES, f"{path} is readable")
    if is_configured:
        return warning(*_GRES, f"{places[0]} does not exist", _SET_GRES_CONF)
    why = "not found; Slurm's GPU numbers are used only if minor and index of each GPU are the same"
    return unknown(*_GRES, why, _SET_GRES_CONF)
