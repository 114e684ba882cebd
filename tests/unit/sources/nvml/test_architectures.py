"""What a card of each architecture and its Instances report, and what they lack."""

import pytest

from gpuledger.model import quantities as q
from gpuledger.model.quantities import Level
from gpuledger.sources.nvml.queries import GPM_QUERIES
from nvml.cards import CARDS
from nvml.machine import ALL, Machine, reading_of

GPM = {metric.quantity for metric in GPM_QUERIES}
OF_INSTANCES = {quantity for quantity in ALL if quantity.level is Level.INSTANCE}
MEMORY = {q.MEMORY_TOTAL, q.MEMORY_USED, q.MEMORY_FREE, q.MEMORY_RESERVED}
BAR1 = {q.BAR1_TOTAL, q.BAR1_USED, q.BAR1_FREE}
PAGES = {q.RETIRED_PAGES_CORRECTABLE, q.RETIRED_PAGES_UNCORRECTABLE, q.RETIRED_PAGES_PENDING}
ROWS = {
    q.REMAPPED_ROWS_CORRECTABLE,
    q.REMAPPED_ROWS_UNCORRECTABLE,
    q.ROW_REMAP_PENDING,
    q.ROW_REMAP_FAILURE,
}
ECC = {q.ECC_CORRECTED, q.ECC_UNCORRECTED, q.ECC_CORRECTED_VOLATILE, q.ECC_UNCORRECTED_VOLATILE}
NVLINKS = {
    q.NVLINKS_UP,
    q.NVLINKS_DOWN,
    q.NVLINK_SPEED,
    q.NVLINK_TX,
    q.NVLINK_RX,
    q.NVLINK_RATE,
    q.NVLINK_CRC_FLIT_ERRORS,
    q.NVLINK_CRC_DATA_ERRORS,
    q.NVLINK_REPLAY_ERRORS,
    q.NVLINK_RECOVERY_ERRORS,
}
LIMITS = {
    q.POWER_LIMIT,
    q.POWER_LIMIT_MANAGEMENT,
    q.POWER_LIMIT_MIN,
    q.POWER_LIMIT_MAX,
    q.POWER_LIMIT_DEFAULT,
}
MIG = {q.MIG_MODE, q.MIG_MAX_SLICES}
WHOLE_ONLY = {quantity for quantity in ALL if not quantity.under_mig}
FAN = {q.FAN_SPEED}
# Computed from the byte counters of Ampere and later.
COUNTED = {q.PCIE_TX_RATE, q.PCIE_RX_RATE}
MEMORY_CLOCKS = {q.MEMORY_CLOCK, q.MAX_MEMORY_CLOCK, q.APP_MEMORY_CLOCK}

LACKS = {
    "volta": FAN | ROWS | MIG | GPM | {q.PCIE_TX, q.PCIE_RX, q.POWER_INSTANT},
    "ampere": (FAN | PAGES | GPM) - COUNTED,
    "ampere-mig": (FAN | PAGES | GPM | WHOLE_ONLY) - COUNTED,
    "hopper": FAN | PAGES,
    "hopper-mig": FAN | PAGES | WHOLE_ONLY,
    "ada-consumer": (PAGES | ROWS | ECC | NVLINKS | MIG | GPM | {q.MEMORY_TEMPERATURE}) - COUNTED,
    "gb10": (
        (FAN | PAGES | ROWS | ECC | NVLINKS | MIG | GPM | MEMORY | BAR1 | LIMITS | MEMORY_CLOCKS)
        | {q.MEMORY_TEMPERATURE}
    )
    - COUNTED,
}
INSTANCES_LACK = {
    "ampere-mig": [GPM, GPM],
    "hopper-mig": [set(), {q.DRAM_ACTIVITY}, {q.DRAM_ACTIVITY}],
}


@pytest.fixture(params=CARDS)
def name(request):
    return request.param


@pytest.fixture
def snapshot(name, tmp_path, monkeypatch):
    """The second tick: rates and means need two."""
    machine = Machine(tmp_path, monkeypatch)
    machine.state.gpus = [CARDS[name]()]
    machine.tick()
    return machine.tick()


def test_a_card_reports_everything_that_its_architecture_has(name, snapshot):
    assert ALL - set(reading_of(snapshot).values) == LACKS[name]


def test_a_card_reports_what_its_architecture_lacks_as_unsupported(name, snapshot):
    supported = reading_of(snapshot).supported
    assert {key for key, has in supported.items() if not has} == {each.key for each in LACKS[name]}
    assert set(supported) == {each.key for each in ALL}


def test_instances_report_everything_that_their_architecture_has(name, snapshot):
    lacking = [OF_INSTANCES - set(reading.values) for reading in snapshot.readings[1:]]
    assert lacking == [GPM & OF_INSTANCES & lacks for lacks in INSTANCES_LACK.get(name, [])]


def test_unsupported_quantities_are_not_failures(snapshot):
    assert not snapshot.failures and not snapshot.invalid and not snapshot.devices_failed
