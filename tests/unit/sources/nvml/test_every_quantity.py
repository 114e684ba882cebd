"""Every quantity of the driver: unit, sentinel, impossible values, and each error code.

A problem with one quantity affects neither the Gpu's other quantities nor other Gpus.
"""

import math
from dataclasses import dataclass

import pynvml
import pytest

from fault_rig import codes_at
from gpuledger.model import quantities as q
from gpuledger.model.quantities import QUANTITIES, Quantity
from gpuledger.sources.nvml.codes import name_of
from gpuledger.sources.nvml.queries import RATE_COUNTERS
from nvml.library import NvmlGpu
from nvml.machine import Machine, reading_of

CODES = sorted(value for name, value in vars(pynvml).items() if name.startswith("NVML_ERROR_"))
WHOLE_GPU = {pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED}
NOTHING_YET = {pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_NO_DATA}
UNSUPPORTED = {
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    pynvml.NVML_ERROR_VGPU_ECC_NOT_SUPPORTED,
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
    pynvml.NVML_ERROR_DEPRECATED,
}
BLANK_32, BLANK_64 = 0xFFFFFFFF, 0x7FFFFFFFFFFFFFF2
VOLTA, HOPPER = 5, 9


@dataclass(frozen=True)
class Row:
    """The library reports `raw` at `at`, which is `worth` in the quantity's unit.

    `blank` is the sentinel, `impossible` a value out of range; None if there is none. `fails` are the calls
    that must all fail to lose the quantity (only `at` if empty), `along` the quantities that are lost with it
    then.
    """

    quantity: Quantity
    at: str
    raw: float
    worth: float
    blank: float | None = BLANK_32
    impossible: float | None = None
    fails: tuple[str, ...] = ()
    along: frozenset[Quantity] = frozenset()
    architecture: int = HOPPER

    @property
    def calls(self) -> tuple[str, ...]:
        return self.fails or (self.at,)

    @property
    def is_field_alone(self) -> bool:
        return self.calls == (self.at,) and self.at.startswith("field.")

    @property
    def lost(self) -> frozenset[Quantity]:
        return self.along | {self.quantity}

    @property
    def lost_alone(self) -> frozenset[Quantity]:
        """Quantities that are lost if only this value is missing."""
        computed = {q.NVLINK_RATE, q.PCIE_LINK_BUSY} if self.quantity is not q.MEMORY_UTILIZATION else set()
        return frozenset({self.quantity}) | (self.along & computed)


RATES = "nvmlDeviceGetUtilizationRates"
MEMORY = "nvmlDeviceGetMemoryInfo_v2"
BAR1 = "nvmlDeviceGetBAR1MemoryInfo"
LIMITS = "nvmlDeviceGetPowerManagementLimitConstraints"
DEFAULT_LIMIT = "nvmlDeviceGetPowerManagementDefaultLimit"
MANAGEMENT_LIMIT = "nvmlDeviceGetPowerManagementLimit"
ENERGY = "nvmlDeviceGetTotalEnergyConsumption"
ECC = "nvmlDeviceGetTotalEccErrors"
BUSY = q.PCIE_LINK_BUSY
OF_RATES = (q.UTILIZATION, q.MEMORY_UTILIZATION)
OF_MEMORY = (q.MEMORY_TOTAL, q.MEMORY_RESERVED, q.MEMORY_FREE, q.MEMORY_USED)
OF_BAR1 = (q.BAR1_TOTAL, q.BAR1_FREE, q.BAR1_USED)


def number(name: str, quantity: Quantity, raw: float, worth: float, impossible: float, **more: object) -> Row:
    return Row(quantity, f"nvmlDeviceGet{name}", raw, worth, impossible=impossible, **more)


def share_without_blank(name: str, quantity: Quantity, percent: int, **more: object) -> Row:
    """A share of time from a call without a blank value, so that all-ones is invalid."""
    return Row(quantity, name, percent, percent / 100, None, BLANK_32, **more)


def clock(name: str, quantity: Quantity, mhz: int) -> Row:
    return number(name, quantity, mhz, mhz * 1_000_000, impossible=1_000_001)


def watts(quantity: Quantity, at: str, *older: str) -> Row:
    return Row(quantity, at, 123_456, 123.456, impossible=2**31, fails=(at, *older))


def counter(quantity: Quantity, field_id: int, *older: str, architecture: int = HOPPER) -> Row:
    at = f"field.{field_id}"
    return Row(quantity, at, 2**40, 2**40, BLANK_64, fails=(at, *older), architecture=architecture)


def flag(quantity: Quantity, field_id: int, architecture: int = HOPPER) -> Row:
    return Row(quantity, f"field.{field_id}", 1, 1, impossible=2, architecture=architecture)


def link(name: str, quantity: Quantity, raw: int, along: frozenset[Quantity] = frozenset()) -> Row:
    """A property of the PCIe link: 0 stands for none."""
    return number(name, quantity, raw, raw, impossible=33, blank=0, along=along)


def share(quantity: Quantity, metric_id: int) -> Row:
    return Row(quantity, f"gpm.{metric_id}", 12.5, 0.125, math.nan, 100.5)


def speed(quantity: Quantity, metric_id: int) -> Row:
    return Row(quantity, f"gpm.{metric_id}", 1.5, 1_572_864, math.nan, 1e12)


ROWS = [
    *(
        share_without_blank(
            f"{RATES}.{place}", quantity, 29, fails=(RATES,), along=frozenset({*OF_RATES, BUSY})
        )
        for place, quantity in enumerate(OF_RATES)
    ),
    share_without_blank("nvmlDeviceGetEncoderUtilization", q.ENCODER_UTILIZATION, 3),
    share_without_blank("nvmlDeviceGetDecoderUtilization", q.DECODER_UTILIZATION, 4),
    *(
        Row(quantity, f"{MEMORY}.{place}", 500, 500, BLANK_64, 2**62, fails, frozenset(OF_MEMORY))
        for fails in [(MEMORY, "nvmlDeviceGetMemoryInfo")]
        for place, quantity in enumerate(OF_MEMORY)
    ),
    *(
        Row(quantity, f"{BAR1}.{place}", 500, 500, BLANK_64, 2**62, (BAR1,), frozenset(OF_BAR1))
        for place, quantity in enumerate(OF_BAR1)
    ),
    watts(q.POWER, "nvmlDeviceGetPowerUsage"),
    watts(q.POWER_INSTANT, "field.186"),
    watts(q.POWER_LIMIT, "nvmlDeviceGetEnforcedPowerLimit"),
    watts(q.POWER_LIMIT_MAX, "field.188", LIMITS),
    watts(q.POWER_LIMIT_MIN, "field.187", LIMITS),
    watts(q.POWER_LIMIT_DEFAULT, "field.189", DEFAULT_LIMIT),
    watts(q.POWER_LIMIT_MANAGEMENT, "field.192", MANAGEMENT_LIMIT),
    counter(q.ENERGY, 83, ENERGY),
    number("Temperature.0", q.TEMPERATURE, 61, 61, impossible=201),
    Row(q.MEMORY_TEMPERATURE, "field.82", 72, 72, impossible=201),
    number("TemperatureThreshold.0", q.TEMPERATURE_SHUTDOWN, 95, 95, impossible=201),
    number("TemperatureThreshold.1", q.TEMPERATURE_SLOWDOWN, 90, 90, impossible=201),
    number("FanSpeed", q.FAN_SPEED, 105, 1.05, impossible=201),
    clock("ClockInfo.0", q.GRAPHICS_CLOCK, 1980),
    clock("ClockInfo.1", q.SM_CLOCK, 1975),
    clock("ClockInfo.2", q.MEMORY_CLOCK, 2619),
    clock("ClockInfo.3", q.VIDEO_CLOCK, 1545),
    clock("MaxClockInfo.0", q.MAX_GRAPHICS_CLOCK, 1995),
    clock("MaxClockInfo.1", q.MAX_SM_CLOCK, 1980),
    clock("MaxClockInfo.2", q.MAX_MEMORY_CLOCK, 2619),
    clock("MaxClockInfo.3", q.MAX_VIDEO_CLOCK, 1545),
    clock("ApplicationsClock.1", q.APP_SM_CLOCK, 1410),
    clock("ApplicationsClock.2", q.APP_MEMORY_CLOCK, 1215),
    number("PerformanceState", q.PERFORMANCE_STATE, 2, 2, impossible=16, blank=32, along=frozenset({BUSY})),
    Row(q.CLOCK_EVENT_REASONS, "nvmlDeviceGetCurrentClocksEventReasons", 0x85, 0x85, BLANK_64),
    counter(q.POWER_VIOLATION, 74),
    counter(q.THERMAL_VIOLATION, 75),
    counter(q.SYNC_BOOST_VIOLATION, 76),
    counter(q.BOARD_LIMIT_VIOLATION, 77),
    counter(q.LOW_UTILIZATION_VIOLATION, 78),
    counter(q.RELIABILITY_VIOLATION, 79),
    number("ComputeMode", q.COMPUTE_MODE, 3, 3, impossible=4),
    number("PersistenceMode", q.PERSISTENCE_MODE, 1, 1, impossible=2),
    number("VirtualizationMode", q.VIRTUALIZATION_MODE, 2, 2, impossible=5),
    counter(q.SOFTWARE_THERMAL_TIME, 269),
    counter(q.HARDWARE_THERMAL_TIME, 270),
    counter(q.POWER_BRAKE_TIME, 271),
    Row(q.PCIE_REPLAYS, "field.94", 7, 7, fails=("field.94", "nvmlDeviceGetPcieReplayCounter")),
    link("CurrPcieLinkGeneration", q.PCIE_GENERATION, 3, along=frozenset({BUSY})),
    link("MaxPcieLinkGeneration", q.PCIE_GENERATION_MAX, 4),
    link("GpuMaxPcieLinkGeneration", q.PCIE_GENERATION_GPU_MAX, 5),
    link("CurrPcieLinkWidth", q.PCIE_WIDTH, 8),
    link("MaxPcieLinkWidth", q.PCIE_WIDTH_MAX, 16),
    Row(q.NVLINK_SPEED, "field.90", 26_562, 26_562_000_000, impossible=2**31),
    counter(q.PCIE_TX, 197),
    counter(q.PCIE_RX, 198),
    Row(q.NVLINK_TX, "field.138", 2**30, 2**40, BLANK_64, along=frozenset({q.NVLINK_RATE})),
    Row(q.NVLINK_RX, "field.139", 2**30, 2**40, BLANK_64, along=frozenset({q.NVLINK_RATE})),
    counter(q.NVLINK_CRC_FLIT_ERRORS, 38),
    counter(q.NVLINK_CRC_DATA_ERRORS, 45),
    counter(q.NVLINK_REPLAY_ERRORS, 52),
    counter(q.NVLINK_RECOVERY_ERRORS, 59),
    counter(q.ECC_CORRECTED_VOLATILE, 3, ECC),
    counter(q.ECC_UNCORRECTED_VOLATILE, 4, ECC),
    counter(q.ECC_CORRECTED, 5, ECC),
    counter(q.ECC_UNCORRECTED, 6, ECC),
    counter(q.RETIRED_PAGES_CORRECTABLE, 29, architecture=VOLTA),
    counter(q.RETIRED_PAGES_UNCORRECTABLE, 30, architecture=VOLTA),
    flag(q.RETIRED_PAGES_PENDING, 31, architecture=VOLTA),
    Row(q.REMAPPED_ROWS_CORRECTABLE, "field.142", 9, 9),
    Row(q.REMAPPED_ROWS_UNCORRECTABLE, "field.143", 9, 9),
    flag(q.ROW_REMAP_PENDING, 144),
    flag(q.ROW_REMAP_FAILURE, 145),
    Row(q.FABRIC_STATE, "nvmlDeviceGetGpuFabricInfo", 3, 3, blank=None, impossible=4),
    Row(q.RECOVERY_ACTION, "field.230", 2, 2, impossible=256),
    share(q.ENGINE_ACTIVITY, 1),
    share(q.SM_ACTIVITY, 2),
    share(q.SM_OCCUPANCY, 3),
    share(q.TENSOR_ACTIVITY, 5),
    share(q.DRAM_ACTIVITY, 10),
    share(q.FP64_ACTIVITY, 11),
    share(q.FP32_ACTIVITY, 12),
    share(q.FP16_ACTIVITY, 13),
    speed(q.PCIE_TX_RATE, 20),
    speed(q.PCIE_RX_RATE, 21),
    speed(q.NVLINK_RX_RATE, 60),
    speed(q.NVLINK_TX_RATE, 61),
]
# MIG quantities, the state of links, and what is computed have separate tests.
ELSEWHERE = {
    q.MIG_MODE,
    q.MIG_MAX_SLICES,
    q.NVLINK_RATE,
    q.PCIE_LINK_BUSY,
    q.NVLINKS_UP,
    q.NVLINKS_DOWN,
}


@pytest.fixture
def machine(tmp_path, monkeypatch):
    made = Machine(tmp_path, monkeypatch)
    made.new_source(slow_interval=1.0)
    return made


def for_rows(rows):
    return pytest.mark.parametrize("row", list(rows), ids=lambda row: row.quantity.key)


def ready(machine, row, gpus):
    """Prepare that many equal Gpus that have reported every quantity."""
    machine.state.gpus = [NvmlGpu(fan=30, architecture=row.architecture) for _ in range(gpus)]
    machine.tick()
    complete = set(reading_of(machine.tick()).values)
    assert row.quantity in complete
    return complete


def read_again(machine, row):
    """The next tick that reads the quantity; those that are constant are read every ten minutes."""
    return machine.tick(seconds=601 if row.quantity.constant else 1)


def test_the_table_has_every_quantity():
    assert {row.quantity for row in ROWS} | ELSEWHERE == set(QUANTITIES.values())
    assert len(ROWS) + len(ELSEWHERE) == len(QUANTITIES)


@for_rows(ROWS)
def test_a_quantity_is_reported_in_its_unit(machine, row):
    complete = ready(machine, row, 1)
    machine.gpus[0].answers[row.at] = row.raw
    snapshot = read_again(machine, row)
    assert reading_of(snapshot).get(row.quantity) == pytest.approx(row.worth, rel=1e-12)
    assert reading_of(snapshot).supported[row.quantity.key] is True
    assert set(reading_of(snapshot).values) == complete and not snapshot.failures and not snapshot.invalid


@for_rows(row for row in ROWS if row.blank is not None)
def test_a_sentinel_is_omitted_without_a_failure(machine, row):
    complete = ready(machine, row, 1)
    machine.gpus[0].answers[row.at] = row.blank
    snapshot = read_again(machine, row)
    assert set(reading_of(snapshot).values) == complete - row.lost_alone
    assert not snapshot.failures and not snapshot.invalid
    assert reading_of(snapshot).supported[row.quantity.key] is True


@for_rows(row for row in ROWS if row.impossible is not None)
def test_an_impossible_value_is_omitted_counted_and_logged(machine, row, caplog):
    complete = ready(machine, row, 1)
    machine.gpus[0].answers[row.at] = row.impossible
    snapshot = read_again(machine, row)
    assert set(reading_of(snapshot).values) == complete - row.lost_alone
    assert snapshot.invalid == 1 and not snapshot.failures
    (line,) = [record.message for record in caplog.records if "cannot be true" in record.message]
    assert line.startswith(f"{row.quantity.key} of {reading_of(snapshot).device.uuid} is ")


def test_every_bound_is_in_the_table():
    bounded = {row.quantity for row in ROWS if row.impossible is not None}
    assert bounded == {row.quantity for row in ROWS if row.quantity.highest < math.inf}


# Without GPM, the PCIe rates come from counters.
@for_rows([row for row in ROWS if row.quantity not in RATE_COUNTERS])
def test_each_error_code_loses_only_its_quantity_and_is_reported(machine, row):
    """Each Gpu returns one error code; the first Gpu is healthy.

    Of codes that the source treats alike, each row has another one.
    """
    codes = codes_at(ROWS.index(row))
    complete = ready(machine, row, len(codes) + 1)
    for gpu, code in zip(machine.gpus[1:], codes, strict=True):
        gpu.errors = dict.fromkeys(row.calls, code)
    snapshot = read_again(machine, row)
    healthy, *readings = snapshot.readings
    assert set(healthy.values) == complete
    for reading, code in zip(readings, codes, strict=True):
        failures = [each for each in snapshot.failures if each.device == reading.device]
        assert {each.reason for each in failures} <= {name_of(code)}, name_of(code)
        if code in WHOLE_GPU and any(name.startswith("nvml") for name in row.calls):
            assert not reading.up and failures
            continue
        assert set(reading.values) == complete - row.lost, name_of(code)
        unsupported = code in UNSUPPORTED or (
            row.is_field_alone and code == pynvml.NVML_ERROR_INVALID_ARGUMENT
        )
        assert (reading.supported[row.quantity.key] is False) == unsupported
        assert bool(failures) == (not unsupported and code not in NOTHING_YET), name_of(code)
        assert not failures or any(row.quantity.key in each.detail for each in failures)


@pytest.mark.parametrize(("mode", "most"), [(0, 0), (1, 7)])
def test_mig_mode_and_the_maximum_number_of_mig_devices_are_read(machine, mode, most):
    machine.state.gpus = [NvmlGpu(mig=mode)]
    reading = reading_of(machine.tick([q.MIG_MODE, q.MIG_MAX_SLICES]))
    assert reading.values == {q.MIG_MODE: mode, q.MIG_MAX_SLICES: most}


def test_a_card_without_mig_support_has_no_mig_mode(machine):
    machine.state.gpus = [NvmlGpu(mig=-1)]
    snapshot = machine.tick([q.MIG_MODE, q.MIG_MAX_SLICES])
    assert reading_of(snapshot).values == {} and not snapshot.failures
    assert reading_of(snapshot).supported == {"mig_mode": False, "mig_max_slices": False}


@pytest.mark.parametrize("code", [code for code in CODES if code not in UNSUPPORTED | WHOLE_GPU])
@pytest.mark.parametrize(
    ("failing", "still_read"),
    [("nvmlDeviceGetMigMode", set()), ("nvmlDeviceGetMaxMigDeviceCount", {q.MIG_MODE})],
)
def test_an_unreadable_mig_layout_is_omitted_and_a_failure(machine, code, failing, still_read):
    machine.state.gpus = [NvmlGpu(mig=1), NvmlGpu(mig=1)]
    machine.tick()
    machine.gpus[0].errors[failing] = code
    snapshot = machine.tick([q.MIG_MODE, q.MIG_MAX_SLICES])
    assert set(reading_of(snapshot).values) == still_read
    assert set(reading_of(snapshot, 1).values) == {q.MIG_MODE, q.MIG_MAX_SLICES}
    assert [(each.device.index, each.reason) for each in snapshot.failures] == [(0, name_of(code))]
