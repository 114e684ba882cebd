"""Checks of `doctor` for Slurm jobs and gres.conf."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from gpuledger.model.checks import Check, Finding, fails, skipped, split_remedy, unknown, warning, works
from gpuledger.model.errors import GpuledgerError
from gpuledger.workloads.slurm.job_reader import SlurmReader
from gpuledger.workloads.slurm.jobs import SlurmJobs
from gpuledger.workloads.slurm.settings import SLURM_DIRECTORIES, SlurmSettings, is_slurm_enabled

JOBS: Final = "slurm.jobs"
GRES: Final = "slurm.gres_conf"

_WHAT: Final = "Slurm jobs"
_GRES: Final = "Slurm's gres.conf"


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
        return (Check(JOBS, _WHAT, lambda: (skipped(JOBS, _WHAT, why),)),)
    reader = SlurmReader(settings.root(sysfs), procfs=procfs, gres=settings.gres())
    return (
        Check(JOBS, _WHAT, lambda: _jobs(reader)),
        Check(GRES, _GRES, lambda: _gres(settings.gres(), is_configured=bool(settings.gres_conf))),
    )


def _jobs(reader: SlurmReader) -> Iterator[Finding]:
    try:
        jobs = reader.read()
    except GpuledgerError as error:
        why, remedy = split_remedy(error)
        yield fails(JOBS, _WHAT, why, remedy)
        return
    if not jobs.missing:
        yield works(JOBS, _WHAT, _summary(jobs))
    for reason, count in sorted(jobs.missing.items()):
        yield _unknown_devices(reason, count, len(jobs))


def _summary(jobs: SlurmJobs) -> str:
    holding = sum(1 for job in jobs if job.devices)
    stale = f"; {jobs.stale} cgroups of ended jobs left behind" if jobs.stale else ""
    return f"{len(jobs)} running, {holding} of them with GPUs{stale}"


def _unknown_devices(reason: str, count: int, total: int) -> Finding:
    lost = f"the allocated GPUs of {count} of {total} jobs are not known"
    if reason == "permission":
        return warning(
            JOBS,
            _WHAT,
            f"{lost}: only root can read their environment",
            "run gpuledger as root, or with CAP_SYS_PTRACE (systemd: AmbientCapabilities=CAP_SYS_PTRACE)",
        )
    if reason == "unmatched":
        return warning(
            JOBS,
            _WHAT,
            f"{lost}: gres.conf has no device file for their GPU numbers, or they have no GPU numbers",
            "set the gres.conf that slurmd uses with --slurm-gres-conf",
        )
    return unknown(JOBS, _WHAT, f"{lost}: none of their processes has Slurm's environment variables")


def _gres(places: tuple[Path, ...], *, is_configured: bool) -> Iterator[Finding]:
    for path in places:
        try:
            path.read_bytes()
        except FileNotFoundError:
            continue
        except OSError as error:
            yield warning(
                GRES, _GRES, f"{path}: {error.strerror}", f"`chmod o+r {path}`, or run gpuledger as root"
            )
            return
        yield works(GRES, _GRES, f"{path} is readable")
        return
    remedy = "set the gres.conf that slurmd uses with --slurm-gres-conf"
    if is_configured:
        yield warning(GRES, _GRES, f"{places[0]} does not exist", remedy)
        return
    why = "not found; Slurm's GPU numbers are used only if minor and index of each GPU are the same"
    yield unknown(GRES, _GRES, why, remedy)
