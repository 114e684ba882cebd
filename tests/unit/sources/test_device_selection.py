"""`--devices`: what it leaves out is logged once by every source, and reported by doctor."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from builders import gpu
from gpuledger.host.clock import SystemClock
from gpuledger.model.checks import Finding, Verdict
from gpuledger.model.devices import is_selected
from gpuledger.sources.checks import source_checks
from gpuledger.sources.device_selection import DeviceSelection, describe_omission, format_indexes
from gpuledger.sources.settings import SourceSettings
from gpuledger.sources.smi.settings import SmiSettings
from gpuledger.sources.source_factory import open_made_up_source
from nvml.library import NvmlGpu
from nvml.machine import Machine

GPUS = [gpu(index, pci_bus_id=f"00000000:{index:02X}:00.0") for index in range(8)]
LEFT_OUT = "which have no metrics and no row in reports"
UNKNOWN = "which no GPU has as index, UUID or PCI bus id"


@pytest.mark.parametrize(
    ("names", "omission"),
    [
        ((), ""),
        (tuple("01234567"), ""),
        (tuple("0123"), f"--devices leaves out GPUs 4-7 of 8, {LEFT_OUT}"),
        (("GPU-0", "00000000:02:00.0"), f"--devices leaves out GPUs 1, 3-7 of 8, {LEFT_OUT}"),
        (
            ("0000:02:00.0", "03:00.0", "*"),
            f"--devices leaves out GPUs 0-1, 4-7 of 8, {LEFT_OUT} and names *, {UNKNOWN}",
        ),
        ((*"01234567", "GPU-9"), f"--devices names GPU-9, {UNKNOWN}"),
        (
            (*"0123456", "8"),
            f"--devices leaves out GPU 7 of 8, {LEFT_OUT} and names 8, {UNKNOWN}",
        ),
    ],
)
def test_the_omission_names_gpus_and_unknown_names(names: tuple[str, ...], omission: str) -> None:
    assert describe_omission(GPUS, names) == omission


@pytest.mark.parametrize(
    ("name", "selected"),
    [
        *(("00000000:0A:00.0", True), ("0000:0a:00.0", True), ("0A:00.0", True), ("0:0a:00.0", True)),
        *(("0001:0a:00.0", False), ("0a:00.1", False), ("0a:00", False), ("", False), (":0a:00.0", False)),
    ],
)
def test_a_pci_bus_id_selects_in_every_notation(name: str, selected: bool) -> None:
    assert is_selected(gpu(0, pci_bus_id="00000000:0A:00.0"), (name,)) is selected
    assert is_selected(gpu(0, pci_bus_id="0000:0a:00.0"), (name,)) is selected
    assert is_selected(gpu(0, pci_bus_id="00010000:0A:00.0"), ("10000:0a:00.0",))


def test_indexes_are_joined_to_spans() -> None:
    assert format_indexes([5, 0, 1, 2, 9]) == "GPUs 0-2, 5, 9"
    assert format_indexes([3]) == "GPU 3"


def test_an_omission_is_logged_once_and_after_a_change(caplog: pytest.LogCaptureFixture) -> None:
    selection = DeviceSelection(("0",))
    for found in (GPUS[:1], GPUS, GPUS, GPUS[:2]):
        selection.compare(found)
        selection.log_omission()
    said = [record.message for record in caplog.records]
    assert [line.partition(", which")[0] for line in said] == [
        "--devices leaves out GPUs 1-7 of 8",
        "--devices leaves out GPU 1 of 2",
    ]
    assert all(line.endswith("; remove --devices to monitor all GPUs") for line in said)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    made = Machine(tmp_path, monkeypatch)
    made.state.gpus = [NvmlGpu(uuid=f"GPU-{n}", bus=n + 1) for n in range(4)]
    yield made


def test_nvml_logs_at_the_first_tick_what_is_left_out(machine: Any, caplog: pytest.LogCaptureFixture) -> None:
    machine.new_source(slow_interval=10.0, devices=("0", "GPU-1"))
    for _ in range(3):
        machine.tick(seconds=10)
    assert [record.message.partition(",")[0] for record in caplog.records] == [
        "--devices leaves out GPUs 2-3 of 4"
    ]


def findings(source: str, *devices: str) -> list[Finding]:
    (check,) = source_checks(SourceSettings(source=source, devices=devices), SmiSettings(), {})
    return list(check.run())


def test_doctor_warns_about_gpus_of_the_simulator_that_are_left_out() -> None:
    assert [one.verdict for one in findings("simulator:k8s-node")] == [Verdict.WORKS]
    works, omitted = findings("simulator:k8s-node", "0", "1", "2", "3")
    assert (works.verdict, omitted.verdict) == (Verdict.WORKS, Verdict.WARNING)
    assert omitted.why.startswith("--devices leaves out GPUs 4-7 of 8")
    assert omitted.remedy == "remove --devices to monitor all GPUs"


def test_the_simulator_says_nothing_if_all_gpus_are_selected(caplog: pytest.LogCaptureFixture) -> None:
    settings = SourceSettings(source="simulator:k8s-node", devices=tuple("01234567"))
    open_made_up_source(settings, SystemClock()).close()
    assert caplog.records == []
