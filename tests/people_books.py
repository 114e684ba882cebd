"""Two and a half hours of a machine that several people share, and their names for searching outputs."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from builders import gpu, instance, process
from gpuledger.model.access import Reader
from gpuledger.model.process import GpuProcess
from gpuledger.model.workload import Allocation, Workload
from ledger_helpers import Run

A, B = gpu(0, name="NVIDIA H100", sm_count=132), gpu(1, name="NVIDIA H100", sm_count=132)
PART = instance(B, 2, 0, profile="3g.40gb", sm_count=60)

# What dan may read. The number is that of dan, from before the name service answered.
DAN = Reader("dan", frozenset({"dan", "1001"}), 1001)
OF_DAN = (
    Workload("user", user="dan"),
    Workload("user", user="dan", unit="jupyter.service"),
    Workload("user", user="1001"),
    Workload("slurm", job="4711", user="dan", slurm_account="nlp", partition="gpu", job_name="train"),
    Workload("job", job="12.pbs", user="dan", runtime="pbs"),
)
# What dan may not read: each name and number has a text that stands nowhere else.
OTHERS = (
    Workload("user", user="annsecret"),
    Workload("slurm", job="771001", user="annsecret", slurm_account="secretlab", job_name="secretrun"),
    Workload("pod", "secretspace", "secretpod", "main", user="dan", labels=(("team", "secretteam"),)),
    Workload("container", container="secretbox", user="dan"),
    Workload("unit", unit="secretd.service", user="dan"),
    Workload("job", job="771002.secret", user="", runtime="pbs"),
    Workload("user", user="771009"),
    Workload(),
)
HELD_BY_DAN = Workload("slurm", job="4712", user="dan", slurm_account="nlp", partition="gpu")
HELD_BY_ANN = Workload("slurm", job="771003", user="annsecret", slurm_account="secretlab")
# Nothing that dan reads has one of these texts and numbers.
SECRET = re.compile(r"secret|(?<![\d.])771\d{3}(?!\d)")


def assert_no_secret(text: str) -> None:
    found = SECRET.search(text)
    assert found is None, text[max(found.start() - 80, 0) : found.end() + 80] if found else ""


def owned(place: int, owner: Workload, *, is_dan: bool) -> GpuProcess:
    """The process of one owner: on the first GPU with another's, or on the MIG instance."""
    pid = (4000 if is_dan else 771_100) + place
    device = PART if place % 3 == 2 else A
    uid = 1001 if is_dan else 771_009
    found = process(
        device,
        pid,
        workload=owner,
        name=f"python{place}" if is_dan else f"secretcmd{place}",
        ticks=pid,
        sm=None if device is PART else 0.5,
    )
    login = "dan" if is_dan else "annsecret"
    return replace(found, host=replace(found.host, uid=uid, user=login))


def record_people(folder: Path, *, alone: bool = False) -> Path:
    """Write the ledger, or that of a machine which dan has alone; return its file."""
    run = Run(folder)
    allocations = [Allocation(B, HELD_BY_DAN, "slurm")]
    if not alone:
        allocations.append(Allocation(A, HELD_BY_ANN, "slurm"))
    for minute in range(150):
        mine = [owned(place, one, is_dan=True) for place, one in enumerate(OF_DAN) if minute % 7 > place % 3]
        theirs = [
            owned(place, one, is_dan=False)
            for place, one in enumerate(() if alone else OTHERS)
            if minute % 11 > place % 5
        ]
        counters = {A: minute * 47_001, B: minute * 11_003, PART: 0}
        held = tuple(allocations) if 30 <= minute < 100 else ()
        run.tick(counters, [*mine, *theirs], seconds=59.5, allocations=held)
    run.store.close()
    return run.store.file
