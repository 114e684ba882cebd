"""Quantities: only the wanted ones, in base units, each lost alone."""

import pytest

from gpuledger.model import quantities as q
from gpuledger.sources.nvml.fields import FIELDS, METRICS
from nvml.library import NvmlGpu
from nvml.machine import ALL, Machine, told, values

NOT_SUPPORTED, NO_PERMISSION, INVALID_ARGUMENT, NO_DATA, UNKNOWN, FUNCTION_NOT_FOUND = 3, 4, 2, 21, 999, 13
ALL_ONES, BLANK_64 = 2**32 - 1, 0x7FFFFFFFFFFFFFF2


@pytest.fixture
def machine(tmp_path, monkeypatch):
    return Machine(tmp_path, monkeypatch)


def test_a_counter_of_the_card_stays_a_whole_number(machine):
    machine.gpus[0] = NvmlGpu(energy=987_654_321_012, power=0, ecc_corrected=12, nvlink_tx=3)
    reading = told(machine.tick())
    counters = [reading.values[quantity] for quantity in (q.ENERGY, q.ECC_CORRECTED, q.NVLINK_TX)]
    assert counters == [987_654_321_012, 12, 3072]
    assert all(isinstance(value, int) for value in counters)


def test_energy_follows_power_over_the_drivers_time(machine):
    machine.gpus[0] = NvmlGpu(power=200_000)
    first = told(machine.tick()).get(q.ENERGY)
    assert told(machine.tick(seconds=10)).get(q.ENERGY) - first == 2_000_000


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
    reading = told(machine.tick([wanted]))
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


def test_nothing_wanted_reads_nothing_but_devices_and_processes(machine):
    assert told(machine.tick([])).values == {}
    assert machine.count("nvmlDeviceGetFieldValues") == machine.count("nvmlDeviceGetPowerUsage") == 0


def test_energy_may_be_any_whole_number_of_32_bits(machine):
    machine.gpus[0] = NvmlGpu(energy=ALL_ONES, power=0)
    assert told(machine.tick()).get(q.ENERGY) == ALL_ONES


def test_what_a_card_lacks_is_said_and_not_asked_again(machine):
    machine.gpus[0].errors["nvmlDeviceGetPowerUsage"] = NOT_SUPPORTED
    for _ in range(3):
        snapshot = machine.tick()
    assert told(snapshot).supported["power"] is False and told(snapshot, 1).supported["power"] is True
    assert machine.count("nvmlDeviceGetPowerUsage") == 1 + 3
    assert not snapshot.failures


def test_what_a_card_lacked_is_asked_again_after_a_loss(machine):
    machine.gpus[0].errors["nvmlDeviceGetPowerUsage"] = NOT_SUPPORTED
    machine.tick()
    machine.gpus[0].errors = {"*": 15}
    machine.tick()
    machine.gpus[0].errors = {}
    assert told(machine.tick()).get(q.POWER) == 100.0


@pytest.mark.parametrize(
    "call", ["nvmlDeviceGetUtilizationRates", "nvmlDeviceGetPowerUsage", "field.83", "field.197"]
)
@pytest.mark.parametrize("code", [NO_PERMISSION, UNKNOWN, 20])
def test_a_failed_read_is_a_failure_with_its_reason_and_tried_again(machine, call, code):
    machine.tick()
    machine.gpus[0].errors = {call: code, "nvmlDeviceGetTotalEnergyConsumption": code}
    snapshot = machine.tick()
    assert {(failure.part, failure.device) for failure in snapshot.failures} == {
        ("readings", told(snapshot).device)
    }
    part = next(part for part in snapshot.collected if part.name == "readings")
    assert not part.success and ("nvmlDevice" in part.error)
    machine.gpus[0].errors = {}
    assert not machine.tick().failures


def test_no_data_is_absent_without_a_failure(machine):
    machine.gpus[0].errors["nvmlDeviceGetPerformanceState"] = NO_DATA
    snapshot = machine.tick()
    assert told(snapshot).get(q.PERFORMANCE_STATE) is None and not snapshot.failures


@pytest.mark.parametrize("code", [NOT_SUPPORTED, INVALID_ARGUMENT])
def test_a_field_that_the_driver_lacks_is_read_by_its_older_call(machine, code):
    machine.gpus[0].errors = {"field.83": code, "field.5": code}
    machine.gpus[0].numbers = {"energy": 77, "power": 0, "ecc_corrected": 9}
    for _ in range(2):
        reading = told(machine.tick())
        assert (reading.get(q.ENERGY), reading.get(q.ECC_CORRECTED)) == (77, 9)
        assert reading.supported["energy"] is True
    machine.gpus[0].errors["nvmlDeviceGetTotalEnergyConsumption"] = NOT_SUPPORTED
    assert told(machine.tick()).supported["energy"] is False


@pytest.mark.parametrize("code", [NOT_SUPPORTED, INVALID_ARGUMENT])
def test_a_field_without_another_way_is_not_supported(machine, code):
    machine.gpus[0].errors["field.82"] = code
    snapshot = machine.tick()
    assert told(snapshot).supported["memory_temperature"] is False and not snapshot.failures


def test_a_field_that_the_driver_lacks_is_not_asked_again(machine):
    machine.state.errors["field.83"] = NOT_SUPPORTED
    for _ in range(3):
        assert told(machine.tick([q.ENERGY])).get(q.ENERGY) is not None
    assert machine.count("nvmlDeviceGetFieldValues") == 2


def test_energy_survives_a_failing_batch_of_fields(machine):
    machine.tick()
    machine.gpus[0].errors["nvmlDeviceGetFieldValues"] = UNKNOWN
    snapshot = machine.tick([q.ENERGY, q.PCIE_TX])
    assert told(snapshot).get(q.ENERGY) is not None and told(snapshot).get(q.PCIE_TX) is None
    assert [failure.detail.split(": ")[1] for failure in snapshot.failures] == ["pcie_tx"]


def test_one_failing_field_leaves_the_others_of_its_batch(machine):
    machine.gpus[0].errors["field.197"] = UNKNOWN
    reading = told(machine.tick([q.PCIE_TX, q.PCIE_RX, q.MEMORY_TEMPERATURE]))
    assert values(reading) == {"pcie_rx": 2000, "memory_temperature": 45}


@pytest.mark.parametrize("code", [FUNCTION_NOT_FOUND, 25, INVALID_ARGUMENT])
def test_memory_falls_back_as_a_whole(machine, code):
    machine.gpus[0] = NvmlGpu(memory_total=1000, memory_used=300, memory_reserved=50)
    machine.gpus[0].errors["nvmlDeviceGetMemoryInfo_v2"] = code
    for _ in range(2):
        reading = told(machine.tick([q.MEMORY_TOTAL, q.MEMORY_USED, q.MEMORY_FREE, q.MEMORY_RESERVED]))
        assert values(reading) == {"memory_total": 1000, "memory_used": 350, "memory_free": 650}
        assert reading.supported["memory_reserved"] is False
    assert machine.count("nvmlDeviceGetMemoryInfo_v2") == 1 + 2


def test_a_passing_fault_of_the_newer_memory_call_does_not_mix_in_the_older(machine):
    machine.tick()
    machine.gpus[0].errors["nvmlDeviceGetMemoryInfo_v2"] = UNKNOWN
    assert told(machine.tick()).get(q.MEMORY_USED) is None
    machine.gpus[0].errors.clear()
    assert told(machine.tick()).get(q.MEMORY_RESERVED) == 536870912


def test_the_power_limit_is_the_one_in_force(machine):
    machine.gpus[0] = NvmlGpu(power_limit=450_000, power_limit_requested=700_000)
    assert told(machine.tick()).get(q.POWER_LIMIT) == 450.0


def test_a_temperature_of_memory_is_whole_degrees_whatever_type_the_driver_names(machine):
    machine.gpus[0].answers = {"field.82": 61, "type.82": 0}
    assert told(machine.tick()).get(q.MEMORY_TEMPERATURE) == 61


def test_the_reasons_of_clocks_are_asked_by_their_older_name_where_there_is_no_newer(tmp_path, monkeypatch):
    machine = Machine(tmp_path, monkeypatch, "old")
    machine.gpus[0] = NvmlGpu(clock_event_reasons=4)
    assert told(machine.tick([q.CLOCK_EVENT_REASONS])).values == {q.CLOCK_EVENT_REASONS: 4}


def link_rates(machine, *moved, wanted=(q.NVLINK_RATE,), seconds=1.0):
    """What is told tick by tick, while the counters (KiB) read `moved`."""
    found = []
    for tx, rx in moved:
        machine.gpus[0].numbers |= {"nvlink_tx": tx, "nvlink_rx": rx}
        found.append(told(machine.tick(wanted, seconds)).get(q.NVLINK_RATE))
    return found


def test_the_rate_of_nvlinks_is_what_both_directions_moved_between_two_ticks(machine):
    assert link_rates(machine, (10, 10), (12, 13), (12, 13), seconds=2.0) == [None, 2560.0, 0.0]


def test_a_rate_of_nvlinks_does_not_tell_the_counters_that_nobody_wanted(machine):
    machine.tick([q.NVLINK_RATE])
    reading = told(machine.tick([q.NVLINK_RATE]))
    assert reading.values == {q.NVLINK_RATE: 0.0} and reading.supported == {"nvlink_rate": True}
    assert machine.count("nvmlDeviceGetFieldValues") == 2 * 2


def test_counters_of_nvlinks_that_step_back_tell_no_rate_until_two_follow_each_other(machine):
    assert link_rates(machine, (900, 0), (901, 0), (5, 0), (6, 0), (8, 0)) == [
        None,
        1024.0,
        None,
        None,
        2048.0,
    ]


def test_one_low_reading_of_nvlinks_makes_no_burst_of_what_was_counted_before(machine):
    assert link_rates(machine, (900, 0), (3, 0), (902, 0), (903, 0)) == [None, None, None, 1024.0]


def test_a_time_in_which_nobody_wanted_the_rate_is_not_told_as_the_last_ticks(machine):
    link_rates(machine, (1, 0), (2, 0))
    machine.tick([q.NVLINK_TX], seconds=60)
    assert link_rates(machine, (900, 0), (901, 0)) == [None, 1024.0]


@pytest.mark.parametrize("field", ["field.138", "field.139"])
def test_a_card_without_nvlinks_has_no_rate_of_them(machine, field):
    machine.gpus[0].errors[field] = NOT_SUPPORTED
    snapshot = machine.tick([q.NVLINK_RATE])
    assert told(snapshot).supported == {"nvlink_rate": False} and not snapshot.failures
    machine.tick([q.NVLINK_RATE])
    assert told(machine.tick([q.NVLINK_RATE])).supported == {"nvlink_rate": False}
    # The other card is asked on.
    assert machine.count("nvmlDeviceGetFieldValues") == 1 + 3


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
    ids=["glitch", "zero", "reset", "reset and rest", "two lows", "glitch and reset", "first reading"],
)
def test_a_counter_steps_back_only_when_the_next_reading_confirms_it(
    machine, quantity, number, read, expected
):
    machine.new_source(slow_interval=1.0)
    found = []
    for value in read:
        machine.gpus[0].numbers[number] = value
        found.append(told(machine.tick()).get(quantity))
    assert found == expected


def test_a_counter_that_was_reset_with_its_card_steps_back_when_confirmed(machine):
    machine.gpus[0].numbers["pcie_tx"] = 900
    machine.tick()
    machine.gpus[0].errors["*"] = 15
    assert told(machine.tick()).get(q.PCIE_TX) is None
    machine.gpus[0].errors.clear()
    machine.gpus[0].numbers["pcie_tx"] = 5
    assert [told(machine.tick()).get(q.PCIE_TX) for _ in range(2)] == [900, 5]


def test_the_energy_counter_is_told_as_it_reads(machine):
    """The books have rules of their own for one that steps back."""
    found = []
    for value in (900, 3, 950):
        machine.gpus[0].numbers |= {"energy": value, "power": 0}
        found.append(told(machine.tick()).get(q.ENERGY))
    assert found == [900, 3, 950]


def test_slow_quantities_are_read_at_their_interval_and_kept_between(machine):
    machine.new_source(slow_interval=10.0)
    for tick in range(21):
        machine.gpus[0].numbers["power_limit"] = 500_000 + 1000 * tick
        reading = told(machine.tick())
        assert reading.get(q.POWER_LIMIT) == 500.0 + 10 * (tick // 10)
        assert reading.get(q.ECC_CORRECTED) == 0
    assert machine.count("nvmlDeviceGetEnforcedPowerLimit") == 2 * 3


def test_a_slow_quantity_newly_wanted_is_read_at_once(machine):
    machine.tick([q.POWER])
    assert told(machine.tick([q.POWER, q.POWER_LIMIT])).get(q.POWER_LIMIT) == 700.0
    assert q.POWER_LIMIT not in told(machine.tick([q.POWER])).values


def test_what_a_card_lacks_is_asked_again_after_ten_minutes(machine):
    """NVLinks come up when the fabric manager starts, which may be after us."""
    wanted = [q.NVLINK_TX, q.SM_ACTIVITY, q.FAN_SPEED]
    machine.gpus[0].errors = {"field.138": NOT_SUPPORTED, "nvmlGpmQueryDeviceSupport": NOT_SUPPORTED}
    machine.tick(wanted)
    assert told(machine.tick(wanted)).supported == dict.fromkeys(
        ["nvlink_tx", "sm_activity", "fan_speed"], False
    )
    machine.gpus[0].errors.clear()
    assert told(machine.tick(wanted, seconds=590)).values == {}
    machine.tick(wanted, seconds=10)
    assert set(told(machine.tick(wanted)).values) == {q.NVLINK_TX, q.SM_ACTIVITY}
    assert told(machine.tick(wanted)).supported["fan_speed"] is False


def test_support_is_told_for_what_is_asked_only(machine):
    machine.tick(ALL)
    assert told(machine.tick([q.POWER])).supported == {"power": True}


def test_an_old_library_tells_what_it_can(tmp_path, monkeypatch):
    machine = Machine(tmp_path, monkeypatch, "old")
    reading = told(machine.tick())
    assert reading.get(q.ENERGY) is not None
    assert reading.get(q.MEMORY_USED) == 1073741824 + 536870912
    assert reading.get(q.ECC_CORRECTED) == 0
    # All that has a field id and no other call, GPM, and what this card lacks.
    alone = {field.quantity for field in FIELDS if field.fallback is None}
    later = {metric.quantity for metric in METRICS} | {q.MEMORY_RESERVED, q.FAN_SPEED, q.NVLINK_RATE}
    lacks = {key for key, has in reading.supported.items() if not has}
    assert lacks == {quantity.key for quantity in alone | later}
