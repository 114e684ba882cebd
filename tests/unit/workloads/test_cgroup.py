"""Texts of /proc/PID/cgroup and the owners that they name."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.workloads.cgroup import OWNER_KINDS, CgroupOwner, parse_cgroup
from unit.workloads.cgroup_forms.all_forms import ROWS
from unit.workloads.cgroup_forms.expected_owners import (
    ID,
    ID2,
    KUBE,
    SHORT,
    SNAKE,
    STATIC,
    UID,
    UID2,
    USER,
    Row,
)
from unit.workloads.cgroup_forms.others import MANY_LINES

UID3, ID3 = "0f0f0f0f-0001-4001-8001-00000000000a", "a" * 64
# Without the texts themselves: their colons conflict with pytest's `::` when a test is selected by name.
NAMES = [f"{at}: {row[2]}" for at, row in enumerate(ROWS)]


@pytest.mark.parametrize(("text", "expected", "seen"), ROWS, ids=NAMES)
def test_each_known_form_names_its_owner(text: str, expected: dict[str, Any], seen: str) -> None:
    full = f"0::{text}\n" if text.startswith("/") else text
    assert alone(parse_cgroup(full)) == CgroupOwner(**expected)


def alone(owner: CgroupOwner) -> CgroupOwner:
    """The innermost owner without those around it."""
    return replace(owner, outer=None, inner_container="")


def levels(path: str) -> list[tuple[str, str, str]]:
    """Kind, pod UID and container (id, name or job) of the owners, from the inside out."""
    found, owner = [], parse_cgroup(f"0::{path}\n")
    while owner is not None:
        found.append((owner.kind, owner.pod_uid, owner.container_id or owner.container or owner.job))
        owner = owner.outer
    return found


# Owner rows: pods of three clusters, inside out.
INNER, MIDDLE, OUTER = ("pod", UID, ID), ("pod", UID2, ID2), ("pod", UID3, ID3)
EVE, BOX = ("user", "", ""), ("container", "", ID)
LOGIN = f"{USER}/user@1000.service"
SYSTEMD = f"{KUBE}{UID3.replace('-', '_')}.slice/cri-containerd-{ID3}.scope"


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (f"/kubepods/burstable/pod{UID}/{ID}", [INNER]),
        (f"/kubepods/pod{UID2}/{ID2}/kubepods/burstable/pod{UID}/{ID}", [INNER, MIDDLE]),
        # Cgroup drivers: systemd outside and cgroupfs inside, and the reverse.
        (f"{SYSTEMD}/kubepods/burstable/pod{UID}/{ID}", [INNER, OUTER]),
        (f"/kubepods/pod{UID2}/{ID2}{KUBE}{SNAKE}.slice/crio-{ID}.scope", [INNER, MIDDLE]),
        (f"{SYSTEMD}/kubepods/pod{UID2}/{ID2}/kubepods/pod{UID}/{ID}", [INNER, MIDDLE, OUTER]),
        # Of the middle pod only its slice is named; the same pod named twice is one level.
        (f"{SYSTEMD}/kubepods/pod{UID2}/kubepods/pod{UID}/{ID}", [INNER, ("pod", UID2, ""), OUTER]),
        (f"/kubepods/pod{UID}/kubepods/pod{UID}/{ID}", [INNER]),
        # kind and k3d: a node in a container, or in a container in a container.
        (f"/docker/{ID2}/kubelet/kubepods/pod{UID}/{ID}", [INNER, ("container", "", ID2)]),
        (
            f"/docker/{ID3}/docker/{ID2}/kubepods/pod{UID}/{ID}",
            [INNER, ("container", "", ID2), ("container", "", ID3)],
        ),
        (f"/lxc.payload.k8s/kubepods/pod{UID}/{ID}", [INNER, ("container", "", "k8s")]),
        (f"/docker/{ID2}/docker/{ID}", [("container", "", ID), ("container", "", ID2)]),
        (f"/lxc.payload.ci/docker/{ID}", [("container", "", ID), ("container", "", "ci")]),
        # The runtime's own unit is around a pod, but it does not run inside that.
        (f"/system.slice/k3s.service/kubepods/pod{UID}/{ID}", [INNER]),
        # A login and a pod can give cgroups below their own any name.
        (f"{LOGIN}/kubepods/pod{UID}", [EVE]),
        (f"{LOGIN}/kubepods/pod{UID}/{ID}", [BOX, EVE]),
        (f"{LOGIN}/cri-containerd-{ID}.scope", [EVE]),
        (f"{LOGIN}/x:cri-containerd:{ID}", [EVE]),
        (f"{USER}/session-1.scope/kubepods/pod{UID}/cri-containerd-{ID}.scope", [EVE]),
        (f"{LOGIN}/slurmstepd.scope/job_77/step_0", [EVE]),
        (f"{LOGIN}/slurm/uid_2000/job_77", [EVE]),
        (f"{LOGIN}/pbs_jobs.service/jobid/7.pbs", [EVE]),
        (f"{LOGIN}/lsf/one/job.7.2.3", [EVE]),
        (f"{LOGIN}/nomad.slice/{UID}.train.scope", [EVE]),
        (f"{LOGIN}/docker-{ID}.scope/slurmstepd.scope/job_77", [BOX, EVE]),
        (f"{LOGIN}/libpod-{ID2}.scope/docker/{ID}", [BOX, ("container", "", ID2), EVE]),
        (f"/user.slice/user-libpod_pod_{ID2}.slice/libpod-{ID}.scope", [BOX, EVE]),
        (f"/kubepods/pod{UID}/{ID}/slurmstepd.scope/job_77", [INNER]),
        (f"/kubepods/pod{UID}/{ID}/user.slice/user-1000.slice/session-1.scope", [INNER]),
        ("/slurm/uid_1000/job_7/user-1000.slice/slurm/uid_2/job_8", [("slurm", "", "7")]),
        (f"/slurm/uid_1000/job_7/step_0/kubepods/pod{UID}/{ID}", [INNER, ("slurm", "", "7")]),
        # A container that is named twice is one.
        (f"/machine.slice/libpod-{ID}.scope/libpod-payload-{ID}", [BOX]),
        (f"/docker/{ID2}/libpod-{ID}.scope/libpod-payload-{ID}", [BOX, ("container", "", ID2)]),
        (f"/libpod_parent/{ID2}/libpod-{ID}", [BOX]),
        # What runs inside a pod's container belongs to that.
        (f"/kubepods/pod{UID}/{ID}/docker/{ID2}", [INNER]),
    ],
)  # fmt: skip
def test_all_owners_around_a_process_are_kept_from_the_inside_out(
    path: str, expected: list[tuple[str, str, str]]
) -> None:
    assert levels(path) == expected


def test_a_container_inside_a_pods_container_is_the_inner_one() -> None:
    assert parse_cgroup(f"0::/kubepods/pod{UID}/{ID}/docker/{ID2}\n").inner_container == ID2
    assert parse_cgroup(f"0::/kubepods/pod{UID}/{ID}/youki-{ID2}.scope\n").inner_container == ID2
    assert parse_cgroup(f"0::/kubepods/pod{UID}/crio-{ID}.scope/{ID}\n").inner_container == ""
    nested = parse_cgroup(f"0::/kubepods/pod{UID2}/{ID2}/docker/{ID3}/kubepods/pod{UID}/{ID}\n")
    assert nested.inner_container == ""
    assert nested.outer is not None
    assert nested.outer.inner_container == ID3


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
    assert alone(parse_cgroup("\n".join(lines))) == CgroupOwner(**row[1])


def test_a_colon_separates_segments_like_a_slash() -> None:
    found = parse_cgroup(f"0::{USER}:session-3.scope\n")
    assert (found.kind, found.uid, found.unit) == ("user", 1000, "session-3.scope")
