"""Parsing of pods from the API's JSON, and lookup of pods."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.workloads.pods.pod import NO_PODS, Pod, Pods, parse_pod

NOTHING: tuple[str, ...] = ()
META = {"uid": "u1", "name": "train", "namespace": "ml"}


def read(status: Any = None, **meta: Any) -> Pod:
    pod = parse_pod({"metadata": META | meta, "status": status}, NOTHING)
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
def test_container_names_are_found_by_ids_without_runtime_prefix(
    status: Any, containers: dict[str, str]
) -> None:
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
def test_the_controller_is_the_owner_reference_marked_as_controller(
    owners: Any, controller: tuple[str, str]
) -> None:
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
def test_a_static_pod_has_the_hash_of_its_cgroup(annotations: Any, expected: str) -> None:
    assert read(annotations=annotations).hash == expected


@pytest.mark.parametrize(
    ("expected", "unix"),
    [
        ("2026-11-28T03:44:10Z", 1795837450.0),
        ("no time", None),
        ("2026-11-28", None),
        (None, None),
        (5, None),
    ],
)
def test_the_creation_time_is_unix_seconds_or_unknown(expected: Any, unix: float | None) -> None:
    assert read(creationTimestamp=expected).created == unix


@pytest.mark.parametrize(
    "expected", [None, [], "x", {}, {"metadata": {"uid": "u"}}, {"metadata": {"name": "n"}}]
)
def test_an_object_without_uid_or_name_is_not_a_pod(expected: object) -> None:
    assert parse_pod(expected, NOTHING) is None


@pytest.mark.parametrize(
    ("allowed", "expected"),
    [
        ((), ()),
        (("app",), (("app", "llm"),)),
        (("team/*",), (("team/cost", "7"), ("team/name", "x"))),
        (("*",), (("app", "llm"), ("team/cost", "7"), ("team/name", "x"))),
        (("nothing", "ap"), ()),
    ],
)
def test_only_allowed_labels_are_kept_sorted_by_name(
    allowed: tuple[str, ...], expected: tuple[Any, ...]
) -> None:
    labels = {"team/name": "x", "app": "llm", "team/cost": "7", "bad": 5}
    pod = parse_pod({"metadata": META | {"labels": labels}}, allowed)
    assert pod is not None
    assert pod.labels == expected


KEYS = st.sampled_from(
    ["metadata", "status", "uid", "name", "containerStatuses", "containerID", "annotations", "lastState"]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=15,
)


@given(JSON, JSON, JSON)
def test_invalid_fields_do_not_affect_the_names_of_a_pod(meta: Any, status: Any, statuses: Any) -> None:
    more = meta if isinstance(meta, dict) else {"labels": meta, "ownerReferences": meta, "annotations": meta}
    for about in (status, {"phase": status, "containerStatuses": statuses}):
        pod = parse_pod({"metadata": more | META, "status": about}, ("*",))
        assert pod is not None
        assert (pod.uid, pod.namespace, pod.name) == ("u1", "ml", "train")


def test_pods_are_found_by_uid_hash_name_and_container() -> None:
    one = Pod("u1", "ml", "train", containers={"aa": "main"}, hash="h1")
    pods = Pods([one, Pod("u2", "ml", "other")])
    assert [pods.by_uid("u1"), pods.by_uid("h1"), pods.by_name("ml", "train"), pods.by_container("aa")] == [
        one
    ] * 4
    assert (pods.by_uid("zz"), pods.by_name("other", "train"), pods.by_container("bb")) == (None, None, None)
    assert len(pods) == 2
    assert one.containers["aa"] == "main"


@pytest.mark.parametrize("order", [1, -1])
def test_the_newer_of_two_pods_with_one_name_is_found_and_both_by_uid(order: int) -> None:
    old, new = Pod("u1", "ml", "t", created=1.0, hash="h"), Pod("u2", "ml", "t", created=2.0, hash="h")
    pods = Pods([old, new][::order])
    assert (pods.by_name("ml", "t"), pods.by_uid("h"), pods.by_uid("u1"), pods.by_uid("u2")) == (
        new,
        new,
        old,
        new,
    )


def test_fallback_pods_are_looked_up_last() -> None:
    mine, same, theirs = Pod("u1", "ml", "a", phase="Running"), Pod("u1", "ml", "a"), Pod("u3", "ml", "c")
    pods = Pods([mine]).with_fallback(Pods([same, theirs]))
    assert (pods.by_uid("u1"), pods.by_uid("u3"), pods.by_name("ml", "c")) == (mine, theirs, theirs)
    assert [pod.uid for pod in pods] == ["u1", "u3"]
    assert len(pods) == 2
    assert len(NO_PODS) == 0
