"""Columns of nvidia-smi that are read from the driver: cells, reasons of absence, and when calls are made."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.model import quantities as q
from gpuledger.model.enumeration_words import ABSENT
from gpuledger.model.quantities import COLUMNS
from gpuledger.model.snapshot import Reading, Snapshot
from gpuledger.model.text import clean_name
from gpuledger.sources.nvml.column_queries import COLUMN_CALLS, COLUMN_FIELDS, COLUMNS_READ
from nvml.cards import CARDS
from nvml.library import NvmlGpu
from nvml.machine import Machine, reading_of

WANTED = frozenset({q.POWER, COLUMNS})
NOT_SUPPORTED, NO_PERMISSION, GPU_IS_LOST, FUNCTION_NOT_FOUND, UNKNOWN = 3, 4, 15, 13, 999
ERRORS = "nvmlDeviceGetMemoryErrorCounter"
SRAM = "nvmlDeviceGetSramEccErrorStatus"
PLATFORM = "nvmlDeviceGetPlatformInfo"
BLACKWELL, TURING = 10, 6
# Calls that no other reader makes.
SHARED = ("nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetAccountingMode", "nvmlDeviceGetMigMode")
ALONE = [
    call for call in COLUMN_CALLS if call.call not in SHARED and not call.replaced_by and not call.of_driver
]


def ecc(kind: int, counter: int, place: int) -> dict[str, int]:
    return {f"{ERRORS}.{kind}.{counter}.{place}": 2**40}


# The card's numbers, the driver's answers, and the cells.
GIVEN: list[tuple[dict[str, int], dict[str, float], dict[str, str]]] = [
    (
        {"bus": 0x83},
        {},
        {
            "pci.domain": "0x0000",
            "pci.bus": "0x83",
            "pci.device": "0x00",
            "pci.device_id": "0x233010DE",
            "pci.sub_device_id": "0x16C110DE",
            "pci.baseClass": "0x3",
            "pci.subClass": "0x2",
        },
    ),
    ({"display": 1}, {}, {"display_attached": "Yes", "display_active": "Enabled"}),
    ({"accounting": 1}, {}, {"accounting.mode": "Enabled", "accounting.buffer_size": "4000"}),
    (
        {},
        {"nvmlDeviceGetInforomVersion.2": 1.5},
        {"inforom.oem": "2.1", "inforom.ecc": "7.16", "inforom.pwr": "1.5"},
    ),
    ({"supported_reasons": 0x1FF}, {}, {"clocks_event_reasons.supported": "0x00000000000001FF"}),
    ({"jpeg": 31, "ofa": 100}, {}, {"utilization.jpeg [%]": "31 %", "utilization.ofa [%]": "100 %"}),
    ({"jpeg": 0xFFFFFFFF, "ofa": 101}, {}, {"utilization.jpeg [%]": ABSENT, "utilization.ofa [%]": ABSENT}),
    (
        {"sessions": 3},
        {"nvmlDeviceGetEncoderStats.1": 60, "nvmlDeviceGetEncoderStats.2": 1500},
        {
            "encoder.stats.sessionCount": "3",
            "encoder.stats.averageFps": "60",
            "encoder.stats.averageLatency": "1500",
        },
    ),
    (
        {"fbc_sessions": 2},
        {"nvmlDeviceGetFBCStats.1": 30, "nvmlDeviceGetFBCStats.2": 900},
        {"fbc.stats.sessionCount": "2", "fbc.stats.averageFps": "30", "fbc.stats.averageLatency": "900"},
    ),
    (
        {"architecture": BLACKWELL},
        {},
        {"dramEncryption.mode.current": "Disabled", "dramEncryption.mode.pending": "Enabled"},
    ),
    ({"ecc_mode": 1, "ecc_pending": 0}, {}, {"ecc.mode.current": "Enabled", "ecc.mode.pending": "Disabled"}),
    *(
        (
            {"architecture": TURING if place != 7 else BLACKWELL},
            ecc(error, counter, place),
            {f"ecc.errors.{kind}.{span}.{name}": str(2**40) for name in names},
        )
        for error, kind in enumerate(("corrected", "uncorrected"))
        for counter, span in enumerate(("volatile", "aggregate"))
        for place, names in (
            (0, ("l1_cache",)),
            (1, ("l2_cache",)),
            (2, ("device_memory", "dram")),
            (3, ("register_file",)),
            (4, ("texture_memory",)),
            (6, ("cbu",)),
            (7, ("sram",)),
        )
    ),
    (
        {"architecture": TURING},
        ecc(0, 0, 2) | {f"{ERRORS}.0.0.2": 2**64 - 1},
        {
            "ecc.errors.corrected.volatile.dram": ABSENT,
        },
    ),
    (
        {},
        {f"{SRAM}.{number}": 10 + number for number in range(11)} | {f"{SRAM}.11": 1},
        {
            "ecc.errors.uncorrected.aggregate.sram.parity": "10",
            "ecc.errors.uncorrected.aggregate.sram.secded": "11",
            "ecc.errors.uncorrected.volatile.sram.parity": "13",
            "ecc.errors.uncorrected.volatile.sram.secded": "14",
            "ecc.errors.uncorrected.aggregate.sram.l2": "16",
            "ecc.errors.uncorrected.aggregate.sram.sm": "17",
            "ecc.errors.uncorrected.aggregate.sram.pcie": "18",
            "ecc.errors.uncorrected.aggregate.sram.mcu": "19",
            "ecc.errors.uncorrected.aggregate.sram.other": "20",
            "ecc.errors.uncorrected.aggregate.sram.thresholdExceeded": "Yes",
        },
    ),
    (
        {},
        {f"nvmlDeviceGetRowRemapperHistogram.{number}": 5 - number for number in range(5)},
        {
            "remapped_rows.histogram.max": "5",
            "remapped_rows.histogram.high": "4",
            "remapped_rows.histogram.partial": "3",
            "remapped_rows.histogram.low": "2",
            "remapped_rows.histogram.none": "1",
        },
    ),
    ({"margin": 47}, {}, {"temperature.gpu.tlimit": "47"}),
    # Degrees beyond the limit.
    ({"margin": 2**32 - 3}, {}, {"temperature.gpu.tlimit": "-3"}),
    ({"mig": 0, "mig_pending": 1}, {}, {"mig.mode.pending": "Enabled"}),
    ({"mig": -1}, {}, {"mig.mode.pending": ABSENT}),
    (
        {},
        {"nvmlDeviceGetGspFirmwareMode.0": 0},
        {"gsp.mode.current": "Disabled", "gsp.mode.default": "Enabled"},
    ),
    ({}, {"nvmlDeviceGetC2cModeInfoV": 1}, {"c2c.mode": "Enabled"}),
    (
        {"protected": (1 << 30) + 1, "protected_used": 1 << 20},
        {},
        {
            "protected_memory.total [MiB]": "1025 MiB",
            "protected_memory.used [MiB]": "1 MiB",
            "protected_memory.free [MiB]": "1024 MiB",
        },
    ),
    (
        {},
        {},
        {
            "conf_compute.environment": "0",
            "conf_compute.feature": "Disabled",
            "conf_compute.devtools_mode": "Disabled",
        },
    ),
    ({"fabric": 3, "fabric_clique": 7}, {}, {"fabric.cliqueId": "7"}),
    ({"fabric": 3, "fabric_clique": 7, "fabric_version": 2}, {}, {"fabric.cliqueId": "7"}),
    # Without a fabric, 0 would name a clique.
    ({"fabric": 0}, {}, {"fabric.cliqueId": ABSENT}),
    *(
        (
            {"platform_version": version},
            {},
            {
                "platform.chassis_serial_number": "1820325",
                "platform.slot_number": "1",
                "platform.tray_index": "2",
                "platform.host_id": "3",
                "platform.module_id": "4",
                "platform.gpu_fabric_guid": "0x0001020304050607",
            },
        )
        for version in (1, 2)
    ),
    ({"virtualization": 3, "vgpus": 2}, {}, {"vgpu.active_instances": "2"}),
    ({"virtualization": 3, "vgpus": 0}, {}, {"vgpu.active_instances": "0"}),
    ({"virtualization": 0}, {}, {"vgpu.active_instances": ABSENT}),
    ({"power_average": 98_765}, {}, {"power.draw.average [W]": "98.77 W"}),
    ({"edpp": 95}, {}, {"edpp_multiplier [%]": "95.00 %"}),
    (
        {"inactive_corrected": 4, "inactive_uncorrected": 5},
        {},
        {"remapped_rows.correctable_inactive": "4", "remapped_rows.uncorrectable_inactive": "5"},
    ),
    ({"inactive_corrected": 0xFFFFFFFF}, {}, {"remapped_rows.correctable_inactive": ABSENT}),
]


@pytest.fixture
def machine(tmp_path, monkeypatch):
    return Machine(tmp_path, monkeypatch)


def read(machine: Machine, *, seconds: float = 11.0) -> Reading:
    return reading_of(machine.tick(WANTED, seconds=seconds))


@pytest.mark.parametrize(("numbers", "answers", "cells"), GIVEN, ids=lambda part: ",".join(map(str, part)))
def test_a_column_has_the_cell_that_nvidia_smi_prints(machine, numbers, answers, cells):
    machine.state.gpus = [NvmlGpu(**numbers)]
    machine.gpus[0].answers = answers
    found = read(machine)
    assert {header: found.raw[header] for header in cells} == cells
    assert {found.supported[header.partition(" ")[0]] for header in cells} == {ABSENT not in cells.values()}


def test_every_column_is_tested_but_those_of_old_drivers_and_of_the_bus():
    tested = {header for _, _, cells in GIVEN for header in cells}
    others = {"clocks_throttle_reasons.supported", "pcie.link.gen.hostmax"}
    assert tested | others == {column.header for column in COLUMNS_READ}


@given(written=st.binary(min_size=128, max_size=128))
def test_a_cell_can_be_exported_whatever_the_driver_writes(written):
    for call in COLUMN_CALLS:
        members = call.layout.unpack_from(written)
        cells = [column.write(members) for column in call.columns]
        assert [clean_name(cell) for cell in cells] == cells


def test_columns_are_read_only_if_they_are_wanted(machine):
    seen = reading_of(machine.tick())
    assert (seen.raw, machine.count("nvmlDeviceGetEccMode"), machine.count(SRAM)) == ({}, 0, 0)
    assert "ecc.mode.current" not in seen.supported


def test_a_reading_makes_only_the_calls_of_its_depth(machine):
    machine.state.gpus = [NvmlGpu()]
    rare, slow, fast = "nvmlDeviceGetPciInfoExt", "nvmlDeviceGetEccMode", "nvmlDeviceGetMarginTemperature"

    def made(seconds: float) -> list[int]:
        before = [machine.count(call) for call in (rare, slow, fast)]
        read(machine, seconds=seconds)
        return [machine.count(call) - count for call, count in zip((rare, slow, fast), before, strict=True)]

    assert [made(seconds) for seconds in (1, 1, 10, 1, 600)] == [
        [1, 1, 1],
        [0, 0, 1],
        [0, 1, 1],
        [0, 0, 1],
        [1, 1, 1],
    ]


def test_calls_per_reading_are_bounded(machine):
    machine.state.gpus = [NvmlGpu()]
    read(machine)
    counts = []
    for seconds in (1, 1, 10):
        before = machine.calls
        read(machine, seconds=seconds)
        counts.append(machine.calls - before)
    reading_of(machine.tick({q.POWER}))
    before = machine.calls
    machine.tick({q.POWER})
    without = machine.calls - before
    # JPEG, OFA, encoder, capture, margin and one batch of fields; then also two of displays, accounting, ECC
    # mode, 8 counters by place, SRAM, histogram, MIG, protected memory, confidential computing, fabric. The
    # number of GPUs and the mode of accounting are also read every ten seconds.
    assert counts == [without + 6, without + 6, without + 6 + 18 + 2]


def test_what_the_card_lacks_is_queried_again_after_ten_minutes(machine):
    machine.state.gpus = [NvmlGpu(mig=-1)]
    machine.gpus[0].errors = {SRAM: NOT_SUPPORTED}
    assert read(machine).raw["ecc.errors.uncorrected.volatile.sram.parity"] == ABSENT
    read(machine)
    assert machine.count(SRAM) == 1
    machine.gpus[0].errors = {}
    found = read(machine, seconds=600)
    assert found.raw["ecc.errors.uncorrected.volatile.sram.parity"] == "0"
    assert found.supported["ecc.errors.uncorrected.volatile.sram.parity"] is True


@pytest.mark.parametrize(
    ("code", "cell"),
    [
        (NOT_SUPPORTED, "[N/A]"),
        (NO_PERMISSION, "[Insufficient Permissions]"),
        (FUNCTION_NOT_FOUND, "[Function Not Found]"),
        (25, "[Function Not Found]"),
        (26, "[Requested functionality has been deprecated]"),
    ],
)
def test_an_absent_column_has_the_reason_as_its_cell(machine, code, cell):
    machine.state.gpus = [NvmlGpu(), NvmlGpu()]
    columns = [column for call in ALONE for column in call.columns]
    columns += [each.column for each in COLUMN_FIELDS]
    machine.gpus[0].errors = dict.fromkeys((call.call for call in ALONE), code)
    machine.gpus[0].errors |= {f"field.{each.field_id}": code for each in COLUMN_FIELDS}
    snapshot = machine.tick(WANTED)
    found, other = snapshot.readings
    assert {found.raw[column.header] for column in columns} == {cell}
    assert {found.supported[column.field] for column in columns} == {False}
    # Neither other columns nor another GPU, and no failure.
    assert (found.get(q.POWER), found.raw["mig.mode.pending"], snapshot.failures) == (100.0, "Disabled", ())
    assert (other.raw["ecc.mode.current"], other.raw["power.draw.average [W]"]) == ("Enabled", "99.00 W")


def test_another_error_is_reported_in_each_reading_until_the_call_succeeds(machine):
    machine.state.gpus = [NvmlGpu()]
    machine.gpus[0].errors = {PLATFORM: UNKNOWN}
    snapshots = [machine.tick(WANTED, seconds=seconds) for seconds in (1, 1, 10)]
    for snapshot in snapshots:
        assert [(each.part, each.reason) for each in snapshot.failures] == [("readings", "UNKNOWN")]
        assert PLATFORM in snapshot.failures[0].detail
        assert reading_of(snapshot).raw["platform.host_id"] == "[Unknown Error]"
        assert "platform.host_id" not in reading_of(snapshot).supported
    # A constant is read again with the slow ones, not only after ten minutes.
    assert machine.count(PLATFORM) == 2
    machine.gpus[0].errors = {}
    after = machine.tick(WANTED, seconds=10)
    assert (after.failures, reading_of(after).raw["platform.host_id"]) == ((), "3")


def test_a_lost_gpu_is_down_and_everything_is_read_again(machine):
    machine.state.gpus = [NvmlGpu(), NvmlGpu()]
    machine.tick(WANTED)
    machine.gpus[0].errors = {"nvmlDeviceGetMarginTemperature": GPU_IS_LOST}
    snapshot = machine.tick(WANTED)
    assert [(each.up, bool(each.raw)) for each in snapshot.readings] == [(False, False), (True, True)]
    machine.gpus[0].errors = {}
    machine.gpus[0].numbers["ecc_pending"] = 0
    machine.tick(WANTED, seconds=61)
    assert reading_of(machine.tick(WANTED, seconds=1)).raw["ecc.mode.pending"] == "Disabled"


def test_an_unknown_version_of_a_structure_is_no_value(machine):
    machine.state.gpus = [NvmlGpu(platform_version=3)]
    machine.gpus[0].errors = {PLATFORM: 25}
    found = read(machine)
    assert found.raw["platform.host_id"] == "[Function Not Found]"
    assert machine.count(PLATFORM) == 2


def test_an_old_library_names_reasons_for_clocks_as_its_nvidia_smi(tmp_path, monkeypatch):
    machine = Machine(tmp_path, monkeypatch, "old")
    found = read(machine)
    assert found.raw["clocks_throttle_reasons.supported"] == "0x00000000000001FF"
    assert found.raw["clocks_event_reasons.supported"] == "[Function Not Found]"
    assert found.raw["power.draw.average [W]"] == "[Function Not Found]"
    assert (found.raw["ecc.mode.current"], found.raw["ecc.errors.corrected.volatile.dram"]) == (
        "Enabled",
        "0",
    )
    assert "clocks_throttle_reasons.supported" not in read(Machine(tmp_path, monkeypatch)).raw


SAMPLED = frozenset({*WANTED, q.PCIE_TX_RATE, q.PCIE_RX_RATE, q.PCIE_SAMPLES})
PCIE = "nvmlDeviceGetPcieThroughput"


def rates(snapshot: Snapshot) -> list[float | None]:
    return [reading_of(snapshot).get(rate) for rate in (q.PCIE_TX_RATE, q.PCIE_RX_RATE)]


def test_pcie_rates_before_ampere_are_measured_every_ten_seconds_on_request(machine):
    machine.state.gpus = [CARDS["volta"]()]
    assert rates(machine.tick(SAMPLED - {q.PCIE_SAMPLES})) == [None, None]
    assert machine.count(PCIE) == 0
    snapshot = machine.tick(SAMPLED, seconds=10)
    assert rates(snapshot) == [1_000_000, 1_001_000]
    assert reading_of(snapshot).supported["pcie_tx_rate"] is True
    machine.gpus[0].answers = {f"{PCIE}.0": 7}
    # The last sample is exported until the next.
    assert rates(machine.tick(SAMPLED)) == [1_000_000, 1_001_000]
    assert rates(machine.tick(SAMPLED, seconds=10)) == [7_000, 1_001_000]
    machine.gpus[0].errors = {f"{PCIE}.1": NOT_SUPPORTED}
    assert rates(machine.tick(SAMPLED, seconds=10)) == [7_000, None]
    assert rates(machine.tick(SAMPLED - {q.PCIE_SAMPLES})) == [None, None]
    machine.gpus[0].errors = {f"{PCIE}.0": UNKNOWN}
    for seconds in (10, 1, 10):
        snapshot = machine.tick(SAMPLED, seconds=seconds)
        assert (rates(snapshot), [each.reason for each in snapshot.failures]) == ([None, None], ["UNKNOWN"])


@pytest.mark.parametrize("name", ["ampere", "ampere-mig", "ada-consumer", "hopper", "hopper-mig"])
def test_pcie_rates_that_a_counter_gives_are_not_measured(machine, name):
    machine.state.gpus = [CARDS[name]()]
    for _ in range(3):
        snapshot = machine.tick(SAMPLED, seconds=10)
    assert None not in rates(snapshot)
    assert machine.count(PCIE) == 0


@pytest.mark.parametrize("name", CARDS)
def test_no_card_fails(machine, name):
    machine.state.gpus = [CARDS[name]()]
    snapshot = machine.tick(WANTED)
    assert snapshot.failures == ()
    assert all(bool(each.raw) is (each.device is reading_of(snapshot).device) for each in snapshot.readings)


@pytest.mark.parametrize(("generation", "cell"), [(4, "4"), (None, ABSENT)])
def test_the_generation_of_the_host_is_that_of_the_port(machine, generation, cell):
    class Bus:
        def without_driver(self):
            return ()

        def gpus(self):
            return ()

        def slot_width(self, address):
            return None

        def slot_generation(self, address):
            return generation if address == "00000000:01:00.0" else None

    machine.new_source(pci=Bus())
    found = read(machine)
    assert found.raw["pcie.link.gen.hostmax"] == cell
    assert found.supported["pcie.link.gen.hostmax"] is (generation is not None)
