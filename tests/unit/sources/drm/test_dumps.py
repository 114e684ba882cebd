"""Published dumps of cards, read by the source: each value against that of LACT and the expected ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from drm_machine import load_dump
from gpuledger.host.files import read_whole
from gpuledger.model import quantities as q
from gpuledger.model.quantities import Quantity
from gpuledger.model.snapshot import Reading
from unit.sources.drm.support import DrmNode

AMD = [
    "phoenix",
    "r7-240",
    "rx580",
    "rx6900xt",
    "rx7600s",
    "rx7800xt",
    "rx9070",
    "strixpoint",
    "vangogh",
    "vega56",
]
INTEL = ["a380-i915", "a380-xe", "b580", "b580-6.16", "cometlake", "tigerlake"]
INTEGRATED = {"phoenix", "strixpoint", "vangogh", "cometlake", "tigerlake"}
MHZ = 1_000_000
NAVI = {"rx6900xt", "rx7600s", "rx7800xt", "rx9070"}


def read_dump(folder: Path, name: str) -> Reading:
    node = DrmNode(folder)
    node.machine.add_dump(name)
    (reading,) = node.read().readings
    return reading


@pytest.mark.parametrize("name", AMD)
def test_an_amd_card_has_the_values_that_lact_reads(tmp_path: Path, name: str) -> None:
    reading, stats = read_dump(tmp_path, name), load_dump(name)["lact"]["stats"]
    power, temps = stats.get("power", {}), stats.get("temps", {})
    clocks, vram = stats.get("clockspeed", {}), stats.get("vram", {})
    expected: dict[Quantity, float | None] = {
        q.UTILIZATION: None if stats.get("busy_percent") is None else stats["busy_percent"] / 100,
        q.POWER: power.get("average"),
        q.POWER_INSTANT: power.get("current"),
        q.POWER_LIMIT: power.get("cap_current"),
        q.POWER_LIMIT_MAX: power.get("cap_max"),
        q.POWER_LIMIT_MIN: power.get("cap_min"),
        q.POWER_LIMIT_DEFAULT: power.get("cap_default"),
        q.TEMPERATURE: temps["edge"]["current"],
        q.MEMORY_TEMPERATURE: temps.get("mem", {}).get("current"),
        q.MEMORY_TOTAL: vram.get("total"),
        q.MEMORY_USED: vram.get("used"),
    }
    assert {quantity: reading.get(quantity) for quantity in expected} == expected
    # LACT rounds down.
    assert int((reading.get(q.GRAPHICS_CLOCK) or 0) // MHZ) == clocks["gpu_clockspeed"]
    if "vram_clockspeed" in clocks:
        assert reading.get(q.MEMORY_CLOCK) == clocks["vram_clockspeed"] * MHZ
    fan = stats.get("fan", {})
    if fan.get("speed_max"):
        assert reading.get(q.FAN_SPEED) == fan["speed_current"] / fan["speed_max"]
    elif fan.get("pwm_max"):
        assert reading.get(q.FAN_SPEED) == fan["pwm_current"] / fan["pwm_max"]
    else:
        assert q.FAN_SPEED not in reading.values


@pytest.mark.parametrize("name", AMD)
def test_no_published_dump_has_an_energy_counter_with_a_known_unit(tmp_path: Path, name: str) -> None:
    reading = read_dump(tmp_path, name)
    assert q.ENERGY not in reading.values
    assert reading.supported["energy"] is False


@pytest.mark.parametrize("name", INTEL)
def test_an_intel_card_has_its_expected_values(tmp_path: Path, name: str) -> None:
    reading, expected = read_dump(tmp_path, name), load_dump(name)["expected"]
    labels = {expected.get(f"temp{number}_label"): number for number in range(1, 16)}
    core = expected.get(f"temp{labels.get('pkg', 1)}_input")
    memory = expected.get(f"temp{labels['vram']}_input") if "vram" in labels else None
    assert reading.get(q.TEMPERATURE) == (None if core is None else int(core) / 1000)
    assert reading.get(q.MEMORY_TEMPERATURE) == (None if memory is None else int(memory) / 1000)
    joules = expected.get("energy1_joules") or expected.get("energy2_joules")
    assert reading.get(q.ENERGY) == (None if joules is None else int(joules * 1000))
    limits = [expected.get(f"power{number}_{kind}") for kind in ("max", "cap") for number in (1, 2)]
    limit = next((int(found) / 1e6 for found in limits if found and int(found)), None)
    assert reading.get(q.POWER_LIMIT) == limit
    if expected.get("fan1_max"):
        assert reading.get(q.FAN_SPEED) == int(expected["fan1_input"]) / int(expected["fan1_max"])
    else:
        assert q.FAN_SPEED not in reading.values


@pytest.mark.parametrize(
    ("name", "clock", "highest"),
    [
        ("a380-i915", 600, 2450),
        ("a380-xe", 0, 2450),
        ("b580", 0, 2850),
        ("b580-6.16", 400, 2850),
        ("cometlake", 300, 1150),
        ("tigerlake", 0, 1300),
    ],
)
def test_clocks_of_intel_are_those_of_the_graphics_engine(
    tmp_path: Path, name: str, clock: int, highest: int
) -> None:
    reading = read_dump(tmp_path, name)
    assert reading.get(q.GRAPHICS_CLOCK) == clock * MHZ
    assert reading.get(q.MAX_GRAPHICS_CLOCK) == highest * MHZ


@pytest.mark.parametrize("name", [*AMD, *INTEL])
def test_what_a_card_does_not_have_is_absent_and_named(tmp_path: Path, name: str) -> None:
    reading = read_dump(tmp_path, name)
    for key, supported in reading.supported.items():
        assert supported == (q.QUANTITIES[key] in reading.values), key
    assert q.ECC_UNCORRECTED_VOLATILE not in reading.values
    # Memory temperature and fans exist on cards only.
    if name in INTEGRATED:
        assert not {q.MEMORY_TEMPERATURE, q.FAN_SPEED} & reading.values.keys()


@pytest.mark.parametrize("name", [*AMD, *INTEL])
def test_identity_and_maker_of_a_dump(tmp_path: Path, name: str) -> None:
    gpu, model = read_dump(tmp_path, name).device.gpu, load_dump(name)["pci_model"]
    vendor = "amd" if name in AMD else "intel"
    assert gpu.vendor == vendor
    if name == "rx6900xt":
        assert gpu.uuid == "GPU-946d7e1ef9b172dd"
        assert gpu.name == "AMD Radeon RX 6800/6800 XT / 6900 XT"
    else:
        # LACT removed the unique ids, and Intel has none.
        ids = f"{model['vendor_id']}:{model['model_id']}".lower()
        assert gpu.uuid == f"PCI-{gpu.pci_bus_id}-{ids}"
    if name not in ("rx6900xt", "b580", "b580-6.16"):
        assert gpu.name == f"{'AMD' if vendor == 'amd' else 'Intel'} [{ids}]"


@pytest.mark.parametrize("name", sorted(INTEGRATED))
def test_integrated_gpus_can_be_left_out(tmp_path: Path, name: str) -> None:
    node = DrmNode(tmp_path, skip_integrated=True)
    node.machine.add_dump(name)
    node.machine.add_dump("rx580", 7)
    assert [reading.device.gpu.minor for reading in node.read().readings] == [7]


def test_finding_integrated_gpus_wakes_no_card(tmp_path: Path) -> None:
    opened: list[str] = []

    def read(path: str) -> bytes:
        opened.append(path)
        return read_whole(path)

    node = DrmNode(tmp_path, skip_integrated=True, read=read)
    node.machine.add_dump("rx7600s")
    (number,) = [path.name for path in (node.machine.sys / "class/drm").iterdir()]
    node.machine.write(f"sys/class/drm/{number}/device/power/runtime_status", "suspended\n")
    (reading,) = node.read().readings
    assert reading.values == {q.UTILIZATION: 0.0}
    assert not [path for path in opened if path.endswith(("gpu_metrics", "_input", "pp_dpm_pcie"))]


@pytest.mark.parametrize("name", sorted({*AMD, *INTEL} - INTEGRATED))
def test_cards_are_not_taken_for_integrated_gpus(tmp_path: Path, name: str) -> None:
    node = DrmNode(tmp_path, skip_integrated=True)
    node.machine.add_dump(name)
    assert len(node.read().readings) == 1
