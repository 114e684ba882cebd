"""Texts of /proc/PID/cgroup and the owners that they name."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.workloads.cgroup import OWNER_KINDS, CgroupOwner, parse_cgroup
from unit.workloads.cgroup_forms.all_forms import ROWS
from unit.workloads.cgroup_forms.expected_owners import ID, SHORT, SNAKE, STATIC, UID, USER, Row
from unit.workloads.cgroup_forms.others import MANY_LINES

# Without the texts themselves: their colons conflict with pytest's `::` when a test is selected by name.
NAMES = [f"{at}: {row[2]}" for at, row in enumerate(ROWS)]


@pytest.mark.parametrize(("text", "expected", "seen"), ROWS, ids=NAMES)
def test_each_known_form_names_its_owner(text: str, expected: dict[str, Any], seen: str) -> None:
    full = f"0::{text}\n" if text.startswith("/") else text
    assert parse_cgroup(full) == CgroupOwner(**expected)


PIECES = st.sampled_from(
    [
        *"/:\n-_.",
        "0::/",
        "pod",
        "kubepods-",
        ".slice",
        ".scope",
        UID,
        SNAKE,
        STATIC,
        ID,
        SHORT,
        "cri-containerd-",
        "crio-conmon-",
        "docker",
        "slurm/uid_1/job_2",
        "/step_",
        "slurmstepd.scope/",
        "s5K1KKYAYG5D00",
        "pbs_jobs.service/jobid/1",
        "user-1000.slice",
        "..",
        "lxc.payload.",
        "machine-",
        "\\x2d",
        "\\xff",
        "٣",
        " (deleted)",
    ]
)


@given(st.one_of(st.text(), st.lists(PIECES, max_size=20).map("".join)))
def test_any_text_parses_and_fields_only_contain_parts_of_it(text: str) -> None:
    owner = parse_cgroup(text)
    assert owner.kind in OWNER_KINDS
    assert owner.pod_uid in text or owner.pod_uid.replace("-", "_") in text
    assert owner.container_id in text
    assert owner.job in text
    assert owner.uid is None or str(owner.uid) in text
    assert (owner.kind == "pod") == (owner.missing == "pod_name")


@given(st.sampled_from(MANY_LINES), st.randoms(use_true_random=False))
def test_the_order_of_lines_does_not_matter(row: Row, chance: Random) -> None:
    lines = row[0].splitlines()
    chance.shuffle(lines)
    assert parse_cgroup("\n".join(lines)) == CgroupOwner(**row[1])


def test_a_colon_separates_segments_like_a_slash() -> None:
    found = parse_cgroup(f"0::{USER}:session-3.scope\n")
    assert (found.kind, found.uid, found.unit) == ("user", 1000, "session-3.scope")
