"""KubeletIndex: socket first, checkpoint as fallback, last value on other failures."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from builders import FakeClock
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.settings import build_settings, declared_settings
from gpuledger.workloads.pod_resources import kubelet_pb2 as wire
from gpuledger.workloads.pod_resources.device_names import (
    FOUND_BY_CHECKPOINT,
    ClaimedDevice,
    KubeletAllocation,
    PodResources,
)
from gpuledger.workloads.pod_resources.grpc_call import GrpcCallFailed, KubeletUnreachable
from gpuledger.workloads.pod_resources.kubelet_index import KubeletIndex, open_kubelet_index
from gpuledger.workloads.pod_resources.settings import PodResourcesSettings
from unit.workloads.pod_resources.kubelet_server import kubelet, listed, pod

LISTED = PodResources((KubeletAllocation("team", "a", "main", "nvidia.com/gpu", "GPU-0"),))
WRITTEN = PodResources((KubeletAllocation(device_id="GPU-0", pod_uid="u1"),), found_by=FOUND_BY_CHECKPOINT)


def outcomes(*results: PodResources | Exception) -> Callable[[], PodResources]:
    rest = iter(results)

    def next_outcome() -> PodResources:
        result = next(rest)
        if isinstance(result, Exception):
            raise result
        return result

    return next_outcome


def kubelet_index(
    list_allocations: Callable[[], PodResources], read_checkpoint: Callable[[], PodResources]
) -> KubeletIndex:
    return KubeletIndex(list_allocations, read_checkpoint, clock=FakeClock())


def test_the_checkpoint_is_not_read_while_the_socket_works() -> None:
    index = kubelet_index(outcomes(LISTED), outcomes())
    assert index.refresh()
    assert index.value is LISTED
    assert (index.health.name, index.health.success, index.health.entries) == ("pod_resources", True, 1)
    assert index.health.error == ""


def test_an_ignored_entry_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    strange = replace(WRITTEN, ignored=("entry 1 is ignored",))
    index = kubelet_index(outcomes(*[KubeletUnreachable("none")] * 3), outcomes(strange, strange, WRITTEN))
    for _ in range(3):
        index.refresh()
    assert caplog.messages.count("entry 1 is ignored") == 1


def test_without_a_socket_the_checkpoint_is_read_and_health_has_the_error() -> None:
    index = kubelet_index(outcomes(KubeletUnreachable("no socket; mount it")), outcomes(WRITTEN))
    assert index.refresh()
    assert (index.value.allocations, index.value.found_by) == (WRITTEN.allocations, "checkpoint")
    assert index.health.success
    assert index.health.error == "no socket; mount it (the checkpoint is read instead)"


def test_devices_allocated_by_dra_stand_for_five_minutes_beside_the_checkpoint() -> None:
    """The checkpoint is that of device plugins: a kubelet that restarts has taken no claim from its pod."""
    claimed = KubeletAllocation(
        "team", "b", "main", claimed_device=ClaimedDevice("gpu.nvidia.com", "n", "gpu-1")
    )
    away, clock = KubeletUnreachable("refused"), FakeClock()
    both = PodResources((*LISTED.allocations, claimed))
    index = KubeletIndex(
        outcomes(both, away, away, both, away, LISTED, away),
        outcomes(*[WRITTEN] * 4),
        clock=clock,
    )
    seen = []
    for seconds in (0, 10, 290, 10, 299, 10, 301):
        clock.advance(seconds)
        index.refresh()
        seen.append((claimed in index.value.allocations, index.value.lacks_claims))
    has, lacks, none = (True, False), (False, True), (False, False)
    assert seen == [has, has, lacks, has, has, none, none]


def test_a_recovered_socket_replaces_the_checkpoint() -> None:
    index = kubelet_index(outcomes(KubeletUnreachable("no socket; mount it"), LISTED), outcomes(WRITTEN))
    index.refresh()
    index.refresh()
    assert (index.value, index.health.error) == (LISTED, "")


def test_without_socket_and_checkpoint_the_error_is_that_of_the_socket() -> None:
    index = kubelet_index(
        outcomes(KubeletUnreachable("no socket; mount it")), outcomes(GpuledgerError("no checkpoint"))
    )
    assert not index.refresh()
    assert index.health.error == "no socket; mount it"


@pytest.mark.parametrize("error", [GpuledgerError("hangs; see why"), GrpcCallFailed("refused; wait", 8)])
def test_other_kubelet_failures_keep_the_last_value(error: Exception) -> None:
    index = kubelet_index(outcomes(LISTED, error), outcomes())
    index.refresh()
    assert not index.refresh()
    assert index.value is LISTED
    assert (index.health.success, index.health.error) == (False, str(error))


def test_the_kubelet_index_reads_a_real_socket_and_a_real_checkpoint() -> None:
    with TemporaryDirectory(dir="/tmp") as folder:
        path, file = Path(folder) / "kubelet.sock", Path(folder) / "checkpoint"
        entry = {
            "PodUID": "u1",
            "ContainerName": "main",
            "ResourceName": "nvidia.com/gpu",
            "DeviceIDs": ["GPU-2"],
        }
        file.write_text(json.dumps({"Data": {"PodDeviceEntries": [entry]}}))
        index = open_kubelet_index(PodResourcesSettings(str(path), str(file)), clock=FakeClock())
        with kubelet(path, List=lambda _: listed(pod("a", "GPU-1"))):
            assert index.refresh()
            assert [allocation.device_id for allocation in index.value] == ["GPU-1"]
        assert index.refresh()
        assert [allocation.device_id for allocation in index.value] == ["GPU-2"]


def test_grpc_modules_are_not_loaded_before_the_first_read() -> None:
    code = (
        "import sys\n"
        "import gpuledger.workloads.pod_resources.kubelet_index, gpuledger.workloads.pod_resources.checks\n"
        "import gpuledger.workloads.pod_resources.allocation_matching\n"
        "print(sorted({name.split('.')[0] for name in sys.modules} & {'h2', 'google', 'hpack'}))\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


SETTINGS = {item.key: item for _, item, _ in declared_settings(PodResourcesSettings)}


def test_the_socket_setting_accepts_a_url() -> None:
    assert SETTINGS["kubernetes.pod_resources_socket"].parse("unix:///run/k.sock") == "/run/k.sock"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("kubernetes.pod_resources_socket", "kubelet.sock"),
        ("kubernetes.resources", "nvidia.com/*/x"),
        ("kubernetes.resources", ""),
        ("kubernetes.pod_resources_period", "0s"),
    ],
)
def test_a_setting_that_cannot_be_meant_is_refused(key: str, value: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        SETTINGS[key].parse(value)


def test_resource_names_are_a_comma_separated_list() -> None:
    parsed = SETTINGS["kubernetes.resources"].parse("nvidia.com/gpu,aaa.com/mig-*")
    made = build_settings(PodResourcesSettings, {"kubernetes.resources": parsed})
    assert made.resources == ("nvidia.com/gpu", "aaa.com/mig-*")


def test_the_last_known_number_of_replicas_remains_in_force() -> None:
    """A plugin that restarts has no devices for a moment."""
    four, two = {("nvidia.com/gpu", "gpu-0"): 4}, {("nvidia.com/gpu", "gpu-1"): 2}
    index = kubelet_index(
        outcomes(*(replace(LISTED, replicas=found) for found in (four, {}, two))), outcomes()
    )
    seen = []
    for _ in range(3):
        index.refresh()
        seen.append(index.value.replicas)
    assert seen == [four, four, four | two]


def test_replicas_are_counted_among_the_allocatable_devices(tmp_path: Path) -> None:
    ids = ["GPU-1::0", "GPU-1::1", "GPU-1::2", "GPU-2"]
    devices = [wire.ContainerDevices(resource_name="nvidia.com/gpu", device_ids=ids)]
    body = wire.AllocatableResourcesResponse(devices=devices).SerializeToString()
    settings = PodResourcesSettings(socket=str(tmp_path / "k.sock"))
    index = open_kubelet_index(settings, clock=FakeClock())
    with kubelet(
        tmp_path / "k.sock",
        List=lambda _: listed(pod("a", "GPU-1::0")),
        GetAllocatableResources=lambda _: body,
    ):
        assert index.refresh()
    assert index.value.replicas == {("nvidia.com/gpu", "gpu-1"): 3, ("nvidia.com/gpu", "gpu-2"): 1}


def test_a_kubelet_without_allocatable_devices_has_its_allocations(tmp_path: Path) -> None:
    index = open_kubelet_index(PodResourcesSettings(socket=str(tmp_path / "k.sock")), clock=FakeClock())
    with kubelet(tmp_path / "k.sock", List=lambda _: listed(pod("a", "GPU-1::0"))):
        assert index.refresh()
    assert (len(index.value), index.value.replicas) == (1, {})
