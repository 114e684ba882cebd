"""The PCIe link in nvidia-smi's outputs: generation, lanes, whether the GPU was busy, and the slot."""

from __future__ import annotations

import pytest

from builders import FakeClock, gpu
from gpuledger.model import quantities as q
from gpuledger.model.gpu_problems import judge_gpu
from gpuledger.sources.findings import SourceFindings
from gpuledger.sources.smi.parsed_gpus import parse_values
from gpuledger.sources.smi.settings import SmiSettings
from gpuledger.sources.smi.source import SmiSource
from smi.recorded import ALL, FIXTURES, FirstSeenHost, Recorded

XML = {
    "pci/pci_gpu_link_info/pcie_gen/current_link_gen": "1",
    "pci/pci_gpu_link_info/pcie_gen/max_link_gen": "3",
    "pci/pci_gpu_link_info/pcie_gen/max_device_link_gen": "4",
    "pci/pci_gpu_link_info/link_widths/current_link_width": "8x",
    "pci/pci_gpu_link_info/link_widths/max_link_width": "16x",
    "performance_state": "P0",
    "utilization/gpu_util": "40 %",
}
REPORT = {
    "pci/gpu_link_info/pcie_generation/current": "1",
    "pci/gpu_link_info/pcie_generation/max": "3",
    "pci/gpu_link_info/pcie_generation/device_max": "4",
    "pci/gpu_link_info/link_width/current": "8x",
    "pci/gpu_link_info/link_width/max": "16x",
    "performance_state": "P0",
    "utilization/gpu": "40 %",
}
CSV = {
    "pcie.link.gen.current": "1",
    "pcie.link.gen.max": "3",
    "pcie.link.gen.gpumax": "4",
    "pcie.link.width.current": "8",
    "pcie.link.width.max": "16",
    "pstate": "P0",
    "utilization.gpu": "40 %",
}
LINK = (
    q.PCIE_GENERATION,
    q.PCIE_GENERATION_MAX,
    q.PCIE_GENERATION_GPU_MAX,
    q.PCIE_WIDTH,
    q.PCIE_WIDTH_MAX,
    q.PCIE_LINK_BUSY,
)


def link_of(cells: dict[str, str]) -> tuple[float | None, ...]:
    findings = SourceFindings()
    values, _ = parse_values(gpu(0), cells, frozenset(LINK), findings)
    assert not findings.invalid and not findings.failures
    return tuple(values.get(quantity) for quantity in LINK)


@pytest.mark.parametrize("cells", [XML, REPORT, CSV], ids=["xml", "report", "csv"])
def test_each_format_has_the_link(cells: dict[str, str]) -> None:
    assert link_of(cells) == (1, 3, 4, 8, 16, 1)


@pytest.mark.parametrize(
    ("changes", "busy"),
    [
        ({"pstate": "P8"}, 0),
        ({"utilization.gpu": "0 %"}, 0),
        ({"pstate": "[N/A]"}, None),
        ({"utilization.gpu": "[N/A]"}, None),
        ({"utilization.gpu": "[N/A]", "mig.mode.current": "Enabled"}, 1),
    ],
)
def test_a_gpu_is_busy_with_work_at_the_highest_performance_state(
    changes: dict[str, str], busy: float | None
) -> None:
    assert link_of(CSV | changes)[-1] == busy


@pytest.mark.parametrize("cell", ["N/A", "[N/A]", "[Not Supported]", "[GPU is lost]", ""])
def test_a_missing_link_is_absent(cell: str) -> None:
    findings = SourceFindings()
    values, _ = parse_values(gpu(0), dict.fromkeys(XML, cell), frozenset(LINK), findings)
    assert values == {} and not findings.invalid


@pytest.mark.parametrize(("lanes", "degraded"), [(8, False), (16, True), (None, True)])
def test_a_card_in_a_narrow_slot_is_not_degraded(lanes: int | None, degraded: bool) -> None:
    text = (FIXTURES / "cards" / "xml").read_text()
    widths = "<max_link_width>16x</max_link_width><current_link_width>8x</current_link_width>"
    link = f"<pci><pci_gpu_link_info><link_widths>{widths}</link_widths></pci_gpu_link_info>"
    run = Recorded("cards", xml=text.replace("<pci>", link, 1))
    slots = {"00000000:01:00.0": lanes}
    source = SmiSource(SmiSettings(), (), FirstSeenHost(), FakeClock(), run, slot_width=slots.get)
    first, *_ = source.read(ALL).readings
    assert (judge_gpu(first)["pcie_width"] is not None) == degraded
