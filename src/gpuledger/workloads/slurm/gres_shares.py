"""The part of a GPU that a Slurm job has by gres/shard or gres/mps. Pure.

slurmstepd writes the number of shards of a job (or step) into SLURM_SHARDS_ON_NODE, and the percentage of MPS
into CUDA_MPS_ACTIVE_THREAD_PERCENTAGE; a job with whole GPUs has neither. The number of shards of each GPU is
in gres.conf, with the device file or for all GPUs together, else in slurm.conf for all GPUs of the node.
Source: gres.shtml and src/plugins/gres of Slurm 26.05.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from gpuledger.workloads.device_index import DeviceRef
from gpuledger.workloads.slurm.gres_conf import GpuNumbering, expand_hostlist, gres_lines_of, node_gres
from gpuledger.workloads.slurm.job_identity import Environment, ProcessIdentity

SHARDS, PERCENTAGE = "SLURM_SHARDS_ON_NODE", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
SHARE_VARIABLES: Final = (SHARDS, PERCENTAGE)
_GPUS: Final = ("SLURM_JOB_GPUS", "SLURM_STEP_GPUS", "SLURM_GPUS_ON_NODE")
_COUNT: Final = re.compile(r"\d{1,9}", re.ASCII)

Lines = Sequence[Mapping[str, str]]


@dataclass(frozen=True)
class GresFiles:
    """The lines of gres.conf and of slurm.conf."""

    gres: Sequence[dict[str, str]] = ()
    slurm: Sequence[dict[str, str]] = ()


def job_fraction(
    processes: Sequence[ProcessIdentity],
    files: GresFiles,
    node: str,
    numbering: GpuNumbering,
    gpus: Sequence[DeviceRef],
) -> Fraction | None:
    """The part of each of its `gpus` that a job has: 1 if they are whole, None if it is not known.

    The processes that slurmstepd started itself decide, because a user can change the variables of others.
    """
    with_gpus = [one for one in processes if any(name in one.environment for name in _GPUS)]
    deciding = [one.environment for one in with_gpus if one.first] or [one.environment for one in with_gpus]
    if not deciding:
        return None
    if shards := _largest(deciding, SHARDS):
        per_gpu = _units_per_gpu("shard", files, node, numbering, gpus)
        return None if per_gpu is None else _part(shards, per_gpu, len(gpus))
    # Users set the percentage themselves, too. Where MPS is a gres, slurmstepd removes it from other jobs.
    if all(PERCENTAGE in environment for environment in deciding) and _has_gres("mps", files, node):
        percentage = _largest(deciding, PERCENTAGE)
        if not percentage:
            # Slurm 22.05 writes 0 for any number of units.
            return None
        units = _units_per_gpu("mps", files, node, numbering, gpus)
        # slurmstepd rounds down. Up to 100 units, only one number of units has this percentage.
        exact = units is not None and units <= 100
        return (
            _part(-(-percentage * units // 100), units, 1) if exact and units else _part(percentage, 100, 1)
        )
    return Fraction(1)


def _largest(environments: Sequence[Environment], variable: str) -> int:
    """The number of the whole job; a step has at most that. 0 unless all environments have the variable."""
    values = [environment.get(variable, "") for environment in environments]
    return max(map(int, values)) if all(map(_COUNT.fullmatch, values)) else 0


def _part(units: int, per_gpu: int, gpus: int) -> Fraction | None:
    """How many units a job has on each GPU is known only if there is one, or if they are all units."""
    if not gpus or units > per_gpu * gpus:
        return None
    return Fraction(1) if units == per_gpu * gpus else Fraction(units, per_gpu) if gpus == 1 else None


def _has_gres(name: str, files: GresFiles, node: str) -> bool:
    return bool(_lines(name, files, node)) or name in _node_gres(files, node)


def _lines(name: str, files: GresFiles, node: str) -> Lines:
    return [line for line in gres_lines_of(files.gres, node) if line.get("name", "").lower() == name]


def _units_per_gpu(
    name: str, files: GresFiles, node: str, numbering: GpuNumbering, gpus: Sequence[DeviceRef]
) -> int | None:
    """How many units of this gres each of these GPUs has; None if unknown or not the same for all."""
    by_file: dict[str, int] = {}
    total = _node_gres(files, node).get(name, 0)
    for line in _lines(name, files, node):
        count = int(line["count"]) if _COUNT.fullmatch(line.get("count", "")) else 0
        named = expand_hostlist(line.get("file", ""))
        by_file |= dict.fromkeys(named, count // len(named) if named else 0)
        total = total if named else count
    if by_file:
        in_order = not numbering.by_driver
        places = [int(ref.name) for ref in gpus if ref.by == "number" and in_order]
        known = [numbering.files[place][0] for place in places if place < len(numbering.files)]
        counts = {by_file.get(file, 0) for file in known} if len(known) == len(gpus) else {*by_file.values()}
        return counts.pop() or None if len(counts) == 1 else None
    on_node = len(numbering.files) or _node_gres(files, node).get("gpu", 0)
    return total // on_node if total and on_node and total % on_node == 0 else None


def _node_gres(files: GresFiles, node: str) -> dict[str, int]:
    """The numbers of the node's gres in slurm.conf, of all types together."""
    found: dict[str, int] = {}
    for one in node_gres(files.slurm, node):
        found[one.name] = found.get(one.name, 0) + one.number
    return found
