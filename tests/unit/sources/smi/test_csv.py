"""The CSV as fallback for the XML: columns by header, names with commas, rows before an error."""

from __future__ import annotations

import re

import pytest

from builders import FakeClock
from gpuledger.host.commands import CommandResult
from gpuledger.model import quantities as q
from gpuledger.model.errors import SourceUnavailable
from gpuledger.sources.smi.csv import parse_query_apps, parse_query_gpu
from smi.recorded import ALL, Recorded, fixture, processes, read, source

FIRST, SECOND = "GPU-aaaaaaaa-0000-4000-8000-000000000001", "GPU-aaaaaaaa-0000-4000-8000-000000000002"
GPUS, APPS = fixture("cards/query-gpu.csv"), fixture("cards/query-compute-apps.csv")


@pytest.mark.parametrize(
    ("folder", "only_in_xml"),
    [("cards", {q.PCIE_REPLAYS}), ("mig", {q.MEMORY_FREE, q.MEMORY_RESERVED})],
)
def test_xml_and_csv_of_the_same_machine_agree(folder: str, only_in_xml: set[q.Quantity]) -> None:
    xml, csv = read(folder), read(folder, xml=None)
    assert processes(csv) == processes(xml)
    assert [(reading.device.uuid, reading.device.gpu.index) for reading in csv.readings] == [
        (reading.device.uuid, reading.device.gpu.index) for reading in xml.readings
    ]
    for from_csv, from_xml in zip(csv.readings, xml.readings, strict=True):
        missing = set(from_xml.values) - set(from_csv.values)
        assert missing <= only_in_xml
        assert all(from_xml.values[quantity] == value for quantity, value in from_csv.values.items())
    assert (csv.invalid, csv.failures) == (0, ())


@pytest.mark.parametrize("query", ["query_gpu", "query_compute_apps", "pmon"])
def test_a_warning_behind_the_rows_is_reported_once_and_is_no_invalid_value(query: str) -> None:
    file = {"query_gpu": "query-gpu.csv", "query_compute_apps": "query-compute-apps.csv"}.get(query, query)
    warning = "WARNING: infoROM is corrupted at gpu 0000:01:00.0"
    printed = f"{fixture(f'cards/{file}')}{warning}\n"
    snapshot = read("cards", xml=None, **{query: CommandResult(printed.encode(), exit_code=14)})
    assert snapshot.invalid == 0
    (failure,) = snapshot.failures
    assert failure.reason == "exit_14"
    assert warning in failure.detail
    plain = read("cards", xml=None)
    assert [each.values for each in snapshot.readings] == [each.values for each in plain.readings]


def test_without_the_text_report_the_csv_lists_compute_processes() -> None:
    snapshot = read("cards", xml=None, report=None)
    assert processes(snapshot) == {
        FIRST: [(52001, "C", "/opt/run a, b & c", 4812), (52002, "C", "render", 418)],
        SECOND: [(52001, "C", "/opt/run a, b & c", 1016)],
    }


def test_the_text_report_alone_is_sufficient() -> None:
    snapshot = read("cards", xml=None, query_gpu=None, query_compute_apps=None)
    assert processes(snapshot) == processes(read("cards"))
    assert snapshot.readings[0].values[q.POWER] == 211.37
    assert snapshot.readings[0].values[q.UTILIZATION] == 0.63


def test_integrated_gpus_have_uuids_without_prefix_and_no_bus_id() -> None:
    def printed(name: str) -> str:
        return re.sub(r"00000000:[0-9A-F]{2}:00\.0", "[N/A]", fixture(name).replace("GPU-", ""))

    apps = printed("cards/query-compute-apps.csv")
    csv = read(
        "cards", xml=None, report=None, query_gpu=printed("cards/query-gpu.csv"), query_compute_apps=apps
    )
    xml = read("cards", xml=re.sub(r'id="\[N/A\]"', 'id="N/A"', printed("cards/xml")))
    for snapshot, like in ((csv, read("cards", xml=None, report=None)), (xml, read("cards"))):
        assert [reading.values for reading in snapshot.readings] == [
            reading.values for reading in like.readings
        ]
        assert processes(snapshot) == {uuid[4:]: found for uuid, found in processes(like).items()}
        assert {reading.device.gpu.pci_bus_id for reading in snapshot.readings} == {""}
        assert snapshot.failures == ()
    assert all(reading.raw for reading in csv.readings)


def test_raw_has_every_column_as_printed() -> None:
    raw = read("cards", xml=None).readings[0].raw
    assert raw["clocks_event_reasons.active"] == "0x0000000000000004"
    assert raw["memory.total [MiB]"] == "24564 MiB"
    assert raw["ecc.errors.corrected.aggregate.total"] == "[N/A]"
    assert read("cards").readings[0].raw == {}


def test_raw_has_columns_that_were_not_queried() -> None:
    title, *rows = GPUS.splitlines()
    more = "\n".join([title + ", brand.new_thing [K]", *(row + ", 7 K" for row in rows), ""])
    snapshot = read("cards", xml=None, query_gpu=more)
    assert snapshot.readings[0].raw["brand.new_thing [K]"] == "7 K"
    assert snapshot.invalid == 0


def test_the_unit_may_be_only_in_the_header() -> None:
    bare = GPUS
    for unit in (" MiB", " %", " W", " MHz"):
        bare = bare.replace(unit + ",", ",").replace(unit + "\n", "\n")
    snapshot = read("cards", xml=None, query_gpu=bare)
    assert snapshot.readings[0].values == read("cards", xml=None).readings[0].values


@pytest.mark.parametrize(
    "name", ["python3", "a, b", "a, b, c, 12 MiB", ", ", "x,y", "12, 34", "[N/A], 5 MiB"]
)
def test_commas_in_a_process_name_do_not_shift_columns(name: str) -> None:
    apps = parse_query_apps(
        "gpu_uuid, gpu_bus_id, pid, process_name, used_gpu_memory [MiB]\n"
        f"GPU-1, 00000000:01:00.0, 42, {name}, 8 MiB\n"
    )
    (app,) = apps.take_processes("00000000:01:00.0", "")
    assert (app["pid"], app["used_gpu_memory"]) == ("42", "8 MiB")
    assert app["process_name"] == name.strip()


def test_rows_before_an_error_line_are_kept() -> None:
    lines = APPS.splitlines()
    message = "Unable to determine the device handle for GPU0000:81:00.0: Unknown Error"
    snapshot = read("cards", xml=None, report=None, query_compute_apps="\n".join([*lines[:3], message, ""]))
    assert [pid for pid, *_ in processes(snapshot)[FIRST]] == [52001, 52002]
    assert SECOND not in processes(snapshot)
    assert "UNKNOWN" in [failure.reason for failure in snapshot.failures if failure.part == "processes"]


def test_an_error_line_in_the_gpu_table_is_a_failure_of_that_gpu() -> None:
    lines = GPUS.splitlines()
    message = "Unable to determine the device handle for GPU0000:81:00.0: GPU is lost.  Reboot the system"
    clock, run = FakeClock(), Recorded("cards", xml=None)
    smi = source(run, clock=clock)
    assert all(reading.up for reading in smi.read(ALL).readings)
    run.instead |= {"query-gpu": CommandResult("\n".join([*lines[:2], message, ""]).encode(), exit_code=15)}
    snapshot = smi.read(ALL)
    healthy, lost = snapshot.readings
    assert healthy.up and healthy.device.uuid == FIRST
    assert (lost.up, lost.processes, lost.device.uuid) == (False, None, SECOND)
    assert {failure.reason for failure in snapshot.failures} == {"GPU_IS_LOST", "exit_15"}


def test_a_gpu_that_requires_reset_in_every_cell_is_down() -> None:
    title, first, second = GPUS.splitlines()
    cells = second.split(", ")
    down_cells = [
        cell
        if name.split(" [")[0] in ("uuid", "pci.bus_id", "index", "count", "name")
        else "[GPU requires reset]"
        for name, cell in zip(title.split(", "), cells, strict=True)
    ]
    snapshot = read("cards", xml=None, query_gpu="\n".join([title, first, ", ".join(down_cells), ""]))
    assert [(reading.up, reading.processes is None) for reading in snapshot.readings] == [
        (True, False),
        (False, True),
    ]


def test_a_field_that_the_driver_rejects_is_omitted_from_then_on() -> None:
    run = Recorded("mig", xml=None)
    smi = source(run)
    assert smi.read(ALL).readings[0].values[q.POWER] == 131.02
    rejected = run.queries.count("query-gpu") - 1
    assert rejected > 0
    smi.read(ALL)
    assert run.queries.count("query-gpu") == rejected + 2


def test_old_and_new_names_of_a_field_are_the_same_quantity() -> None:
    old = GPUS.replace("clocks.current.sm", "clocks.sm").replace(
        "clocks_event_reasons", "clocks_throttle_reasons"
    )
    snapshot = read("cards", xml=None, query_gpu=old)
    assert snapshot.readings[0].values[q.SM_CLOCK] == 2_520_000_000
    assert snapshot.readings[0].raw["clocks_throttle_reasons.active"] == "0x0000000000000004"


def test_a_duplicate_column_is_ignored() -> None:
    text = GPUS.replace("power.limit [W]", "power.draw [W]")
    snapshot = read("cards", xml=None, query_gpu=text)
    assert q.POWER not in snapshot.readings[0].values
    assert snapshot.readings[0].values[q.TEMPERATURE] == 57


def test_a_number_at_a_truncated_end_is_ignored() -> None:
    cut = APPS[: APPS.rindex(" MiB")]
    for text, memory in ((cut, ""), (APPS.rstrip("\n"), "1016 MiB")):
        (app,) = parse_query_apps(text).take_processes("00000000:81:00.0", "")
        assert app["used_gpu_memory"] == memory


def test_a_row_with_too_few_cells_is_unreadable() -> None:
    output = parse_query_gpu(GPUS[: GPUS.rindex(", 700.00 W")])
    assert len(output.blocks) == 1
    assert [problem.reason for problem in output.problems] == ["ROW_UNREADABLE"]
    assert not output.is_complete


def test_no_devices_were_found_makes_the_source_unavailable() -> None:
    with pytest.raises(SourceUnavailable, match="finds no GPU") as caught:
        read("cards", xml="No devices were found\n")
    assert caught.value.reason == "no_devices"


def test_mig_without_the_text_report_reports_unknown_instances() -> None:
    snapshot = read("mig", xml=None, report=None)
    assert snapshot.devices_failed
    assert [failure.reason for failure in snapshot.failures] == ["MIG_IDS_UNKNOWN"]


def test_the_xml_is_retried_after_one_minute() -> None:
    clock, run = FakeClock(), Recorded("cards", xml=None)
    smi = source(run, clock=clock)
    smi.read(ALL)
    run.instead.clear()
    clock.advance(59)
    smi.read(ALL)
    assert run.queries.count("xml") == 1
    clock.advance(1)
    assert smi.read(ALL).readings[0].raw == {}
    assert run.queries.count("xml") == 2
