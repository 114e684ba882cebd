"""What the environment of a process says of the job that it is in.

Slurm's own variables name the GPUs of the job on this machine (SLURM_JOB_GPUS, in batch and interactive jobs)
and of one step (SLURM_STEP_GPUS) by number, whatever the device cgroup hides. CUDA_VISIBLE_DEVICES and
GPU_DEVICE_ORDINAL count what the job can see, from 0, so that as numbers they say nothing; since Slurm 25.11,
and under MIG, they hold UUIDs. NVIDIA_VISIBLE_DEVICES is a container's, and said by its image too (`all`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from gpuledger.model.text import from_bytes
from gpuledger.workloads.device_index import DeviceRef, uuids_of

_SEEN: Final = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")
_WANTED: Final = frozenset(
    (
        "SLURM_JOB_ID",
        "SLURM_JOB_USER",
        "SLURM_JOB_UID",
        "SLURMD_NODENAME",
        "SLURM_JOB_GPUS",
        "SLURM_STEP_GPUS",
        "SLURM_GPUS_ON_NODE",
        *_SEEN,
    )
)
_NUMBERS: Final = re.compile(r"\d{1,4}(?:,\d{1,4})*", re.ASCII)
# slurmstepd rewrites its title to this; 4294967290 and the like are steps with a name.
_TITLE: Final = re.compile(rb"slurmstepd: \[(\d{1,20})\.", re.ASCII)

Environment = Mapping[str, str]


def parse_environment(raw: bytes) -> Environment:
    """The variables of /proc/PID/environ that matter here."""
    found: dict[str, str] = {}
    for item in raw.split(b"\0"):
        name, equals, value = item.partition(b"=")
        key = from_bytes(name[:64])
        if equals and key in _WANTED and value:
            found.setdefault(key, from_bytes(value[:4096]))
    return found


def job_in_title(cmdline: bytes) -> str:
    """The number of the job that a slurmstepd serves, by its title; empty for anything else."""
    match = _TITLE.match(cmdline)
    return match[1].decode("ascii") if match else ""


def gpus_said(environments: Sequence[Environment]) -> tuple[DeviceRef, ...]:
    """The GPUs of the job that these environments are of.

    Of the job as a whole the first says all; of its steps each says its own. Numbers are told as `number`:
    what they count, gres.conf knows. Where as many UUIDs as numbers are said, by one process or by all
    together, these are told instead.
    """
    whole = next((found for item in environments if (found := _numbers(item.get("SLURM_JOB_GPUS")))), ())
    by_step = [_numbers(item.get("SLURM_STEP_GPUS")) for item in environments]
    numbers = whole or tuple(dict.fromkeys(ref for refs in by_step for ref in refs))
    seen = [uuids_of(item.get(name, "")) for item in environments for name in _SEEN]
    together = tuple(dict.fromkeys(ref for refs in seen for ref in refs))
    if numbers:
        return next((uuids for uuids in (*seen, together) if len(uuids) == len(numbers)), numbers)
    return together


def has_gpus(environments: Sequence[Environment]) -> bool:
    """Whether Slurm gave the job any GPU on this machine, whatever it calls them."""
    return any(item.get("SLURM_GPUS_ON_NODE", "0").lstrip("0").isdigit() for item in environments)


def _numbers(text: str | None) -> tuple[DeviceRef, ...]:
    if not text or not _NUMBERS.fullmatch(text):
        return ()
    return tuple(DeviceRef("number", str(int(word))) for word in text.split(","))
