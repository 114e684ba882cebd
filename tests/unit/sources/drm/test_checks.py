"""What `doctor` says of AMD and Intel GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from drm_machine import metrics_table
from gpuledger.host.files import read_whole
from gpuledger.model.checks import Finding, Verdict
from gpuledger.sources.drm.checks import drm_check, find_drm_problems
from unit.sources.drm.support import DrmNode, hide_process

AMD = "0000:03:00.0"


def findings_of(node: DrmNode) -> list[Finding]:
    return list(find_drm_problems(node.source))


def of(found: list[Finding], check: str) -> list[tuple[Verdict, str]]:
    return [(one.verdict, one.why) for one in found if one.check == check]


@pytest.fixture
def node(tmp_path: Path) -> DrmNode:
    return DrmNode(tmp_path)


def test_a_healthy_card_needs_nothing(node: DrmNode) -> None:
    table = metrics_table((1, 3), energy_accumulator=9 << 16)
    node.machine.add_node(1, 100, location_id=0x300, gfx_target_version=90010)
    node.machine.add_card(0, AMD, "1002:740f", unique_id="a", gpu_metrics=table, gpu_busy_percent=0)
    found = findings_of(node)
    assert {one.verdict for one in found} == {Verdict.WORKS}
    assert of(found, "drm.gpus") == [(Verdict.WORKS, "1 read (0: AMD Instinct MI210)")]
    assert of(found, "drm.energy") == [(Verdict.WORKS, "has a counter")]
    assert of(found, "drm.rocm")[0][1].startswith("0 processes compute")


def test_no_gpu_is_a_failure_with_a_remedy(node: DrmNode) -> None:
    (found,) = drm_check(node.source).run()
    assert (found.verdict, found.what) == (Verdict.FAILS, "AMD and Intel GPUs")
    assert "lspci" in found.remedy and "modprobe amdgpu" in found.remedy


@pytest.mark.parametrize(
    ("hwmon", "verdict", "text"),
    [
        ({"power1_average": 5}, Verdict.WORKS, "no counter: joules are power, summed over time"),
        ({}, Verdict.WARNING, "neither energy nor power"),
    ],
)
def test_how_energy_is_booked_is_said(
    node: DrmNode, hwmon: dict[str, object], verdict: Verdict, text: str
) -> None:
    node.machine.add_card(0, AMD, "1002:7480", hwmon=hwmon, gpu_busy_percent=0)
    ((found, why),) = of(findings_of(node), "drm.energy")
    assert found is verdict
    assert text in why


def test_a_sleeping_gpu_is_no_problem(node: DrmNode) -> None:
    node.machine.add_card(0, AMD, "1002:7480", power__runtime_status="suspended")
    assert of(findings_of(node), "drm.energy") == [(Verdict.WORKS, "the GPU sleeps: nothing was read")]


def test_an_identity_by_address_is_said(node: DrmNode) -> None:
    node.machine.add_card(0, AMD, "1002:7480", gpu_busy_percent=0)
    (_, (verdict, why)) = of(findings_of(node), "drm.gpus")
    assert verdict is Verdict.WARNING
    assert "same uuid" in why


def test_an_identity_with_the_machine_is_no_problem(tmp_path: Path) -> None:
    node = DrmNode(tmp_path, machine="7a1f0c93b2de")
    node.machine.add_card(0, AMD, "1002:7480", gpu_busy_percent=0)
    (_, (verdict, why)) = of(findings_of(node), "drm.gpus")
    assert (verdict, "PCI address and machine" in why) == (Verdict.WORKS, True)


def test_hidden_processes_name_the_missing_permission(node: DrmNode) -> None:
    hide_process(node, 10)
    node.machine.add_card(0, AMD, "1002:740f", gpu_busy_percent=0)
    node.machine.add_process(10)
    (found,) = [one for one in findings_of(node) if one.check == "drm.processes"]
    assert (found.verdict, found.why.split(" ")[0]) == (Verdict.WARNING, "1")
    assert "CAP_SYS_PTRACE" in found.remedy
    assert "hostPID" in found.remedy


def test_kfd_that_cannot_be_read_and_hidden_host_pids_are_warnings(tmp_path: Path) -> None:
    node = DrmNode(tmp_path, sees_host_pids=lambda: False)
    node.machine.add_card(0, AMD, "1002:740f", gpu_busy_percent=0)
    ((verdict, why),) = of(findings_of(node), "drm.rocm")
    assert (verdict, "/sys/class/kfd cannot be read" in why) == (Verdict.WARNING, True)
    node.machine.add_node(1, 100, location_id=0x300)
    (node.machine.sys / "class/drm/card0").rename(node.machine.sys / "class/drm/card1")
    ((verdict, why),) = of(findings_of(node), "drm.rocm")
    assert (verdict, "lists pids of the host" in why) == (Verdict.WARNING, True)


@pytest.mark.parametrize(
    ("code", "remedy"), [(1, "run as root"), (5, "kernel log"), (13, "run as root"), (19, "kernel log")]
)
def test_a_file_that_cannot_be_read_is_named_with_what_it_needs(
    tmp_path: Path, code: int, remedy: str
) -> None:
    def read(path: str) -> bytes:
        if path.endswith("gpu_busy_percent"):
            raise OSError(code, "no")
        return read_whole(path)

    node = DrmNode(tmp_path, read=read)
    node.machine.add_card(0, AMD, "1002:740f", gpu_busy_percent=0)
    (found,) = [one for one in findings_of(node) if one.check == "drm.files"]
    assert (found.verdict, "gpu_busy_percent" in found.why, remedy in found.remedy) == (
        Verdict.WARNING,
        True,
        True,
    )


def test_only_integrated_gpus_beside_those_of_nvidia_are_no_failure(tmp_path: Path) -> None:
    node = DrmNode(tmp_path, skip_integrated=True)
    node.machine.add_card(0, "0000:00:02.0", "8086:a780", "i915")
    ((verdict, why),) = of(findings_of(node), "drm.gpus")
    assert (verdict, "only integrated ones" in why) == (Verdict.WORKS, True)


def test_a_container_without_the_host_s_pids_does_not_see_all_processes(tmp_path: Path) -> None:
    node = DrmNode(tmp_path, sees_host_pids=lambda: False)
    node.machine.add_card(0, AMD, "8086:e20b", "xe")
    (found,) = [one for one in findings_of(node) if one.check == "drm.processes"]
    assert (found.verdict, "hostPID" in found.remedy) == (Verdict.WARNING, True)
