"""Driver 610: notes in brackets beside values, and new names of the versions, in every format."""

from __future__ import annotations

import re

import pytest

from gpuledger.host.commands import CommandResult
from gpuledger.model import quantities as q
from gpuledger.model.checks import Verdict
from gpuledger.sources.smi.checks import find_smi_problems
from gpuledger.sources.smi.csv import parse_query_gpu, replace_field
from gpuledger.sources.smi.parsed_output import SmiOutput, without_note
from gpuledger.sources.smi.settings import SmiSettings
from gpuledger.sources.smi.text_report import parse_text_report
from gpuledger.sources.smi.xml import parse_xml
from smi.recorded import Recorded, fixture, processes, read, source

NOTE = "[Deprecated; will be removed in CUDA 14.0. Use KMD Version instead]"
XML, REPORT, GPUS = fixture("cards/xml"), fixture("cards/report"), fixture("cards/query-gpu.csv")


def report(head: str) -> SmiOutput:
    return parse_text_report(
        f"==NVSMI LOG==\n{head}\nAttached GPUs   : 1\nGPU 00000000:01:00.0\n    Minor : 0\n"
    )


@pytest.mark.parametrize(
    ("output", "versions"),
    [
        (parse_xml(f"<driver_version>612.10 {NOTE}</driver_version><cuda_version>13.4 {NOTE}</cuda_version>"),
         ("612.10", "13.4")),
        (parse_xml("<kmd_version>625.01</kmd_version><cuda_umd_version>14.0</cuda_umd_version>"),
         ("625.01", "14.0")),
        (parse_xml("<kmd_version>N/A</kmd_version><driver_version>612.10</driver_version>"), ("612.10", "")),
        (parse_xml("<driver_version>[N/A]</driver_version>"), ("", "")),
        (report(f"Driver Version : 612.10 {NOTE}\nKMD Version : 612.10\nCUDA Version : 13.4 {NOTE}"),
         ("612.10", "13.4")),
        (report("KMD Version : 625.01\nCUDA UMD Version : 14.0"), ("625.01", "14.0")),
        (report(f"Driver Version {NOTE} : 612.10"), ("612.10", "")),
        (parse_query_gpu(f"uuid, driver_version {NOTE}\nGPU-1, 612.10 {NOTE}\n"), ("612.10", "")),
        (parse_query_gpu("uuid, kmd_version\nGPU-1, 625.01\n"), ("625.01", "")),
    ],
)  # fmt: skip
def test_versions_are_found_under_old_and_new_names_without_notes(
    output: SmiOutput, versions: tuple[str, str]
) -> None:
    assert (output.driver, output.cuda) == versions


@pytest.mark.parametrize("printed", ["[N/A]", "[Not Supported]", "612.10", "", "[a] [b", "x[1]"])
def test_text_without_a_note_is_kept(printed: str) -> None:
    assert without_note(printed) == printed


def test_a_note_behind_a_value_does_not_change_it() -> None:
    plain = read("cards").readings
    noted = read(
        "cards", xml=XML.replace(" MiB</", f" MiB {NOTE}</").replace(" W</", f" W {NOTE}</")
    ).readings
    assert [reading.values for reading in noted] == [reading.values for reading in plain]
    header, *rows = GPUS.splitlines()
    table = [header.replace("memory.used [MiB]", f"memory.used [MiB] {NOTE}")]
    table += [row.replace("5321 MiB", f"5321 MiB {NOTE}") for row in rows]
    first = read("cards", xml=None, query_gpu="\n".join([*table, ""])).readings[0]
    assert first.values[q.MEMORY_USED] == 5321 * 2**20


def test_a_note_with_commas_shifts_no_column() -> None:
    note = "[Deprecated, see kmd_version, cuda_umd_version]"
    header, *rows = GPUS.splitlines()
    table = [header.replace("driver_version", f"driver_version {note}")]
    table += [row.replace("550.54.15", f"550.54.15 {note}") for row in rows]
    noted, plain = parse_query_gpu("\n".join([*table, ""])), parse_query_gpu(GPUS)
    assert (noted.driver, noted.problems) == ("550.54.15", [])
    assert [(one.cells, one.raw) for one in noted.blocks] == [(one.cells, one.raw) for one in plain.blocks]


@pytest.mark.parametrize("note", ["", f" {NOTE}"])
@pytest.mark.parametrize("bus", ["", "N/A"], ids=["bus ids", "integrated"])
def test_a_heading_of_the_report_is_found_with_a_note_and_without_bus_id(note: str, bus: str) -> None:
    report = re.sub(r"^GPU (\S+)$", lambda found: f"GPU {bus or found[1]}{note}", REPORT, flags=re.MULTILINE)
    plain = read("cards", xml=None, query_gpu=None, query_compute_apps=None)
    noted = read("cards", xml=None, query_gpu=None, query_compute_apps=None, report=report)
    assert [one.values for one in noted.readings] == [one.values for one in plain.readings]
    assert processes(noted) == processes(plain)


def test_a_note_in_the_listing_changes_no_identity() -> None:
    noted = "\n".join(f"{line} {NOTE}" for line in fixture("mig/list").splitlines())
    plain, other = read("mig"), read("mig", list=f"{noted}\n")
    assert [one.device for one in other.readings] == [one.device for one in plain.readings]
    assert other.failures == plain.failures


def test_the_name_of_a_process_keeps_its_brackets() -> None:
    text = XML.replace("<process_name>render</process_name>", "<process_name>gunicorn [app]</process_name>")
    assert "gunicorn [app]" in [process.name for process in read("cards", xml=text).processes]


def test_a_field_that_is_gone_is_queried_under_its_new_name() -> None:
    assert replace_field(("uuid", "driver_version"), "driver_version") == ("uuid", "kmd_version")
    assert replace_field(("kmd_version", "driver_version"), "driver_version") == ("kmd_version",)
    assert replace_field(("uuid", "brand"), "brand") == ("uuid",)
    header, *rows = GPUS.splitlines()
    renamed = "\n".join([header.replace("driver_version", "kmd_version"), *rows, ""])
    run = Recorded("cards", xml=None, report=None, query_gpu=renamed)
    assert source(run).read(frozenset()).source.driver_version == "550.54.15"


def test_doctor_beside_nvml_finds_the_version_under_its_new_name() -> None:
    def newer(words: tuple[str, ...], timeout: float) -> CommandResult:
        if "--query-gpu=kmd_version" in words:
            return CommandResult(b"625.01\n625.01\n")
        return CommandResult(b'Field "driver_version" is not a valid field to query.\n', exit_code=2)

    (found,) = find_smi_problems(SmiSettings(), "625.01", is_only_source=False, run=newer)
    assert (found.verdict, found.why) == (Verdict.WORKS, "nvidia-smi answers, driver 625.01")
