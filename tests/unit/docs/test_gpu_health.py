"""docs/gpu-health.md agrees with what the program says about a GPU."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from gpuledger.model import quantities as q
from gpuledger.model.devices import Gpu
from gpuledger.model.down_reasons import describe_down
from gpuledger.model.gpu_problems import judge_gpu
from gpuledger.model.quantities import Quantity
from gpuledger.model.session import ThrottleRow
from gpuledger.model.snapshot import Reading
from gpuledger.model.xids import XIDS
from gpuledger.sources.simulator.scenario_parser import _FAULTS

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "gpu-health.md").read_text(encoding="utf-8")
SIMULATOR = (ROOT / "docs" / "simulator.md").read_text(encoding="utf-8")


def test_the_table_of_xids_is_generated() -> None:
    assert runpy.run_path(str(ROOT / "dev" / "write_xids.py"))["page"](PAGE) == PAGE, "run `make docs`"


def test_every_xid_has_a_row() -> None:
    cells = re.findall(r"(?m)^\| ([\d, to]+) \|", PAGE)
    numbers: set[int] = set()
    for part in ", ".join(cells).split(", "):
        first, _, last = part.partition(" to ")
        numbers |= set(range(int(first), int(last or first) + 1))
    assert numbers == set(XIDS)


@pytest.mark.parametrize("reason", ["GPU_IS_LOST", "RESET_REQUIRED", "NO_PERMISSION", "UNKNOWN", ""])
def test_every_reason_of_a_gpu_that_is_down_is_explained(reason: str) -> None:
    (section,) = re.findall(r"(?s)## A GPU is down\n(.*?)\n## ", PAGE)
    assert describe_down(reason) in section


PROBLEMS = [
    {q.RECOVERY_ACTION: 1},
    {q.ROW_REMAP_FAILURE: 1},
    {q.ROW_REMAP_PENDING: 1},
    {q.RETIRED_PAGES_PENDING: 1},
    {q.ECC_UNCORRECTED_VOLATILE: 2},
    {q.PCIE_WIDTH: 4, q.PCIE_WIDTH_MAX: 16},
    {q.PCIE_GENERATION: 1, q.PCIE_GENERATION_MAX: 5, q.PCIE_LINK_BUSY: 1},
    {q.NVLINKS_UP: 0b11, q.NVLINKS_DOWN: 0b100},
]
REASONS = ("thermal", "power_brake", "hardware_slowdown", "reliability")


@pytest.mark.parametrize("values", PROBLEMS, ids=str)
def test_every_problem_is_explained(values: dict[Quantity, float]) -> None:
    found = [one for one in judge_gpu(Reading(Gpu("GPU-1", 0), values=values)).values() if one]
    assert [f"**{one.label}**" in PAGE for one in found] == [True]


@pytest.mark.parametrize("reason", REASONS)
def test_every_reason_of_throttling_is_explained(reason: str) -> None:
    row = ThrottleRow(reason, since=1.0, seconds=60.0, observed=60.0, recent=1.0)
    found = [one for one in judge_gpu(Reading(Gpu("GPU-1", 0)), [row]).values() if one]
    assert [f"**{one.label}**" in PAGE for one in found] == [True]


def test_every_kind_of_problem_is_tested_here() -> None:
    everything = Reading(Gpu("GPU-1", 0), values={key: 0.0 for values in PROBLEMS for key in values})
    rows = [ThrottleRow(reason, None, 0.0, 60.0, 0.0) for reason in REASONS]
    assert set(judge_gpu(everything, rows)) >= {"down", "nvlink", "thermal_throttling"}
    assert len(judge_gpu(everything, rows)) == 1 + len(PROBLEMS) + len(REASONS)


@pytest.mark.parametrize("kind", _FAULTS)
def test_every_fault_of_the_simulator_is_documented_with_its_keys(kind: str) -> None:
    (keys,) = re.findall(rf"(?m)^\| [^|]*`{kind}`[^|]* \| (.*?) \|", SIMULATOR)
    assert set(_FAULTS[kind]) - {"gi", "ci"} <= set(re.findall(r"`(\w+)`", keys))
