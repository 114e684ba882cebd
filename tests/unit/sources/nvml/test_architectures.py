"""What a card of each architecture tells, of itself and of its Instances, and what it says that it lacks."""

import pytest

from gpuledger.model import quantities as q
from gpuledger.model.quantities import Level
from gpuledger.sources.nvml.fields import METRICS
from nvml.cards import CARDS
from nvml.machine import ALL, Machine, told

GPM = {metric.quantity for metric in METRICS}
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
WHOLE_ONLY = {
    q.UTILIZATION,
    q.MEMORY_UTILIZATION,
    q.ENCODER_UTILIZATION,
    q.DECODER_UTILIZATION,
    q.COMPUTE_MODE,
}
FAN = {q.FAN_SPEED}
MEMORY_CLOCKS = {q.MEMORY_CLOCK, q.MAX_MEMORY_CLOCK, q.APP_MEMORY_CLOCK}

LACKS = {
    "volta": FAN | ROWS | MIG | GPM | {q.PCIE_TX, q.PCIE_RX, q.POWER_INSTANT},
    "ampere": FAN | PAGES | GPM,
    "ampere-mig": FAN | PAGES | GPM | WHOLE_ONLY,
    "hopper": FAN | PAGES,
    "hopper-mig": FAN | PAGES | WHOLE_ONLY,
    "ada-consumer": PAGES | ROWS | ECC | NVLINKS | MIG | GPM | {q.MEMORY_TEMPERATURE},
    "gb10": (
        (FAN | PAGES | ROWS | ECC | NVLINKS | MIG | GPM | MEMORY | BAR1 | LIMITS | MEMORY_CLOCKS)
        | {q.MEMORY_TEMPERATURE}
    ),
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
    """Of the second tick: rates and means need two."""
    machine = Machine(tmp_path, monkeypatch)
    machine.state.gpus = [CARDS[name]()]
    machine.tick()
    return machine.tick()


def test_a_card_tells_all_but_what_its_kind_lacks(name, snapshot):
    assert ALL - set(told(snapshot).values) == LACKS[name]


def test_a_card_says_what_its_kind_lacks(name, snapshot):
    supported = told(snapshot).supported
    assert {key for key, has in supported.items() if not has} == {each.key for each in LACKS[name]}
    assert set(supported) == {each.key for each in ALL}


def test_its_instances_tell_what_an_instance_has_of_it(name, snapshot):
    lacking = [OF_INSTANCES - set(reading.values) for reading in snapshot.readings[1:]]
    assert lacking == [GPM & OF_INSTANCES & lacks for lacks in INSTANCES_LACK.get(name, [])]


def test_what_a_kind_of_card_lacks_is_no_failure(snapshot):
    assert not snapshot.failures and not snapshot.invalid and not snapshot.devices_failed
