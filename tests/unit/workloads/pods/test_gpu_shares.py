"""Parts of GPUs in the annotations and labels of pods."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzzing import check_line, check_text
from gpuledger.model.errors import GpuledgerError
from gpuledger.workloads.pods.gpu_shares import (
    NO_SHARES,
    DeviceShare,
    PodContainers,
    PodShares,
    parse_pod_shares,
)
from gpuledger.workloads.pods.pod import parse_pod
from pods_server import a_pod

HAMI, MIG, VOLCANO = (
    "hami.io/vgpu-devices-allocated",
    "hami.io/vgpu-mig-allocations",
    "volcano.sh/vgpu-ids-new",
)
GROUP = "runai-gpu-group"
MIB = 1024 * 1024


def shares(text: str, name: str = HAMI, **more: str) -> PodShares:
    return parse_pod_shares({name: text, **more}, {})


def test_a_pod_without_such_annotations_states_nothing() -> None:
    assert parse_pod_shares({"team": "a"}, {"app": "x"}) is NO_SHARES


@pytest.mark.parametrize("name", [HAMI, VOLCANO])
def test_cores_are_the_fraction_and_memory_is_in_mib(name: str) -> None:
    text = "GPU-a,NVIDIA,3000,25:;;GPU-b,NVIDIA-A100,0,100:GPU-c,NVIDIA,5,0:;"
    assert shares(text, name).containers == (
        (DeviceShare("GPU-a", Fraction(1, 4), 3000 * MIB),),
        (DeviceShare("GPU-b", Fraction(1)), DeviceShare("GPU-c", None, 5 * MIB)),
    )


def test_zero_is_not_stated() -> None:
    assert shares("GPU-a,NVIDIA,0,0:;").containers == ((DeviceShare("GPU-a"),),)


@pytest.mark.parametrize(
    "text",
    [
        "GPU-a",
        "GPU-a,NVIDIA,3000",
        ",NVIDIA,1,1",
        "GPU-a,NVIDIA,x,25",
        "GPU-a,NVIDIA,1,-5",
        "GPU-a,NVIDIA,1,101",
    ],
)
def test_an_annotation_that_makes_no_sense_is_ignored_as_a_whole(text: str) -> None:
    found = shares(f"GPU-b,NVIDIA,1,50:;{text}:;")
    assert (found.containers, found.problem.partition(":")[0]) == ((), f"annotation {HAMI} is ignored")


def mig(**more: Any) -> dict[str, Any]:
    return {"containerIndex": 0, "deviceIndex": 0, "gpuUUID": "GPU-a", "profile": "1g.10gb", **more}


@pytest.mark.parametrize(
    ("instance", "expected"), [({"migUUID": "MIG-1"}, "MIG-1"), ({}, "")], ids=["exists", "not yet"]
)
def test_a_mig_instance_is_allocated_as_a_whole(instance: dict[str, str], expected: str) -> None:
    found = shares("GPU-a,NVIDIA,10240,0:;", **{MIG: json.dumps([mig(**instance)])})
    assert found.containers == ((DeviceShare(expected, Fraction(1)),),)


@pytest.mark.parametrize("text", ["{", "{}", "[1]", '[{"containerIndex": true, "deviceIndex": 0}]', "[{}]"])
def test_mig_instances_that_make_no_sense(text: str) -> None:
    assert MIG in shares("GPU-a,NVIDIA,10240,0:;", **{MIG: text}).problem


def test_an_older_name_of_a_mig_instance_is_not_its_gpu() -> None:
    assert shares("GPU-a[0-1],NVIDIA,10240,0:;").containers == ((DeviceShare("", None, 10240 * MIB),),)


@pytest.mark.parametrize(
    ("annotation", "text", "part"),
    [
        ("gpu-fraction", "0.5", DeviceShare(fraction=Fraction(1, 2))),
        ("gpu-fraction", ".25", DeviceShare(fraction=Fraction(1, 4))),
        ("gpu-fraction", "1", DeviceShare(fraction=Fraction(1))),
        ("gpu-memory", "2000", DeviceShare(memory=2000 * MIB)),
    ],
)
def test_a_working_pod_has_a_part_of_the_gpu_of_its_group(
    annotation: str, text: str, part: DeviceShare
) -> None:
    found = parse_pod_shares({annotation: text}, {GROUP: "g1"}, PodContainers(1, "main"))
    assert found == PodShares((), frozenset({"g1"}), part, "main", annotation)


def test_a_pod_on_several_gpus_has_several_groups() -> None:
    labels = {f"{GROUP}/g1": "g1", f"{GROUP}/g2": "g2"}
    assert parse_pod_shares({"gpu-fraction": "0.5"}, labels).groups == {"g1", "g2"}


def test_another_container_can_have_the_part() -> None:
    annotations = {"gpu-fraction": "0.5", "gpu-fraction-container-name": "side"}
    assert parse_pod_shares(annotations, {GROUP: "g1"}, PodContainers(1, "main")).container == "side"


def test_a_pod_of_a_group_without_a_part_reserves_the_gpu() -> None:
    found = parse_pod_shares({}, {GROUP: "g1"})
    assert (found.groups, found.part) == (frozenset({"g1"}), None)


@pytest.mark.parametrize(
    ("annotation", "text"),
    [("gpu-fraction", text) for text in ("0", "1.5", "-0.5", "half", "", "1e-9", "0." + "1" * 30)]
    + [("gpu-memory", text) for text in ("0", "-1", "2G", "1" * 12)],
)
def test_a_part_that_makes_no_sense_is_not_known(annotation: str, text: str) -> None:
    found = parse_pod_shares({annotation: text}, {GROUP: "g1"})
    assert (found.groups, found.part) == (frozenset({"g1"}), DeviceShare())
    assert annotation in found.problem


def test_a_pod_is_parsed_with_its_shares() -> None:
    meta = {"annotations": {"gpu-fraction": "0.5"}, "labels": {GROUP: "g1"}}
    spec = {"containers": [{"name": "first"}, {"name": "second"}]}
    pod = parse_pod({**a_pod(**meta), "spec": spec})
    assert pod is not None
    assert (pod.shares.container, pod.shares.groups) == ("first", {"g1"})


@pytest.mark.parametrize("name", [HAMI, VOLCANO])
@pytest.mark.parametrize(
    ("text", "states", "uuids"),
    [
        # Of init containers and two others.
        ("GPU-a,NVIDIA,1,50:;GPU-b,NVIDIA,1,50:;GPU-c,NVIDIA,1,50:;", ["terminated"], "bc"),
        ("GPU-a,NVIDIA,1,50:;GPU-b,NVIDIA,1,50:;;", ["terminated"], "b"),
        ("GPU-a,NVIDIA,1,50:;;GPU-c,NVIDIA,1,50:", ["terminated"], "c"),
        (";GPU-b,NVIDIA,1,50:;GPU-c,NVIDIA,1,50:;", ["terminated"], "bc"),
        ("GPU-a,NVIDIA,1,50:;GPU-b,NVIDIA,1,50:;;", ["running"], "ab"),
        ("GPU-a,NVIDIA,1,50:;GPU-b,NVIDIA,1,50:;;", ["waiting"], "ab"),
        # A sidecar is an init container that runs beside the others.
        ("GPU-a,NVIDIA,1,50:;GPU-b,NVIDIA,1,50:;GPU-c,NVIDIA,1,50:;;", ["terminated", "running"], "bc"),
        # Older: without init containers.
        ("GPU-a,NVIDIA,1,50:;GPU-b,NVIDIA,1,50:;", ["terminated"], "ab"),
        ("GPU-a,NVIDIA,1,50:;", ["terminated"], "a"),
    ],
)
def test_an_init_container_that_has_ended_has_nothing(
    name: str, text: str, states: list[str], uuids: str
) -> None:
    init = [{"name": f"init-{number}"} for number in range(len(states))]
    pod = a_pod(annotations={name: text})
    pod["spec"] = {"initContainers": init, "containers": [{"name": "first"}, {"name": "second"}]}
    pod["status"]["initContainerStatuses"] = [
        {**one, "state": {state: {}}} for one, state in zip(init, states, strict=True)
    ]
    parsed = parse_pod(pod)
    assert parsed is not None
    shares = parsed.shares
    assert (shares.problem, [share.uuid for one in shares.containers for share in one]) == (
        "",
        [f"GPU-{letter}" for letter in uuids],
    )


def test_a_mig_instance_is_that_of_its_place_beside_an_ended_init_container() -> None:
    annotations = {
        HAMI: "GPU-a,NVIDIA,1,0:;GPU-a,NVIDIA,1,0:;",
        MIG: json.dumps([mig(migUUID="MIG-0"), mig(containerIndex=1, migUUID="MIG-1")]),
    }
    found = parse_pod_shares(annotations, {}, PodContainers(1, "main", (True,)))
    assert found.containers == ((DeviceShare("MIG-1", Fraction(1)),),)


WORDS = st.sampled_from(
    ["GPU-a", "NVIDIA", ",", ":", ";", "0", "25", "999999999999", "[0-1]", "\n", "\ud800"]
)
TEXTS = st.lists(WORDS, max_size=12).map("".join) | st.text(max_size=20)
NAMES = st.sampled_from([HAMI, MIG, VOLCANO, "gpu-fraction", "gpu-memory", "gpu-fraction-container-name"])


@given(
    st.dictionaries(NAMES, TEXTS | st.just('[{"containerIndex":0,"deviceIndex":0}]') | st.integers()),
    st.dictionaries(st.sampled_from([GROUP, f"{GROUP}/x", "app"]), TEXTS | st.none()),
)
def test_arbitrary_annotations_are_parsed_or_named(
    annotations: dict[str, Any], labels: dict[str, Any]
) -> None:
    found = parse_pod_shares(annotations, labels, PodContainers(1, "main", (True,)))
    check_text(*found.groups, found.container)
    if found.problem:
        check_line(GpuledgerError(found.problem))
    for share in [one for container in found.containers for one in container]:
        check_text(share.uuid)
        assert share.fraction is None or 0 < share.fraction <= 1
        assert share.memory is None or share.memory > 0
    assert found.part is None or found.part.fraction is None or 0 < found.part.fraction <= 1
