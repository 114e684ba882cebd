"""The CSV stands in for the XML: columns by header, names with commas, rows before an error."""

from __future__ import annotations

import pytest

from builders import FakeClock
from gpuledger.model import quantities as q
from gpuledger.model.errors import SourceUnavailable
from gpuledger.sources.smi.command import Ran
from gpuledger.sources.smi.csv import parse_query_apps, parse_query_gpu
from smi.recorded import ALL, Recorded, fixture, processes, read, source

FIRST, SECOND = "GPU-aaaaaaaa-0000-4000-8000-000000000001", "GPU-aaaaaaaa-0000-4000-8000-000000000002"
GPUS, APPS = fixture("cards/query-gpu.csv"), fixture("cards/query-compute-apps.csv")


@pytest.mark.parametrize(
    ("folder", "not_columns"),
    [("cards", {q.PCIE_REPLAYS}), ("mig", {q.MEMORY_FREE, q.MEMORY_RESERVED})],
)
def test_xml_and_csv_of_one_machine_agree(folder: str, not_columns: set[q.Quantity]) -> None:
    xml, csv = read(folder), read(folder, xml=None)
    assert processes(csv) == processes(xml)
    assert [(one.device.uuid, one.device.gpu.index) for one in csv.readings] == [
        (one.device.uuid, one.device.gpu.index) for one in xml.readings
    ]
    for ours, theirs in zip(csv.readings, xml.readings, strict=True):
        missing = set(theirs.values) - set(ours.values)
        assert missing <= not_columns
        assert all(theirs.values[quantity] == value for quantity, value in ours.values.items())
    assert (csv.invalid, csv.failures) == (0, ())


def test_without_the_report_the_compute_processes_are_told() -> None:
    seen = read("cards", xml=None, report=None)
    assert processes(seen) == {
        FIRST: [(52001, "C", "/opt/run a, b & c", 4812), (52002, "C", "render", 418)],
        SECOND: [(52001, "C", "/opt/run a, b & c", 1016)],
    }


def test_the_report_alone_is_enough() -> None:
    seen = read("cards", xml=None, query_gpu=None, query_compute_apps=None)
    assert processes(seen) == processes(read("cards"))
    assert seen.readings[0].values[q.POWER] == 211.37
    assert seen.readings[0].values[q.UTILIZATION] == 0.63


def test_every_column_travels_raw_as_printed() -> None:
    raw = read("cards", xml=None).readings[0].raw
    assert raw["clocks_event_reasons.active"] == "0x0000000000000004"
    assert raw["memory.total [MiB]"] == "24564 MiB"
    assert raw["ecc.errors.corrected.aggregate.total"] == "[N/A]"
    assert read("cards").readings[0].raw == {}


def test_columns_that_nobody_asked_for_travel_raw() -> None:
    title, *rows = GPUS.splitlines()
    more = "\n".join([title + ", brand.new_thing [K]", *(row + ", 7 K" for row in rows), ""])
    seen = read("cards", xml=None, query_gpu=more)
    assert seen.readings[0].raw["brand.new_thing [K]"] == "7 K"
    assert seen.invalid == 0


def test_the_unit_may_stand_in_the_header_alone() -> None:
    bare = GPUS
    for unit in (" MiB", " %", " W", " MHz"):
        bare = bare.replace(unit + ",", ",").replace(unit + "\n", "\n")
    seen = read("cards", xml=None, query_gpu=bare)
    assert seen.readings[0].values == read("cards", xml=None).readings[0].values


@pytest.mark.parametrize(
    "name", ["python3", "a, b", "a, b, c, 12 MiB", ", ", "x,y", "12, 34", "[N/A], 5 MiB"]
)
def test_commas_in_a_name_move_nothing(name: str) -> None:
    apps = parse_query_apps(
        "gpu_uuid, gpu_bus_id, pid, process_name, used_gpu_memory [MiB]\n"
        f"GPU-1, 00000000:01:00.0, 42, {name}, 8 MiB\n"
    )
    (row,) = apps.of("00000000:01:00.0", "")
    assert (row.pid, row.memory) == ("42", "8 MiB")
    assert row.name == name.strip()


def test_rows_before_an_error_line_are_kept() -> None:
    lines = APPS.splitlines()
    said = "Unable to determine the device handle for GPU0000:81:00.0: Unknown Error"
    seen = read("cards", xml=None, report=None, query_compute_apps="\n".join([*lines[:3], said, ""]))
    assert [pid for pid, *_ in processes(seen)[FIRST]] == [52001, 52002]
    assert SECOND not in processes(seen)
    assert "UNKNOWN" in [failure.reason for failure in seen.failures if failure.part == "processes"]


def test_an_error_line_in_the_table_of_gpus_is_that_gpus_failure() -> None:
    lines = GPUS.splitlines()
    said = "Unable to determine the device handle for GPU0000:81:00.0: GPU is lost.  Reboot the system"
    clock, run = FakeClock(), Recorded("cards", xml=None)
    smi = source(run, clock=clock)
    assert all(reading.up for reading in smi.read(ALL).readings)
    run.instead |= {"query-gpu": Ran("\n".join([*lines[:2], said, ""]).encode(), code=15)}
    seen = smi.read(ALL)
    well, lost = seen.readings
    assert well.up and well.device.uuid == FIRST
    assert (lost.up, lost.processes, lost.device.uuid) == (False, None, SECOND)
    assert {failure.reason for failure in seen.failures} == {"GPU_IS_LOST", "exit_15"}


def test_cells_that_say_reset_are_a_gpu_that_is_down() -> None:
    title, first, second = GPUS.splitlines()
    cells = second.split(", ")
    ill = [
        cell
        if name.split(" [")[0] in ("uuid", "pci.bus_id", "index", "count", "name")
        else "[GPU requires reset]"
        for name, cell in zip(title.split(", "), cells, strict=True)
    ]
    seen = read("cards", xml=None, query_gpu="\n".join([title, first, ", ".join(ill), ""]))
    assert [(reading.up, reading.processes is None) for reading in seen.readings] == [
        (True, False),
        (False, True),
    ]


def test_a_field_that_the_driver_does_not_know_is_left_out_from_then_on() -> None:
    run = Recorded("mig", xml=None)
    smi = source(run)
    assert smi.read(ALL).readings[0].values[q.POWER] == 131.02
    refused = run.questions.count("query-gpu") - 1
    assert refused > 0
    smi.read(ALL)
    assert run.questions.count("query-gpu") == refused + 2


def test_renamed_fields_are_one_field() -> None:
    old = GPUS.replace("clocks.current.sm", "clocks.sm").replace(
        "clocks_event_reasons", "clocks_throttle_reasons"
    )
    seen = read("cards", xml=None, query_gpu=old)
    assert seen.readings[0].values[q.SM_CLOCK] == 2_520_000_000
    assert seen.readings[0].raw["clocks_throttle_reasons.active"] == "0x0000000000000004"


def test_a_column_that_is_there_twice_is_not_read() -> None:
    text = GPUS.replace("power.limit [W]", "power.draw [W]")
    seen = read("cards", xml=None, query_gpu=text)
    assert q.POWER not in seen.readings[0].values
    assert seen.readings[0].values[q.TEMPERATURE] == 57


def test_a_number_at_a_cut_end_is_not_believed() -> None:
    cut = APPS[: APPS.rindex(" MiB")]
    assert parse_query_apps(cut).of("00000000:81:00.0", "")[0].memory == ""
    assert parse_query_apps(APPS.rstrip("\n")).of("00000000:81:00.0", "")[0].memory == "1016 MiB"


def test_a_row_with_too_few_cells_is_no_row() -> None:
    answer = parse_query_gpu(GPUS[: GPUS.rindex(", 700.00 W")])
    assert len(answer.blocks) == 1
    assert [trouble.reason for trouble in answer.troubles] == ["ROW_UNREADABLE"]
    assert not answer.whole


def test_no_devices_is_said_and_is_no_data() -> None:
    with pytest.raises(SourceUnavailable, match="finds no GPU") as caught:
        read("cards", xml="No devices were found\n")
    assert caught.value.reason == "no_devices"


def test_mig_without_the_report_keeps_the_instances_it_cannot_see() -> None:
    seen = read("mig", xml=None, report=None)
    assert seen.devices_failed
    assert [failure.reason for failure in seen.failures] == ["MIG_IDS_UNKNOWN"]


def test_the_xml_is_tried_again_after_a_minute() -> None:
    clock, run = FakeClock(), Recorded("cards", xml=None)
    smi = source(run, clock=clock)
    smi.read(ALL)
    run.instead.clear()
    clock.advance(59)
    smi.read(ALL)
    assert run.questions.count("xml") == 1
    clock.advance(1)
    assert smi.read(ALL).readings[0].raw == {}
    assert run.questions.count("xml") == 2
