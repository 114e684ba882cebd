"""Reading of the kubelet's device plugin checkpoint: its formats, and errors for invalid files."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gpuledger.model.errors import GpuledgerError
from gpuledger.workloads.pod_resources.device_names import KubeletAllocation
from gpuledger.workloads.pod_resources.kubelet_index import read_checkpoint


def written(path: Path, entries: object) -> Path:
    data = {"PodDeviceEntries": entries, "RegisteredDevices": {}}
    file = path / "kubelet_internal_checkpoint"
    file.write_text(json.dumps({"Data": data, "Checksum": 1}))
    return file


def entry(ids: object, **more: object) -> dict[str, object]:
    fields = {"PodUID": "u1", "ContainerName": "main", "ResourceName": "nvidia.com/gpu", "AllocResp": "Cg=="}
    return {**fields, "DeviceIDs": ids, **more}


@pytest.mark.parametrize(
    "ids", [{"0": ["GPU-1"], "1": ["GPU-2"]}, {"-1": ["GPU-1", "GPU-2"]}, ["GPU-1", "GPU-2", "GPU-1"]]
)
def test_device_ids_are_read_by_numa_node_or_from_one_list(tmp_path: Path, ids: object) -> None:
    allocations = read_checkpoint(written(tmp_path, [entry(ids)]))
    assert allocations.found_by == "checkpoint"
    assert allocations.allocations == tuple(
        KubeletAllocation(container="main", resource="nvidia.com/gpu", device_id=one, pod_uid="u1")
        for one in ("GPU-1", "GPU-2")
    )


def test_a_node_without_allocations_has_an_empty_checkpoint(tmp_path: Path) -> None:
    assert len(read_checkpoint(written(tmp_path, None))) == 0


@pytest.mark.parametrize(
    ("bad", "pod"),
    [
        (7, "(no UID), container -"),
        (entry(None), "u1, container main"),
        (entry({"0": 7}), "u1, container main"),
        (entry(["GPU-9"], PodUID=7), "(no UID), container main"),
        (entry(["GPU-9"], ResourceName=""), "u1, container main"),
    ],
)
def test_only_the_invalid_entry_of_a_checkpoint_is_ignored_and_named(
    tmp_path: Path, bad: object, pod: str
) -> None:
    allocations = read_checkpoint(written(tmp_path, [bad, entry(["GPU-1"])]))
    assert [one.device_id for one in allocations] == ["GPU-1"]
    assert [f" pod {pod}, is ignored" in text for text in allocations.ignored] == [True]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"Data":{"PodDevic', "half-written"),
        ("", "half-written"),
        ("[" * 100_000, "half-written"),
        ("[]", "not a device plugin checkpoint"),
        ('{"policyName":"none"}', "not a device plugin checkpoint"),
        ('{"Data":{"PodDeviceEntries":7}}', "not a list"),
    ],
)
def test_a_half_written_or_foreign_file_is_an_error_of_one_line(
    tmp_path: Path, content: str, words: str
) -> None:
    file = tmp_path / "kubelet_internal_checkpoint"
    file.write_text(content)
    with pytest.raises(GpuledgerError, match=words):
        read_checkpoint(file)


def test_a_missing_checkpoint_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(GpuledgerError, match=r"no checkpoint at .*; mount the node's"):
        read_checkpoint(tmp_path / "none")


def test_a_pipe_in_place_of_the_checkpoint_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(
        GpuledgerError, match=r"a pipe without a writer; check that it is the kubelet's checkpoint file"
    ):
        read_checkpoint(tmp_path / "pipe")


def test_replicas_are_counted_among_the_registered_devices(tmp_path: Path) -> None:
    registered = {"nvidia.com/gpu": ["GPU-1::0", "GPU-1::1"], "bad": 5, "null": None}
    data = {"PodDeviceEntries": [], "RegisteredDevices": registered}
    file = tmp_path / "checkpoint"
    file.write_text(json.dumps({"Data": data}))
    assert read_checkpoint(file).replicas == {("nvidia.com/gpu", "gpu-1"): 2}
