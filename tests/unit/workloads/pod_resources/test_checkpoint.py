"""The kubelet's checkpoint of device plugins: its forms, and what is said of a file that is not one."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gpuledger.model.errors import GpuledgerError
from gpuledger.workloads.pod_resources.devices import Grant
from gpuledger.workloads.pod_resources.map import read_checkpoint


def written(path: Path, entries: object) -> Path:
    data = {"PodDeviceEntries": entries, "RegisteredDevices": {}}
    file = path / "kubelet_internal_checkpoint"
    file.write_text(json.dumps({"Data": data, "Checksum": 1}))
    return file


def entry(ids: object, **more: object) -> dict[str, object]:
    told = {"PodUID": "u1", "ContainerName": "main", "ResourceName": "nvidia.com/gpu", "AllocResp": "Cg=="}
    return {**told, "DeviceIDs": ids, **more}


@pytest.mark.parametrize(
    "ids", [{"0": ["GPU-1"], "1": ["GPU-2"]}, {"-1": ["GPU-1", "GPU-2"]}, ["GPU-1", "GPU-2", "GPU-1"]]
)
def test_ids_are_told_by_numa_node_or_in_one_list(tmp_path: Path, ids: object) -> None:
    told = read_checkpoint(written(tmp_path, [entry(ids)]))
    assert told.found_by == "checkpoint"
    assert told.grants == tuple(
        Grant(container="main", resource="nvidia.com/gpu", device_id=one, pod_uid="u1")
        for one in ("GPU-1", "GPU-2")
    )


def test_a_node_where_nothing_was_handed_out_yet(tmp_path: Path) -> None:
    assert len(read_checkpoint(written(tmp_path, None))) == 0


@pytest.mark.parametrize("bad", [7, entry(None), entry({"0": 7}), entry(["GPU-9"], PodUID=7)])
def test_a_bad_entry_is_lost_alone(tmp_path: Path, bad: object) -> None:
    told = read_checkpoint(written(tmp_path, [bad, entry(["GPU-1"])]))
    assert [one.device_id for one in told] == ["GPU-1"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"Data":{"PodDevic', "half written"),
        ("", "half written"),
        ("[" * 100_000, "half written"),
        ("[]", "no checkpoint"),
        ('{"policyName":"none"}', "no checkpoint"),
        ('{"Data":{"PodDeviceEntries":7}}', "no list"),
    ],
)
def test_a_half_written_or_foreign_file_is_one_line(tmp_path: Path, content: str, words: str) -> None:
    file = tmp_path / "kubelet_internal_checkpoint"
    file.write_text(content)
    with pytest.raises(GpuledgerError, match=words):
        read_checkpoint(file)


def test_a_file_that_is_not_there_is_told_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(GpuledgerError, match=r"no checkpoint at .*; mount the node's"):
        read_checkpoint(tmp_path / "none")


def test_a_pipe_in_its_place_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(GpuledgerError, match=r"nobody writes; see that it is the kubelet's"):
        read_checkpoint(tmp_path / "pipe")
