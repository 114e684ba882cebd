"""What is read out of the API's JSON of a pod, and how pods are found by it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuledger.workloads.pods.labels import LabelAllowlist
from gpuledger.workloads.pods.pod import NO_PODS, Pod, Pods, read_pod

NOTHING = LabelAllowlist()
META = {"uid": "u1", "name": "train", "namespace": "ml"}


def read(status: Any = None, **meta: Any) -> Pod:
    pod = read_pod({"metadata": META | meta, "status": status}, NOTHING)
    assert pod is not None
    return pod


@pytest.mark.parametrize(
    ("status", "containers"),
    [
        ({"containerStatuses": [{"name": "main", "containerID": "containerd://aa"}]}, {"aa": "main"}),
        ({"containerStatuses": [{"name": "main", "containerID": "docker://aa"}]}, {"aa": "main"}),
        ({"containerStatuses": [{"name": "main", "containerID": "cri-o://aa"}]}, {"aa": "main"}),
        ({"initContainerStatuses": [{"name": "first", "containerID": "cri-o://bb"}]}, {"bb": "first"}),
        ({"ephemeralContainerStatuses": [{"name": "debug", "containerID": "cri-o://cc"}]}, {"cc": "debug"}),
        (
            {
                "initContainerStatuses": [{"name": "first", "containerID": "containerd://bb"}],
                "containerStatuses": [
                    {"name": "main", "containerID": "containerd://aa"},
                    {"name": "side", "containerID": "containerd://dd"},
                ],
                "ephemeralContainerStatuses": [{"name": "debug", "containerID": "containerd://cc"}],
            },
            {"bb": "first", "aa": "main", "dd": "side", "cc": "debug"},
        ),
        (
            {
                "containerStatuses": [
                    {
                        "name": "main",
                        "containerID": "containerd://a2",
                        "lastState": {"terminated": {"containerID": "containerd://a1"}},
                    }
                ]
            },
            {"a1": "main", "a2": "main"},
        ),
        ({"containerStatuses": [{"name": "main", "containerID": ""}]}, {}),
        ({"containerStatuses": [{"name": "main"}]}, {}),
        ({"containerStatuses": None}, {}),
        ({"containerStatuses": "x"}, {}),
        ({"containerStatuses": [None, 3, {"name": 5, "containerID": "a://b"}]}, {}),
        ({}, {}),
        (None, {}),
    ],
)
def test_containers_are_named_by_their_bare_ids(status: Any, containers: dict[str, str]) -> None:
    assert read(status).containers == containers


@pytest.mark.parametrize(
    ("phase", "finished"),
    [
        ("Pending", False),
        ("Running", False),
        ("Unknown", False),
        ("Succeeded", True),
        ("Failed", True),
        (None, False),
    ],
)
def test_a_pod_is_finished_by_its_phase(phase: Any, finished: bool) -> None:
    pod = read({"phase": phase})
    assert (pod.phase, pod.finished) == (phase or "", finished)


@pytest.mark.parametrize(
    ("owners", "controller"),
    [
        ([{"kind": "Job", "name": "j", "controller": True}], ("Job", "j")),
        (
            [{"kind": "A", "name": "a"}, {"kind": "ReplicaSet", "name": "web-5d", "controller": True}],
            ("ReplicaSet", "web-5d"),
        ),
        ([{"kind": "A", "name": "a", "controller": False}], ("", "")),
        ([], ("", "")),
        (None, ("", "")),
    ],
)
def test_the_controller_is_the_owner_that_is_called_so(owners: Any, controller: tuple[str, str]) -> None:
    pod = read(ownerReferences=owners)
    assert (pod.controller_kind, pod.controller) == controller


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        ({"kubernetes.io/config.hash": "h", "kubernetes.io/config.mirror": "h"}, "h"),
        ({"kubernetes.io/config.mirror": "m"}, "m"),
        ({}, ""),
        (None, ""),
    ],
)
def test_a_static_pod_bears_the_hash_that_its_cgroup_shows(annotations: Any, expected: str) -> None:
    assert read(annotations=annotations).hash == expected


@pytest.mark.parametrize(
    ("told", "unix"),
    [
        ("2026-11-28T03:44:10Z", 1795837450.0),
        ("no time", None),
        ("2026-11-28", None),
        (None, None),
        (5, None),
    ],
)
def test_the_time_of_creation_is_unix_seconds_or_unknown(told: Any, unix: float | None) -> None:
    assert read(creationTimestamp=told).created == unix


@pytest.mark.parametrize("told", [None, [], "x", {}, {"metadata": {"uid": "u"}}, {"metadata": {"name": "n"}}])
def test_what_has_no_uid_or_name_is_no_pod(told: object) -> None:
    assert read_pod(told, NOTHING) is None


@pytest.mark.parametrize(
    ("allowed", "told"),
    [
        ((), ()),
        (("app",), (("app", "llm"),)),
        (("team/*",), (("team/cost", "7"), ("team/name", "x"))),
        (("*",), (("app", "llm"), ("team/cost", "7"), ("team/name", "x"))),
        (("nothing", "ap"), ()),
    ],
)
def test_only_the_named_labels_are_told_sorted(allowed: tuple[str, ...], told: tuple[Any, ...]) -> None:
    labels = {"team/name": "x", "app": "llm", "team/cost": "7", "bad": 5}
    assert LabelAllowlist(allowed).of(labels) == told


KEYS = st.sampled_from(
    ["metadata", "status", "uid", "name", "containerStatuses", "containerID", "annotations", "lastState"]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=15,
)


@given(JSON, JSON, JSON)
@settings(deadline=None, max_examples=150)
def test_whatever_else_a_pod_says_its_names_are_read(meta: Any, status: Any, statuses: Any) -> None:
    more = meta if isinstance(meta, dict) else {"labels": meta, "ownerReferences": meta, "annotations": meta}
    for about in (status, {"phase": status, "containerStatuses": statuses}):
        pod = read_pod({"metadata": more | META, "status": about}, LabelAllowlist(["*"]))
        assert pod is not None
        assert (pod.uid, pod.namespace, pod.name) == ("u1", "ml", "train")


def test_pods_are_found_by_uid_hash_name_and_container() -> None:
    one = Pod("u1", "ml", "train", containers={"aa": "main"}, hash="h1")
    pods = Pods([one, Pod("u2", "ml", "other")])
    assert [pods.uid("u1"), pods.uid("h1"), pods.named("ml", "train"), pods.container("aa")] == [one] * 4
    assert (pods.uid("zz"), pods.named("other", "train"), pods.container("bb")) == (None, None, None)
    assert len(pods) == 2
    assert one.container("aa") == "main"
    assert one.container("zz") == ""


@pytest.mark.parametrize("order", [1, -1])
def test_of_two_pods_of_one_name_the_younger_is_found_and_both_by_uid(order: int) -> None:
    old, new = Pod("u1", "ml", "t", created=1.0, hash="h"), Pod("u2", "ml", "t", created=2.0, hash="h")
    pods = Pods([old, new][::order])
    assert (pods.named("ml", "t"), pods.uid("h"), pods.uid("u1"), pods.uid("u2")) == (new, new, old, new)


def test_pods_backed_by_others_ask_them_last() -> None:
    mine, same, theirs = Pod("u1", "ml", "a", phase="Running"), Pod("u1", "ml", "a"), Pod("u3", "ml", "c")
    pods = Pods([mine]).backed_by(Pods([same, theirs]))
    assert (pods.uid("u1"), pods.uid("u3"), pods.named("ml", "c")) == (mine, theirs, theirs)
    assert [pod.uid for pod in pods] == ["u1", "u3"]
    assert len(pods) == 2
    assert len(NO_PODS) == 0
