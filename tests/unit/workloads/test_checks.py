"""Doctor's lines about the owners of processes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builders import gpu, process, reading, snapshot
from gpuledger.app.diagnosis import run_checks
from gpuledger.model.checks import Verdict
from gpuledger.model.workload import Workload
from gpuledger.workloads.checks import owner_checks


@pytest.mark.parametrize(
    ("owners", "why"),
    [
        ([Workload("user", user="lena"), Workload("slurm", job="7", user="lena")], ""),
        ([Workload("user", user="812345")], "1 user has only a number: 812345"),
        (
            [
                Workload("slurm", job="7", user="99"),
                Workload("unit", user="812345"),
                Workload("user", user="99"),
            ],
            "2 users have only a number: 99, 812345",
        ),
        # The users of a container are not those of this machine.
        ([Workload("pod", pod="a", user="1000")], ""),
        (
            [Workload("user", user=str(1000 + place)) for place in range(7)],
            "1000, 1001, 1002, 1003, 1004 and 2 more",
        ),
    ],
)
def test_doctor_says_that_users_have_only_numbers(owners: list[Workload], why: str) -> None:
    card = gpu(0)
    found = snapshot(reading(card, *(process(card, pid, workload=one) for pid, one in enumerate(owners, 1))))
    lines = run_checks(owner_checks(lambda: found, ()))
    named = [one for one in lines if one.check == "owners.user_names"]
    assert [one.verdict for one in named] == [Verdict.WARNING] * bool(why)
    assert all(why in one.why and "--name-service true" in one.remedy for one in named)


@pytest.mark.parametrize(("uid", "user", "number"), [(5001, "20231234", False), (812345, "812345", True)])
def test_a_user_with_a_number_as_name_has_a_name(uid: int, user: str, number: bool) -> None:
    one = process(gpu(0), 1, workload=Workload("user", user=user))
    one = replace(one, host=replace(one.host, uid=uid, user=user))
    lines = run_checks(owner_checks(lambda: snapshot(reading(gpu(0), one)), ()))
    assert any(line.check == "owners.user_names" for line in lines) is number
