"""Quantities: only the wanted ones, in base units, independent of each other."""

import pytest

from gpuledger.host.pci import PciBus
from gpuledger.model import quantities as q
from gpuledger.sources.nvml.queries import FIELD_QUERIES, GPM_QUERIES
from nvml.library import NvmlGpu
from nvml.machine import ALL, Machine, reading_of, values

NOT_SUPPORTED, NO_PERMISSION, INVALID_ARGUMENT, NO_DATA, UNKNOWN, FUNCTION_NOT_FOUND = 3, 4, 2, 21, 999, 13
ALL_ONES, BLANK_64 = 2**32 - 1, 0x7FFFFFFFFFFFFFF2


@pytest.fixture
def machine(tmp_path, monkeypatch):
    return Machine(tmp_path, monkeypatch)


def test_counters_are_integers(machine):
    machine.gpus[0] = NvmlGpu(energy=987_654_321_012, power=0, ecc_corrected=12, nvlink_tx=3)
    reading = reading_of(machine.tick())
    counters = [reading.values[quantity] for quantity in (q.ENERGY, q.ECC_CORRECTED, q.NVLINK_TX)]
    assert counters == [987_654_321_012, 12, 3072]
    assert all(isinstance(value, int) for value in counters)


def test_energy_follows_power_over_the_drivers_time(machine):
    machine.gpus[0] = NvmlGpu(power=200_000)
    first = reading_of(machine.tick()).get(q.ENERGY)
    assert reading_of(machine.tick(seconds=10)).get(q.ENERGY) - first == 2_000_000


@pytest.mark.parametrize(
    ("wanted", "call"),
    [
        (q.UTILIZATION, "nvmlDeviceGetUtilizationRates"),
        (q.MEMORY_USED, "nvmlDeviceGetMemoryInfo_v2"),
        (q.POWER, "nvmlDeviceGetPowerUsage"),
        (q.TEMPERATURE, "nvmlDeviceGetTemperature"),
        (q.SM_CLOCK, "nvmlDeviceGetClockInfo"),
        (q.ENERGY, "nvmlDeviceGetFieldValues"),
    ],
)
def test_only_the_wanted_quantity_is_read(machine, wanted, call):
    reading = reading_of(machine.tick([wanted]))
    assert set(reading.values) == {wanted}
    assert reading.supported == {wanted.key: True}
    reading_calls = {
        "nvmlDeviceGetUtilizationRates",
        "nvmlDeviceGetMemoryInfo_v2",
        "nvmlDeviceGetPowerUsage",
        "nvmlDeviceGetTemperature",
        "nvmlDeviceGetClockInfo",
        "nvmlDeviceGetFieldValues",
        "nvmlDeviceGetEnforcedPowerLimit",
        "nvmlDeviceGetFanSpeed",
        "nvmlDeviceGetEncoderUtilization",
        "nvmlDeviceGetPerformanceState",
    }
    assert {name: machine.count(name) for name in reading_calls} == dict.fromkeys(reading_calls, 0) | {
        call: 2
    }


def test_without_wanted_quantities_only_devices_and_processes_are_read(machine):
    assert reading_of(machine.tick([])).values == {}
    assert machine.count("nvmlDeviceGetFieldValues") == machine.count("nvmlDeviceGetPowerUsage") == 0


def test_energy_of_all_ones_in_32_bits_is_valid(machine):
    machine.gpus[0] = NvmlGpu(energy=ALL_ONES, power=0)
    assert reading_of(machine.tick()).get(q.ENERGY) == ALL_ONES


def test_an_unsupported_quantity_is_reported_and_not_queried_again(machine):
    machine.gpus[0].errors["nvmlDeviceGetPowerUsage"] = NOT_SUPPORTED
    for _ in range(3):
        snapshot = machine.tick()
    assert (
        reading_of(snapshot).supported["power"] is False
        and reading_of(snapshot, 1).supported["power"] is True
    )
    assert machine.count("nvmlDeviceGetPowerUsage") == 1 + 3
    assert not snapshot.failures


def test_an_unsupported_quantity_is_queried_again_after_a_loss(machine):
    machine.gpus[0].errors["nvmlDeviceGetPowerUsage"] = NOT_SUPPORTED
    machine.tick()
    machine.gpus[0].errors = {"*": 15}
    machine.tick()
    machine.gpus[0].errors = {}
    assert reading_of(machine.tick()).get(q.POWER) == 100.0


@pytest.mark.parametrize(
    "call", ["nvmlDeviceGetUtilizationRates", "nvmlDeviceGetPowerUsage", "field.83", "field.197"]
)
@pytest.mark.parametrize("code", [NO_PERMISSION, UNKNOWN, 20])
def test_a_failed_call_is_reported_and_retried(machine, call, code):
    machine.tick()
    machine.gpus[0].errors = {call: code, "nvmlDeviceGetTotalEnergyConsumption": code}
    snapshot = machine.tick()
    assert {(failure.part, failure.device) for failure in snapshot.failures} == {
        ("readings", reading_of(snapshot).device)
    }
    part = next(part for part in snapshot.collected if part.name == "readings")
    assert not part.success and ("nvmlDevice" in part.error)
    machine.gpus[0].errors = {}
    assert not machine.tick().failures


def test_no_data_is_not_a_failure(machine):
    machine.gpus[0].errors["nvmlDeviceGetPerformanceState"] = NO_DATA
    snapshot = machine.tick()
    assert reading_of(snapshot).get(q.PERFORMANCE_STATE) is None and not snapshot.failures


@pytest.mark.parametrize("code", [NOT_SUPPORTED, INVALID_ARGUMENT])
def test_a_missing_field_is_read_with_its_fallback_call(machine, code):
    machine.gpus[0].errors = {"field.83": code, "field.5": code}
    machine.gpus[0].numbers = {"energy": 77, "power": 0, "ecc_corrected": 9}
    for _ in range(2):
        reading = reading_of(machine.tick())
        assert (reading.get(q.ENERGY), reading.get(q.ECC_CORRECTED)) == (77, 9)
        assert reading.supported["energy"] is True
    machine.gpus[0].errors["nvmlDeviceGetTotalEnergyConsumption"] = NOT_SUPPORTED
    assert reading_of(machine.tick()).supported["energy"] is False


def test_a_64_bit_counter_may_equal_the_blank_of_32_bits(machine):
    machine.gpus[0] = NvmlGpu(energy=ALL_ONES, power=0)
    machine.gpus[0].errors["field.83"] = NOT_SUPPORTED
    assert reading_of(machine.tick([q.ENERGY])).get(q.ENERGY) == ALL_ONES


@pytest.mark.parametrize("code", [NOT_SUPPORTED, INVALID_ARGUMENT])
def test_a_missing_field_without_fallback_is_unsupported(machine, code):
    machine.gpus[0].errors["field.82"] = code
    snapshot = machine.tick()
    assert reading_of(snapshot).supported["memory_temperature"] is False and not snapshot.failures


def test_a_missing_field_is_not_queried_again(machine):
    machine.state.errors["field.83"] = NOT_SUPPORTED
    for _ in range(3):
        assert reading_of(machine.tick([q.ENERGY])).get(q.ENERGY) is not None
    assert machine.count("nvmlDeviceGetFieldValues") == 2


def test_energy_is_read_despite_a_failing_batch_of_fields(machine):
    machine.tick()
    machine.gpus[0].errors["nvmlDeviceGetFieldValues"] = UNKNOWN
    snapshot = machine.tick([q.ENERGY, q.PCIE_TX])
    assert reading_of(snapshot).get(q.ENERGY) is not None and reading_of(snapshot).get(q.PCIE_TX) is None
    assert [failure.detail.split(": ")[1] for failure in snapshot.failures] == ["pcie_tx"]


def test_a_failing_field_does_not_affect_others_in_its_batch(machine):
    machine.gpus[0].errors["field.197"] = UNKNOWN
    reading = reading_of(machine.tick([q.PCIE_TX, q.PCIE_RX, q.MEMORY_TEMPERATURE]))
    assert values(reading) == {"pcie_rx": 2000, "memory_temperature": 45}


@pytest.mark.parametrize("code", [FUNCTION_NOT_FOUND, 25, INVALID_ARGUMENT])
def test_all_memory_quantities_use_the_same_fallback(machine, code):
    machine.gpus[0] = NvmlGpu(memory_total=1000, memory_used=300, memory_reserved=50)
    machine.gpus[0].errors["nvmlDeviceGetMemoryInfo_v2"] = code
    for _ in range(2):
        reading = reading_of(machine.tick([q.MEMORY_TOTAL, q.MEMORY_USED, q.MEMORY_FREE, q.MEMORY_RESERVED]))
        assert values(reading) == {"memory_total": 1000, "memory_used": 350, "memory_free": 650}
        assert reading.supported["memory_reserved"] is False
    assert machine.count("nvmlDeviceGetMemoryInfo_v2") == 1 + 2


def test_a_transient_error_of_the_newer_memory_call_does_not_use_the_older(machine):
    machine.tick()
    machine.gpus[0].errors["nvmlDeviceGetMemoryInfo_v2"] = UNKNOWN
    assert reading_of(machine.tick()).get(q.MEMORY_USED) is None
    machine.gpus[0].errors.clear()
    assert reading_of(machine.tick()).get(q.MEMORY_RESERVED) == 536870912


def test_the_power_limit_is_the_one_in_force(machine):
    machine.gpus[0] = NvmlGpu(power_limit=450_000, power_limit_requested=700_000)
    assert reading_of(machine.tick()).get(q.POWER_LIMIT) == 450.0


def test_the_reported_value_type_of_the_memory_temperature_is_ignored(machine):
    machine.gpus[0].answers = {"field.82": 61, "type.82": 0}
    assert reading_of(machine.tick()).get(q.MEMORY_TEMPERATURE) == 61


def test_clock_event_reasons_are_read_with_the_older_call_of_an_old_library(tmp_path, monkeypatch):
    machine = Machine(tmp_path, monkeypatch, "old")
    machine.gpus[0] = NvmlGpu(clock_event_reasons=4)
    assert reading_of(machine.tick([q.CLOCK_EVENT_REASONS])).values == {q.CLOCK_EVENT_REASONS: 4}


def link_rates(machine, *moved, wanted=(q.NVLINK_RATE,), seconds=1.0):
    """NVLink rates tick by tick while the counters (KiB) read `moved`."""
    found = []
    for tx, rx in moved:
        machine.gpus[0].numbers |= {"nvlink_tx": tx, "nvlink_rx": rx}
        found.append(reading_of(machine.tick(wanted, seconds)).get(q.NVLINK_RATE))
    return found


def test_the_nvlink_rate_covers_both_directions_between_two_ticks(machine):
    assert link_rates(machine, (10, 10), (12, 13), (12, 13), seconds=2.0) == [None, 2560.0, 0.0]


def test_the_counters_of_an_nvlink_rate_are_not_reported_unless_wanted(machine):
    machine.tick([q.NVLINK_RATE])
    reading = reading_of(machine.tick([q.NVLINK_RATE]))
    assert reading.values == {q.NVLINK_RATE: 0.0} and reading.supported == {"nvlink_rate": True}
    assert machine.count("nvmlDeviceGetFieldValues") == 2 * 2


def test_a_reset_of_nvlink_counters_gives_no_rate_until_two_readings_increase(machine):
    assert link_rates(machine, (900, 0), (901, 0), (5, 0), (6, 0), (8, 0)) == [
        None,
        1024.0,
        None,
        None,
        2048.0,
    ]


def test_a_single_low_nvlink_reading_causes_no_burst(machine):
    assert link_rates(machine, (900, 0), (3, 0), (902, 0), (903, 0)) == [None, None, None, 1024.0]


def test_a_rate_excludes_ticks_in_which_it_was_not_wanted(machine):
    link_rates(machine, (1, 0), (2, 0))
    machine.tick([q.NVLINK_TX], seconds=60)
    assert link_rates(machine, (900, 0), (901, 0)) == [None, 1024.0]


@pytest.mark.parametrize("field", ["field.138", "field.139"])
def test_a_card_without_nvlinks_has_no_nvlink_rate(machine, field):
    machine.gpus[0].errors[field] = NOT_SUPPORTED
    snapshot = machine.tick([q.NVLINK_RATE])
    assert reading_of(snapshot).supported == {"nvlink_rate": False} and not snapshot.failures
    machine.tick([q.NVLINK_RATE])
    assert reading_of(machine.tick([q.NVLINK_RATE])).supported == {"nvlink_rate": False}
    # The other card is still queried.
    assert machine.count("nvmlDeviceGetFieldValues") == 1 + 3


def pcie_rates(machine, *sent, wanted=(q.PCIE_TX_RATE,), seconds=1.0):
    """Rates of sent bytes tick by tick, on a card without GPM, while the counter reads `sent`."""
    machine.gpus[0].errors["nvmlGpmQueryDeviceSupport"] = NOT_SUPPORTED
    found = []
    for number in sent:
        machine.gpus[0].numbers["pcie_tx"] = number
        found.append(reading_of(machine.tick(wanted, seconds)).get(q.PCIE_TX_RATE))
    return found


def test_without_gpm_a_pcie_rate_is_that_of_its_counter(machine):

    assert pcie_rates(machine, 5, 10, 14, 14, seconds=2.0) == [None, 2.5, 2.0, 0.0]


def test_a_pcie_counter_that_wraps_or_reads_low_once_gives_no_burst(machine):
    assert pcie_rates(machine, 0, 900, 901, 3, 902, 903) == [None, 900.0, 1.0, None, None, 1.0]


def test_a_pcie_rate_excludes_ticks_in_which_it_was_not_wanted(machine):
    pcie_rates(machine, 1, 2, 3)
    machine.tick([q.PCIE_TX], seconds=60)
    assert pcie_rates(machine, 900, 901) == [None, 1.0]


def test_the_counters_of_pcie_rates_are_not_reported_unless_wanted(machine):
    pcie_rates(machine, 1, 2)
    reading = reading_of(machine.tick([q.PCIE_TX_RATE]))
    assert set(reading.values) == {q.PCIE_TX_RATE}
    assert reading.supported == {"pcie_tx_rate": True}


def test_a_pcie_rate_of_counters_is_supported_once_it_was_computed(machine):
    machine.gpus[0].errors["nvmlGpmQueryDeviceSupport"] = NOT_SUPPORTED
    found = [reading_of(machine.tick([q.PCIE_TX_RATE])) for _ in range(3)]
    assert [q.PCIE_TX_RATE in reading.values for reading in found] == [
        reading.supported.get("pcie_tx_rate") is True for reading in found
    ]
    assert found[-1].supported == {"pcie_tx_rate": True}


COUNTERS = [
    (q.PCIE_TX, "pcie_tx"),
    (q.PCIE_RX, "pcie_rx"),
    (q.PCIE_REPLAYS, "pcie_replays"),
    (q.ECC_CORRECTED, "ecc_corrected"),
    (q.ECC_UNCORRECTED, "ecc_uncorrected"),
    (q.ECC_CORRECTED_VOLATILE, "ecc_corrected_volatile"),
    (q.POWER_VIOLATION, "violation_power"),
    (q.NVLINK_REPLAY_ERRORS, "nvlink_replay"),
    (q.REMAPPED_ROWS_CORRECTABLE, "remapped_corrected"),
]


@pytest.mark.parametrize(("quantity", "number"), COUNTERS, ids=[number for _, number in COUNTERS])
@pytest.mark.parametrize(
    ("read", "expected"),
    [
        ([900, 950, 3, 960, 970], [900, 950, 950, 960, 970]),
        ([900, 0, 900], [900, 900, 900]),
        ([900, 3, 8, 9], [900, 900, 8, 9]),
        ([900, 3, 3, 3], [900, 900, 3, 3]),
        ([900, 8, 3, 4], [900, 900, 900, 4]),
        ([900, 3, 950, 4, 5], [900, 900, 950, 950, 5]),
        ([3, 900], [3, 900]),
    ],
    ids=["glitch", "zero", "reset", "reset and constant", "two lows", "glitch and reset", "first reading"],
)
def test_a_counter_decreases_only_when_the_next_reading_confirms_it(
    machine, quantity, number, read, expected
):
    machine.new_source(slow_interval=1.0)
    found = []
    for value in read:
        machine.gpus[0].numbers[number] = value
        found.append(reading_of(machine.tick()).get(quantity))
    assert found == expected


@pytest.mark.parametrize(
    ("read", "refuted"),
    [([900, 3, 900], [3]), ([900, 3, 950, 4, 950, 950], [3, 4]), ([900, 8, 9], []), ([900, 950, 950], [])],
    ids=["glitch", "two glitches", "reset", "rising"],
)
def test_refuted_readings_of_a_counter_are_counted_and_the_first_is_logged(machine, read, refuted, caplog):
    invalid = 0
    for value in read:
        machine.gpus[0].numbers["pcie_tx"] = value
        snapshot = machine.tick()
        invalid += snapshot.invalid
    assert invalid == len(refuted)
    uuid = reading_of(snapshot).device.uuid
    lines = [record.message for record in caplog.records if "cannot be true" in record.message]
    assert [line.partition(",")[0] for line in lines] == [
        f"pcie_tx of {uuid} is {value}" for value in refuted[:1]
    ]


def test_a_counter_that_was_reset_with_its_card_decreases_when_confirmed(machine):
    machine.gpus[0].numbers["pcie_tx"] = 900
    machine.tick()
    machine.gpus[0].errors["*"] = 15
    assert reading_of(machine.tick()).get(q.PCIE_TX) is None
    machine.gpus[0].errors.clear()
    machine.gpus[0].numbers["pcie_tx"] = 5
    assert [reading_of(machine.tick()).get(q.PCIE_TX) for _ in range(2)] == [900, 5]


def test_the_energy_counter_is_reported_as_read(machine):
    """The ledger has its own rules for an energy counter that decreases."""
    found = []
    for value in (900, 3, 950):
        machine.gpus[0].numbers |= {"energy": value, "power": 0}
        found.append(reading_of(machine.tick()).get(q.ENERGY))
    assert found == [900, 3, 950]


def test_slow_quantities_are_read_at_their_interval_and_repeated_between(machine):
    machine.new_source(slow_interval=10.0)
    for tick in range(21):
        machine.gpus[0].numbers["power_limit"] = 500_000 + 1000 * tick
        reading = reading_of(machine.tick())
        assert reading.get(q.POWER_LIMIT) == 500.0 + 10 * (tick // 10)
        assert reading.get(q.ECC_CORRECTED) == 0
    assert machine.count("nvmlDeviceGetEnforcedPowerLimit") == 2 * 3


def test_a_slow_quantity_newly_wanted_is_read_at_once(machine):
    machine.tick([q.POWER])
    assert reading_of(machine.tick([q.POWER, q.POWER_LIMIT])).get(q.POWER_LIMIT) == 700.0
    assert q.POWER_LIMIT not in reading_of(machine.tick([q.POWER])).values


def test_unsupported_quantities_are_queried_again_after_ten_minutes(machine):
    """NVLinks come up when the fabric manager starts, which may be later than gpuledger."""
    wanted = [q.NVLINK_TX, q.SM_ACTIVITY, q.FAN_SPEED]
    machine.gpus[0].errors = {"field.138": NOT_SUPPORTED, "nvmlGpmQueryDeviceSupport": NOT_SUPPORTED}
    machine.tick(wanted)
    assert reading_of(machine.tick(wanted)).supported == dict.fromkeys(
        ["nvlink_tx", "sm_activity", "fan_speed"], False
    )
    machine.gpus[0].errors.clear()
    assert reading_of(machine.tick(wanted, seconds=590)).values == {}
    machine.tick(wanted, seconds=10)
    assert set(reading_of(machine.tick(wanted)).values) == {q.NVLINK_TX, q.SM_ACTIVITY}
    assert reading_of(machine.tick(wanted)).supported["fan_speed"] is False


def test_support_is_reported_only_for_wanted_quantities(machine):
    machine.tick(ALL)
    assert reading_of(machine.tick([q.POWER])).supported == {"power": True}


def test_an_old_library_reports_what_it_supports(tmp_path, monkeypatch):
    machine = Machine(tmp_path, monkeypatch, "old")
    reading = reading_of(machine.tick())
    assert reading.get(q.ENERGY) is not None
    assert reading.get(q.MEMORY_USED) == 1073741824 + 536870912
    assert reading.get(q.ECC_CORRECTED) == 0
    # Fields without a fallback call, GPM, and what this card lacks.
    alone = {field.quantity for field in FIELD_QUERIES if field.fallback is None}
    later = {metric.quantity for metric in GPM_QUERIES} | {q.MEMORY_RESERVED, q.FAN_SPEED, q.NVLINK_RATE}
    later.add(q.PCIE_GENERATION_GPU_MAX)
    lacks = {key for key, has in reading.supported.items() if not has}
    assert lacks == {quantity.key for quantity in alone | later}


@pytest.mark.parametrize(
    ("lanes", "width", "most"),
    [
        (8, 8, 8),
        (16, 8, 16),
        (32, 16, 16),
        (None, 8, 16),
        # A virtual machine has virtual slots.
        (1, 16, 16),
    ],
    ids=["a narrow slot", "a bad link", "a wide slot", "unknown", "a virtual slot"],
)
def test_a_card_in_a_narrow_slot_can_do_no_more_than_the_slot(machine, lanes, width, most):
    class Slots(PciBus):
        def slot_width(self, address):
            assert address == "00000000:01:00.0"
            return lanes

    machine.new_source(Slots("/nowhere"))
    machine.state.gpus = [NvmlGpu(pcie_width=width, pcie_width_max=16)]
    for seconds in (1, 10, 601):
        reading = reading_of(machine.tick([q.PCIE_WIDTH, q.PCIE_WIDTH_MAX], seconds=seconds))
        assert reading.values == {q.PCIE_WIDTH: width, q.PCIE_WIDTH_MAX: most}
