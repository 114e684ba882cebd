"""The map of what the kubelet handed out: whom it asks, and what stays when nobody answers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from builders import FakeClock
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.settings import build, declared
from gpuledger.workloads.pod_resources.devices import CHECKPOINT, Grant, PodResources
from gpuledger.workloads.pod_resources.map import PodResourcesMap, pod_resources_map
from gpuledger.workloads.pod_resources.settings import PodResourcesSettings
from gpuledger.workloads.pod_resources.unary import CallFailed, Unreachable
from unit.workloads.pod_resources.kubelet_server import kubelet, listed, pod

TOLD = PodResources((Grant("team", "a", "main", "nvidia.com/gpu", "GPU-0"),))
WRITTEN = PodResources((Grant(device_id="GPU-0", pod_uid="u1"),), found_by=CHECKPOINT)


def outcomes(*results: PodResources | Exception) -> Callable[[], PodResources]:
    rest = iter(results)

    def give() -> PodResources:
        result = next(rest)
        if isinstance(result, Exception):
            raise result
        return result

    return give


def a_map(ask: Callable[[], PodResources], checkpoint: Callable[[], PodResources]) -> PodResourcesMap:
    return PodResourcesMap(ask, checkpoint, clock=FakeClock())


def test_the_socket_is_asked_first_and_the_checkpoint_not_at_all() -> None:
    one = a_map(outcomes(TOLD), outcomes())
    assert one.refresh()
    assert one.value is TOLD
    assert (one.health.name, one.health.success, one.health.entries) == ("pod_resources", True, 1)
    assert one.health.error == ""


def test_without_a_socket_the_checkpoint_tells_and_health_says_why() -> None:
    one = a_map(outcomes(Unreachable("no socket; mount it")), outcomes(WRITTEN))
    assert one.refresh()
    assert (one.value.grants, one.value.found_by) == (WRITTEN.grants, "checkpoint")
    assert one.health.success
    assert one.health.error == "no socket; mount it (the checkpoint is read instead)"


def test_once_the_socket_is_back_it_is_believed_again() -> None:
    one = a_map(outcomes(Unreachable("no socket; mount it"), TOLD), outcomes(WRITTEN))
    one.refresh()
    one.refresh()
    assert (one.value, one.health.error) == (TOLD, "")


def test_with_neither_the_socket_is_what_is_complained_of() -> None:
    one = a_map(outcomes(Unreachable("no socket; mount it")), outcomes(GpuledgerError("no checkpoint")))
    assert not one.refresh()
    assert one.health.error == "no socket; mount it"


@pytest.mark.parametrize("error", [GpuledgerError("hangs; see why"), CallFailed("refused; wait", 8)])
def test_a_kubelet_that_fails_otherwise_keeps_its_last_word(error: Exception) -> None:
    one = a_map(outcomes(TOLD, error), outcomes())
    one.refresh()
    assert not one.refresh()
    assert one.value is TOLD
    assert (one.health.success, one.health.error) == (False, str(error))


def test_the_settings_make_a_map_of_a_real_socket_and_file() -> None:
    with TemporaryDirectory(dir="/tmp") as folder:
        path, file = Path(folder) / "kubelet.sock", Path(folder) / "checkpoint"
        entry = {
            "PodUID": "u1",
            "ContainerName": "main",
            "ResourceName": "nvidia.com/gpu",
            "DeviceIDs": ["GPU-2"],
        }
        file.write_text(json.dumps({"Data": {"PodDeviceEntries": [entry]}}))
        one = pod_resources_map(PodResourcesSettings(str(path), str(file)), clock=FakeClock())
        with kubelet(path, List=lambda _: listed(pod("a", "GPU-1"))):
            assert one.refresh()
            assert [grant.device_id for grant in one.value] == ["GPU-1"]
        assert one.refresh()
        assert [grant.device_id for grant in one.value] == ["GPU-2"]


def test_what_speaks_grpc_is_not_loaded_before_it_is_needed() -> None:
    code = (
        "import sys\n"
        "import gpuledger.workloads.pod_resources.map, gpuledger.workloads.pod_resources.checks\n"
        "import gpuledger.workloads.pod_resources.allocations\n"
        "print(sorted({name.split('.')[0] for name in sys.modules} & {'h2', 'google', 'hpack'}))\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


SETTINGS = {item.key: item for _, item, _ in declared(PodResourcesSettings)}


def test_the_socket_may_be_written_as_a_url() -> None:
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
    with pytest.raises(ValueError, match="wanted"):
        SETTINGS[key].parse(value)


def test_the_names_of_resources_are_a_list() -> None:
    parsed = SETTINGS["kubernetes.resources"].parse("nvidia.com/gpu,aaa.com/mig-*")
    made = build(PodResourcesSettings, {"kubernetes.resources": parsed})
    assert made.resources == ("nvidia.com/gpu", "aaa.com/mig-*")
