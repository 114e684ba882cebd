"""What the checks say about cards, drivers and faults of the test NVML library."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvml.cards import CARDS
from nvml.library import NvmlGpu, NvmlProcess, count
from nvml.machine import Machine
from observing import findings, observe, verdicts

BUSY = (NvmlProcess(11, sm=30), NvmlProcess(12, sm=20), NvmlProcess(13, types="CG"))
NOT_SUPPORTED, NO_PERMISSION, LOST = 3, 4, 15
METERS = ("nvmlDeviceGetTotalEnergyConsumption", "field.83", "nvmlDeviceGetPowerUsage")
LISTS = tuple(f"nvmlDeviceGet{kind}RunningProcesses_v3" for kind in ("Compute", "Graphics", "MPSCompute"))
SAMPLES = ("nvmlDeviceGetProcessesUtilizationInfo", "nvmlDeviceGetProcessUtilization")
HEALTHY = {
    "functions": "works",
    "values": "works",
    "energy_counter": "works",
    "energy_power": "works",
    "samples": "works",
    "lists": "works",
    "types": "works",
    "mps": "skipped",
    "profiling": "works",
    "energy_accounts": "works",
    "time_accounts": "works",
    "cost": "works",
}


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def busy(**numbers: int) -> NvmlGpu:
    return NvmlGpu(*BUSY, activity=50.0, utilization=50, **numbers)


def test_a_busy_gpu_passes_every_check(machine: Machine) -> None:
    found = observe(machine, busy(), busy())
    assert verdicts(found) == HEALTHY
    texts = {check: finding.why for check, finding in findings(found).items()}
    assert texts["lists"] == "GPUs 0-1: complete, also if they are longer than the first buffer"
    assert texts["types"] == "4 C, 2 C+G"
    assert texts["samples"].startswith("GPUs 0-1: one about every 170 ms")
    # The test library adds energy at each reading.
    assert texts["energy_counter"].endswith("faster than can be measured")


def test_nothing_is_changed_even_if_the_settings_enable_accounting(machine: Machine) -> None:
    observe(machine, busy())
    assert count(machine.library, "nvmlDeviceSetAccountingMode") == 0
    assert count(machine.library, "nvmlDeviceGetAccountingMode") > 0


@pytest.mark.parametrize("card", CARDS)
def test_what_a_card_lacks_is_no_failure(machine: Machine, card: str) -> None:
    found = verdicts(observe(machine, CARDS[card]()))
    assert {check: verdict for check, verdict in found.items() if verdict not in ("works", "skipped")} == {}


@pytest.mark.parametrize(
    ("variant", "lacking"),
    [
        ("old", "nvmlDeviceGetFieldValues"),
        ("r535", "lacks 1, and older functions return the same values"),
        ("newer", "lacks nvmlDeviceGetApplicationsClock"),
    ],
)
def test_drivers_with_other_functions_and_structures_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variant: str, lacking: str
) -> None:
    found = findings(observe(Machine(tmp_path, monkeypatch, variant), busy()))
    assert lacking in found["functions"].why
    read = {check: finding.verdict.value for check, finding in found.items() if check != "functions"}
    # GPM came with driver 520.
    expected = {**HEALTHY, "profiling": "skipped"} if variant == "old" else HEALTHY
    assert read == {check: verdict for check, verdict in expected.items() if check != "functions"}


def test_the_refresh_of_a_counter_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = findings(observe(Machine(tmp_path, monkeypatch, "newer"), busy()))
    assert found["energy_counter"].why == "GPU 0: refreshed about every 100 ms"


@pytest.mark.parametrize(
    ("errors", "code", "expected"),
    [
        # Before Volta: no counter, but power.
        (METERS[:2], NOT_SUPPORTED, {"energy_counter": "skipped", "energy_power": "skipped"}),
        # vGPU guests: no meter at all, no lists, no samples.
        (
            (*METERS, *LISTS, *SAMPLES),
            NOT_SUPPORTED,
            {
                "values": "warning",
                "energy_counter": "warning",
                "energy_power": "skipped",
                "lists": "warning",
                "samples": "skipped",
                "types": "skipped",
                "energy_accounts": "skipped",
            },
        ),
        (
            (*LISTS, *SAMPLES),
            NO_PERMISSION,
            {
                "values": "warning",
                "lists": "fails",
                "samples": "warning",
                "types": "skipped",
                "energy_accounts": "unknown",
            },
        ),
        (("nvmlGpmQueryDeviceSupport",), NOT_SUPPORTED, {"profiling": "skipped"}),
        (("nvmlGpmMetricsGet",), NOT_SUPPORTED, {"profiling": "skipped"}),
    ],
)
def test_calls_that_fail(
    machine: Machine, errors: tuple[str, ...], code: int, expected: dict[str, str]
) -> None:
    found = verdicts(observe(machine, busy(), errors=dict.fromkeys(errors, code)))
    assert found == HEALTHY | expected


def test_missing_permissions_have_one_remedy(machine: Machine) -> None:
    found = findings(observe(machine, busy(), errors=dict.fromkeys((*LISTS, *SAMPLES), NO_PERMISSION)))
    remedies = {finding.remedy for finding in found.values() if finding.verdict.value in ("warning", "fails")}
    assert remedies == {"run as root; in a container also without dropped capabilities"}


def test_an_idle_gpu_has_no_samples_to_judge(machine: Machine) -> None:
    found = findings(observe(machine, NvmlGpu()))
    assert found["samples"].verdict.value == "skipped"
    assert "run the test while the GPU works" in found["samples"].why


def test_a_gpu_that_is_lost_fails(machine: Machine) -> None:
    gpu = busy()
    gpu.errors["nvmlDeviceGetPowerUsage"] = LOST
    found = findings(observe(machine, gpu, busy()))
    assert (found["values"].what, found["values"].verdict.value) == ("GPU 0", "fails")


def test_impossible_values_are_named(machine: Machine) -> None:
    found = findings(observe(machine, busy(temperature=3000)))
    assert found["values"].verdict.value == "warning"
    assert "impossible values" in found["values"].why


def test_a_counter_that_does_not_follow_power_is_shown(machine: Machine) -> None:
    gpu = busy()
    gpu.answers["nvmlDeviceGetPowerUsage"] = 300_000
    found = findings(observe(machine, gpu, seconds=10.0))["energy_power"]
    assert found.verdict.value == "warning"
    assert "(-67%)" in found.why


def test_clients_of_mps_are_counted(machine: Machine) -> None:
    gpu = busy()
    gpu.processes = [NvmlProcess(20, types="M", sm=50), NvmlProcess(21, types="M")]
    found = findings(observe(machine, gpu))
    assert found["mps"].why == "0 server(s), 2 client(s), 1 with own utilization"


def test_no_finding_names_a_uuid(machine: Machine) -> None:
    gpu = busy(temperature=3000)
    gpu.errors |= dict.fromkeys((*LISTS, "nvmlDeviceGetPowerUsage", "nvmlDeviceGetFanSpeed"), 999)
    texts = [f"{finding.what} {finding.why}" for finding in findings(observe(machine, gpu)).values()]
    assert [text for text in texts if "GPU-0000" in text] == []
