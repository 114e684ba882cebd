"""What `doctor` says of the jobs of Slurm."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from gpuledger.model.checks import Check, Finding, fails, parted, skipped, unknown, warning, works
from gpuledger.model.errors import GpuledgerError
from gpuledger.workloads.slurm.job import SlurmJobs
from gpuledger.workloads.slurm.reader import SlurmReader
from gpuledger.workloads.slurm.settings import SIGNS, SlurmSettings, is_enabled

JOBS: Final = "slurm.jobs"
GRES: Final = "slurm.gres_conf"

_WHAT: Final = "Slurm jobs"
_GRES: Final = "Slurm's gres.conf"


def slurm_checks(
    settings: SlurmSettings, *, sysfs: str = "/sys", procfs: str = "/proc", signs: Iterable[Path] = SIGNS
) -> tuple[Check, ...]:
    """Checks of a machine that Slurm runs jobs on; one that says so where it is none."""
    if not is_enabled(settings, sysfs, signs):
        why = "switched off" if settings.enabled == "false" else "no Slurm on this machine"
        return (Check(JOBS, _WHAT, lambda: (skipped(JOBS, _WHAT, why),)),)
    reader = SlurmReader(settings.root(sysfs), procfs=procfs, gres=settings.gres())
    return (
        Check(JOBS, _WHAT, lambda: _jobs(reader)),
        Check(GRES, _GRES, lambda: _gres(settings.gres(), asked=bool(settings.gres_conf))),
    )


def _jobs(reader: SlurmReader) -> Iterator[Finding]:
    try:
        jobs = reader.read()
    except GpuledgerError as error:
        why, remedy = parted(error)
        yield fails(JOBS, _WHAT, why, remedy)
        return
    if not jobs.missing:
        yield works(JOBS, _WHAT, _summary(jobs))
    for reason, count in sorted(jobs.missing.items()):
        yield _untold(reason, count, len(jobs))


def _summary(jobs: SlurmJobs) -> str:
    holding = sum(1 for job in jobs if job.devices)
    stale = f"; {jobs.stale} cgroups of ended jobs left behind" if jobs.stale else ""
    return f"{len(jobs)} running, {holding} of them with GPUs{stale}"


def _untold(reason: str, count: int, total: int) -> Finding:
    lost = f"which GPUs are allocated is not known of {count} of {total} jobs"
    if reason == "permission":
        return warning(
            JOBS,
            _WHAT,
            f"{lost}: their environment is readable to root alone",
            "run gpuledger as root, or give it CAP_SYS_PTRACE (systemd: AmbientCapabilities=CAP_SYS_PTRACE)",
        )
    if reason == "not_told":
        return warning(
            JOBS,
            _WHAT,
            f"{lost}: gres.conf has no device file for the numbers that Slurm gave them, or it gave none",
            "name the gres.conf that slurmd uses with --slurm-gres-conf",
        )
    return unknown(JOBS, _WHAT, f"{lost}: no process in them was started by Slurm with its variables")


def _gres(places: tuple[Path, ...], *, asked: bool) -> Iterator[Finding]:
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
    remedy = "name the gres.conf that slurmd uses with --slurm-gres-conf"
    if asked:
        yield warning(GRES, _GRES, f"{places[0]} is not there", remedy)
        return
    why = "not found; Slurm's numbers of GPUs are believed where minor and index of each GPU are the same"
    yield unknown(GRES, _GRES, why, remedy)
