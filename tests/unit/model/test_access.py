"""What a reader may read."""

from __future__ import annotations

import pytest

from gpuledger.model.access import EVERYTHING, OTHERS, Reader
from gpuledger.model.workload import UNKNOWN, Workload

DAN = Reader("dan", frozenset({"dan", "1001"}), 1001)


@pytest.mark.parametrize(
    ("owner", "permitted"),
    [
        (Workload("user", user="dan"), True),
        # A unit in the slice of the login.
        (Workload("user", user="dan", unit="jupyter.service"), True),
        (Workload("user", user="1001"), True),
        (Workload("slurm", job="7", user="dan"), True),
        (Workload("job", job="7.pbs", user="dan", runtime="pbs"), True),
        (Workload("user", user="ann"), False),
        (Workload("user", user="DAN"), False),
        (Workload("user", user="dan "), False),
        (Workload("user", user="100"), False),
        (Workload("slurm", job="7", user="ann"), False),
        # The user of the job is not known.
        (Workload("slurm", job="7"), False),
        (Workload("user"), False),
        # uid 1001 in a pod or a container is not this person.
        (Workload("pod", "ml", "train", user="dan"), False),
        (Workload("pod", "ml", "slurmd", job="7", user="dan"), False),
        (Workload("container", container="box", user="dan"), False),
        # A unit of the system that runs as dan.
        (Workload("unit", unit="daemon.service", user="dan"), False),
        (UNKNOWN, False),
        (OTHERS, False),
    ],
    ids=str,
)
def test_a_user_reads_logins_and_jobs_of_that_user(owner: Workload, permitted: bool) -> None:
    assert DAN.permits(owner) is permitted
    assert EVERYTHING.permits(owner)


def test_a_reader_without_names_reads_nothing() -> None:
    assert not Reader().permits(Workload("user", user=""))
    assert not Reader("", frozenset({""})).permits(Workload("user", user=""))
