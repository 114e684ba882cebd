"""Mangled answers, made up and kept: never a crash, never a wrong number, the bad cell alone lost."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuledger.model.errors import SourceUnavailable
from gpuledger.model.snapshot import Snapshot
from gpuledger.sources.findings import Findings
from gpuledger.sources.smi.csv import parse_query_apps
from gpuledger.sources.smi.machine import parse_listing
from gpuledger.sources.smi.processes import parse_pmon
from gpuledger.sources.smi.report import parse_report
from gpuledger.sources.smi.xml import parse_xml
from smi.recorded import ALL, FIXTURES, Recorded, fixture, read, source

KEPT = sorted((FIXTURES / "mangled").iterdir())
FORMS = ("xml", "report", "query-gpu.csv", "query-compute-apps.csv", "pmon", "list")
# What is refused so that the form under test is read at all.
REFUSED = {"report": ("xml", "query-gpu", "query-compute-apps"), "query-gpu.csv": ("xml", "report")}
REFUSED["query-compute-apps.csv"] = ("xml", "report")
# The report as it completes the CSV.
REFUSED["beside/report"] = ("xml",)

Facts = dict[tuple[object, ...], object]


def facts(seen: Snapshot) -> Facts:
    """Every number that a Snapshot tells, by whose it is and what it is."""
    told: Facts = {}
    for reading in seen.readings:
        uuid = reading.device.uuid
        told |= {(uuid, quantity.key): value for quantity, value in reading.values.items()}
        for one in reading.processes or ():
            told[uuid, one.pid] = one.pid
            told[uuid, one.pid, "memory"] = one.memory
            for engine in ("sm", "memory", "encoder", "decoder", "jpeg", "ofa"):
                told[uuid, one.pid, "usage", engine] = getattr(one.usage, engine)
    return {key: value for key, value in told.items() if value is not None}


def tick(form: str, answer: str | bytes) -> Snapshot | None:
    """One tick in which the question of `form` is answered so; None where it gave no data."""
    question = form.removesuffix(".csv").removeprefix("beside/")
    run = Recorded("cards", **dict.fromkeys(REFUSED.get(form, ())))
    run.instead[question] = answer
    try:
        return source(run).read(ALL)
    except SourceUnavailable:
        return None


@cache
def truth(form: str) -> Facts:
    seen = tick(form, recorded(form))
    assert seen is not None
    return facts(seen)


def recorded(form: str) -> str:
    return fixture("cards/" + form.removeprefix("beside/"))


def form_of(path: Path) -> str:
    return next(form for form in FORMS if path.name.endswith("." + form))


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.name)
def test_a_kept_answer_tells_nothing_that_is_not_so(path: Path) -> None:
    form = form_of(path)
    seen = tick(form, path.read_bytes())
    told = facts(seen) if seen else {}
    right = truth(form)
    assert {key: value for key, value in told.items() if right.get(key) != value} == {}


# What a kept answer must still tell, beside being right in what it tells.
STAYS = {
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


@pytest.mark.parametrize("name", STAYS)
def test_a_kept_answer_loses_no_more_than_what_is_bad(name: str) -> None:
    path = FIXTURES / "mangled" / name
    seen = tick(form_of(path), path.read_bytes())
    assert seen is not None
    assert len(facts(seen)) >= STAYS[name] * len(truth(form_of(path)))


@pytest.mark.parametrize("form", [*FORMS, "beside/report"])
def test_an_answer_cut_anywhere_tells_nothing_that_is_not_so(form: str) -> None:
    whole, right = recorded(form), truth(form)
    for place in range(0, len(whole), max(1, len(whole) // 150)):
        seen = tick(form, whole[:place])
        told = facts(seen) if seen else {}
        assert {key: value for key, value in told.items() if right.get(key) != value} == {}, place


@pytest.mark.parametrize("form", [*FORMS, "beside/report"])
def test_each_line_lost_loses_what_it_told_and_changes_nothing_else(form: str) -> None:
    lines, right = recorded(form).split("\n"), truth(form)
    for lost in range(len(lines)):
        seen = tick(form, "\n".join([*lines[:lost], *lines[lost + 1 :]]))
        told = facts(seen) if seen else {}
        assert {key: value for key, value in told.items() if right.get(key) != value} == {}, lines[lost]


@pytest.mark.parametrize("form", [*FORMS, "beside/report"])
@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_several_lost_lines_lose_what_they_told_and_change_nothing_else(
    data: st.DataObject, form: str
) -> None:
    lines = recorded(form).split("\n")
    lost = data.draw(st.sets(st.integers(0, len(lines) - 1), max_size=3))
    seen = tick(form, "\n".join(line for place, line in enumerate(lines) if place not in lost))
    told, right = (facts(seen) if seen else {}), truth(form)
    assert {key: value for key, value in told.items() if right.get(key) != value} == {}


LEAVES = list(re.finditer(r"<(\w+)>([^<>]*[0-9] ?(?:MiB|%|W|C|MHz))</\1>", fixture("cards/xml")))


@settings(deadline=None, max_examples=150)
@given(
    st.sampled_from(LEAVES),
    st.one_of(
        st.sampled_from(["", "N/A", "ERR!", "[Unknown Error]", "12 34", "4294967295 %"]), st.text(max_size=9)
    ),
)
def test_a_bad_cell_is_lost_alone(leaf: re.Match[str], junk: str) -> None:
    text = fixture("cards/xml")
    seen = tick("xml", text[: leaf.start(2)] + junk.replace("\n", " ") + text[leaf.end(2) :])
    right = truth("xml")
    assert seen is not None
    told = facts(seen)
    others = {key: value for key, value in right.items() if told.get(key) != value}
    assert len(others) <= 1
    new = {key: value for key, value in told.items() if right.get(key) != value}
    if new:
        # Junk that happens to be a number with its unit is what is written there.
        assert re.fullmatch(r"\s*[+-]?[0-9]+(\.[0-9]+)?\s*[A-Za-z%]*\s*", junk)


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_bytes_changed_at_random_never_crash(data: st.DataObject) -> None:
    form = data.draw(st.sampled_from(FORMS))
    answer = bytearray(recorded(form).encode())
    for _ in range(data.draw(st.integers(1, 6))):
        place = data.draw(st.integers(0, len(answer) - 1))
        answer[place : place + data.draw(st.integers(0, 30))] = data.draw(st.binary(max_size=8))
    seen = tick(form, bytes(answer))
    for reading in seen.readings if seen else ():
        for one in reading.processes or ():
            assert 0 <= one.pid < 2**32
        assert all(quantity.believes(value) for quantity, value in reading.values.items())


@settings(deadline=None, max_examples=200)
@given(
    st.text(
        alphabet=st.sampled_from("<>/&;,.: \n\t-%#[]()GPUgpuidMIxy0129\"'\\\0é"),
        max_size=300,
    )
)
def test_any_text_at_all_is_taken_by_every_parser(text: str) -> None:
    parse_xml(text)
    parse_xml(f'<gpu id="00000000:01:00.0">{text}</gpu>')
    parse_report(text)
    parse_report(f"GPU 00000000:01:00.0\n{text}")
    parse_query_apps(text)
    parse_query_apps(f"gpu_uuid, pid, process_name, used_memory [MiB]\n{text}")
    parse_pmon(f"# gpu pid type sm mem command\n# Idx # C/G % % name\n{text}", Findings())
    parse_listing(text)


def test_the_truth_is_worth_the_name() -> None:
    assert len(truth("xml")) > 40
    assert read("cards").invalid == 0
