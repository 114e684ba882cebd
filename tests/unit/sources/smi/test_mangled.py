"""Mangled answers, made up and kept: never a crash, never a wrong number, the bad cell alone missing."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.model import quantities as q
from gpuledger.model.errors import SourceUnavailable
from gpuledger.model.snapshot import Snapshot
from gpuledger.sources.findings import SourceFindings
from gpuledger.sources.smi.csv import parse_query_apps
from gpuledger.sources.smi.parsed_gpus import parse_gpu_listing
from gpuledger.sources.smi.processes import parse_pmon
from gpuledger.sources.smi.text_report import parse_text_report
from gpuledger.sources.smi.xml import parse_xml
from smi.recorded import ALL, FIXTURES, Recorded, fixture, read, source

MANGLED = sorted((FIXTURES / "mangled").iterdir())
FORMATS = ("xml", "report", "query-gpu.csv", "query-compute-apps.csv", "pmon", "list")
# Queries that are rejected, so that the format under test is read.
REJECTED_QUERIES = {"report": ("xml", "query-gpu", "query-compute-apps"), "query-gpu.csv": ("xml", "report")}
REJECTED_QUERIES["query-compute-apps.csv"] = ("xml", "report")
# The report in addition to the CSV.
REJECTED_QUERIES["with-csv/report"] = ("xml",)

Facts = dict[tuple[object, ...], object]


def facts(snapshot: Snapshot) -> Facts:
    """Return every number of a Snapshot, by Device, process and quantity."""
    found: Facts = {}
    for reading in snapshot.readings:
        uuid = reading.device.uuid
        found |= {(uuid, quantity.key): value for quantity, value in reading.values.items()}
        for process in reading.processes or ():
            found[uuid, process.pid] = process.pid
            found[uuid, process.pid, "memory"] = process.memory
            for engine in ("sm", "memory", "encoder", "decoder", "jpeg", "ofa"):
                found[uuid, process.pid, "usage", engine] = getattr(process.usage, engine)
    return {key: value for key, value in found.items() if value is not None}


def read_tick(format_name: str, output: str | bytes) -> Snapshot | None:
    """Read one tick with this output for the query of `format_name`; None if it has no data."""
    query = format_name.removesuffix(".csv").removeprefix("with-csv/")
    run = Recorded("cards", **dict.fromkeys(REJECTED_QUERIES.get(format_name, ())))
    run.instead[query] = output
    try:
        return source(run).read(ALL)
    except SourceUnavailable:
        return None


@cache
def true_facts(format_name: str) -> Facts:
    snapshot = read_tick(format_name, recorded(format_name))
    assert snapshot is not None
    return facts(snapshot)


def recorded(format_name: str) -> str:
    return fixture("cards/" + format_name.removeprefix("with-csv/"))


def find_format(path: Path) -> str:
    return next(format_name for format_name in FORMATS if path.name.endswith("." + format_name))


@pytest.mark.parametrize("path", MANGLED, ids=lambda path: path.name)
def test_stored_mangled_output_yields_no_wrong_value(path: Path) -> None:
    format_name = find_format(path)
    snapshot = read_tick(format_name, path.read_bytes())
    found = facts(snapshot) if snapshot else {}
    expected = true_facts(format_name)
    assert {key: value for key, value in found.items() if expected.get(key) != value} == {}


# The minimum share of values that each stored output must still yield.
MINIMUM_SHARES = {
    "carriage-returns.xml": 1.0,
    "one-line.xml": 1.0,
    "nul-bytes.xml": 1.0,
    "other-encoding.xml": 1.0,
    "noise.xml": 1.0,
    "error-line-inside.xml": 1.0,
    "numbers-with-more.xml": 0.9,
    "rows-run-together.xml": 0.8,
    "cut-in-a-cell.xml": 0.5,
    "error-first.query-gpu.csv": 1.0,
    "noise.query-gpu.csv": 0.9,
    "cut.query-gpu.csv": 0.4,
    "commas-everywhere.query-compute-apps.csv": 1.0,
    "columns-swapped.query-compute-apps.csv": 1.0,
    "newline-in-name.query-compute-apps.csv": 0.8,
    "cut.pmon": 0.9,
    "letters.pmon": 0.9,
    "cut.report": 0.7,
}


@pytest.mark.parametrize("name", MINIMUM_SHARES)
def test_stored_mangled_output_loses_only_the_bad_parts(name: str) -> None:
    path = FIXTURES / "mangled" / name
    snapshot = read_tick(find_format(path), path.read_bytes())
    assert snapshot is not None
    # The stored files have no list of clock reasons.
    expected = [key for key in true_facts(find_format(path)) if key[1] != q.CLOCK_EVENT_REASONS.key]
    assert len(facts(snapshot)) >= MINIMUM_SHARES[name] * len(expected)


@pytest.mark.parametrize("format_name", [*FORMATS, "with-csv/report"])
def test_output_truncated_anywhere_yields_no_wrong_value(format_name: str) -> None:
    text, expected = recorded(format_name), true_facts(format_name)
    for position in range(0, len(text), max(1, len(text) // 150)):
        snapshot = read_tick(format_name, text[:position])
        found = facts(snapshot) if snapshot else {}
        assert {key: value for key, value in found.items() if expected.get(key) != value} == {}, position


@pytest.mark.parametrize("format_name", [*FORMATS, "with-csv/report"])
def test_a_missing_line_loses_its_values_and_changes_no_other(format_name: str) -> None:
    lines, expected = recorded(format_name).split("\n"), true_facts(format_name)
    for missing in range(len(lines)):
        snapshot = read_tick(format_name, "\n".join([*lines[:missing], *lines[missing + 1 :]]))
        found = facts(snapshot) if snapshot else {}
        assert {key: value for key, value in found.items() if expected.get(key) != value} == {}, lines[
            missing
        ]


@pytest.mark.parametrize("format_name", [*FORMATS, "with-csv/report"])
@given(data=st.data())
def test_several_missing_lines_lose_their_values_and_change_no_other(
    data: st.DataObject, format_name: str
) -> None:
    lines = recorded(format_name).split("\n")
    missing = data.draw(st.sets(st.integers(0, len(lines) - 1), max_size=3))
    snapshot = read_tick(
        format_name, "\n".join(line for position, line in enumerate(lines) if position not in missing)
    )
    found, expected = (facts(snapshot) if snapshot else {}), true_facts(format_name)
    assert {key: value for key, value in found.items() if expected.get(key) != value} == {}


LEAVES = list(re.finditer(r"<(\w+)>([^<>]*[0-9] ?(?:MiB|%|W|C|MHz))</\1>", fixture("cards/xml")))


@given(
    st.sampled_from(LEAVES),
    st.one_of(
        st.sampled_from(["", "N/A", "ERR!", "[Unknown Error]", "12 34", "4294967295 %"]), st.text(max_size=9)
    ),
)
def test_a_bad_cell_loses_only_its_value(leaf: re.Match[str], junk: str) -> None:
    text = fixture("cards/xml")
    snapshot = read_tick("xml", text[: leaf.start(2)] + junk.replace("\n", " ") + text[leaf.end(2) :])
    expected = true_facts("xml")
    assert snapshot is not None
    found = facts(snapshot)
    others = [key[1] for key, value in expected.items() if found.get(key) != value]
    # Where no limit is in force, the requested one is both.
    assert len(others) <= 1 or sorted(others) == ["power_limit", "power_limit_management"]
    new = {key: value for key, value in found.items() if expected.get(key) != value}
    if new:
        # Junk that happens to be a number with its unit is a valid cell.
        assert re.fullmatch(r"\s*[+-]?[0-9]+(\.[0-9]+)?\s*[A-Za-z%]*\s*", junk)


@given(st.data())
def test_random_byte_changes_never_crash(data: st.DataObject) -> None:
    format_name = data.draw(st.sampled_from(FORMATS))
    output = bytearray(recorded(format_name).encode())
    for _ in range(data.draw(st.integers(1, 6))):
        position = data.draw(st.integers(0, len(output) - 1))
        output[position : position + data.draw(st.integers(0, 30))] = data.draw(st.binary(max_size=8))
    snapshot = read_tick(format_name, bytes(output))
    for reading in snapshot.readings if snapshot else ():
        for process in reading.processes or ():
            assert 0 <= process.pid < 2**32
        assert all(quantity.is_possible(value) for quantity, value in reading.values.items())


@given(
    st.text(
        alphabet=st.sampled_from("<>/&;,.: \n\t-%#[]()GPUgpuidMIxy0129\"'\\\0é"),
        max_size=300,
    )
)
def test_every_parser_accepts_any_text(text: str) -> None:
    parse_xml(text)
    parse_xml(f'<gpu id="00000000:01:00.0">{text}</gpu>')
    parse_text_report(text)
    parse_text_report(f"GPU 00000000:01:00.0\n{text}")
    parse_query_apps(text)
    parse_query_apps(f"gpu_uuid, pid, process_name, used_memory [MiB]\n{text}")
    parse_pmon(f"# gpu pid type sm mem command\n# Idx # C/G % % name\n{text}", SourceFindings())
    parse_gpu_listing(text)


def test_the_unmangled_outputs_have_values_and_no_invalid_cell() -> None:
    assert len(true_facts("xml")) > 40
    assert read("cards").invalid == 0
