"""Texts of /proc/PID/cgroup and the owners that they name."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuledger.workloads.cgroup import KINDS, CgroupOwner, owner
from unit.workloads.cgroup_forms.every import ROWS
from unit.workloads.cgroup_forms.others import MANY_LINES
from unit.workloads.cgroup_forms.words import ID, SHORT, SNAKE, STATIC, UID, USER, Row

# Without the texts themselves, whose colons pytest takes for its own when a test is asked for by name.
NAMES = [f"{at}: {row[2]}" for at, row in enumerate(ROWS)]


@pytest.mark.parametrize(("text", "said", "seen"), ROWS, ids=NAMES)
def test_each_known_form_names_its_owner(text: str, said: dict[str, Any], seen: str) -> None:
    full = f"0::{text}\n" if text.startswith("/") else text
    assert owner(full) == CgroupOwner(**said)


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


@settings(deadline=None, max_examples=300)
@given(st.one_of(st.text(), st.lists(PIECES, max_size=20).map("".join)))
def test_any_text_is_read_and_nothing_is_said_that_is_not_in_it(text: str) -> None:
    said = owner(text)
    assert said.kind in KINDS
    assert said.pod_uid in text or said.pod_uid.replace("-", "_") in text
    assert said.container_id in text
    assert said.job in text
    assert said.uid is None or str(said.uid) in text
    assert (said.kind == "pod") == (said.missing == "pod_name")


@settings(deadline=None, max_examples=100)
@given(st.sampled_from(MANY_LINES), st.randoms(use_true_random=False))
def test_the_order_of_lines_does_not_matter(row: Row, chance: Random) -> None:
    lines = row[0].splitlines()
    chance.shuffle(lines)
    assert owner("\n".join(lines)) == CgroupOwner(**row[1])


def test_a_colon_parts_segments_as_a_slash_does() -> None:
    found = owner(f"0::{USER}:session-3.scope\n")
    assert (found.kind, found.uid, found.unit) == ("user", 1000, "session-3.scope")
