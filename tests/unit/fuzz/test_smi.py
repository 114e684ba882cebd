"""Laws of the readers of nvidia-smi's answers: anything is taken, nothing false or impossible comes of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzzing import bounded, check_line, check_snapshot, fuzzed, held_below, kept, mutated
from gpuledger.model.errors import SourceUnavailable
from gpuledger.sources.findings import Findings
from gpuledger.sources.smi.command import LONGEST_OUTPUT
from gpuledger.sources.smi.csv import parse_query_apps, parse_query_gpu
from gpuledger.sources.smi.machine import parse_listing
from gpuledger.sources.smi.processes import parse_pmon
from gpuledger.sources.smi.report import parse_report
from gpuledger.sources.smi.xml import parse_xml
from smi.recorded import ALL, Recorded, source

# By corpus: the question that it answers, and those that fail so that it is asked.
ASKED: dict[str, tuple[str, tuple[str, ...]]] = {
    "smi-xml": ("xml", ()),
    "smi-report": ("report", ("xml", "query-gpu", "query-compute-apps")),
    "smi-query-gpu": ("query-gpu", ("xml", "report")),
    "smi-query-apps": ("query-compute-apps", ("xml", "report")),
    "smi-pmon": ("pmon", ()),
    "smi-list": ("list", ()),
}
WORDS = (
    *(b'<gpu id="00000000:01:00.0">', b"</gpu>", b"<![CDATA[", b"&lt;", b"&#0;", b"&x;", b"<!ENTITY x 'y'>"),
    *(b"[N/A]", b"N/A", b" MiB", b" %", b" W", b", ", b"# gpu pid", b"GPU 00000000:01:00.0", b"MIG-", b" : "),
    *(b"[Unknown Error]", b"GPU is lost", b"No devices were found", b"99999999999999999999 MiB", b"1e9 W"),
)
CASES = [pytest.param(reader, path, id=f"{reader}-{path.name}") for reader in ASKED for path in kept(reader)]


def law(reader: str, answer: bytes) -> None:
    """Two ticks, so that what the first one remembers meets the second."""
    question, refused = ASKED[reader]
    for folder in ("cards", "mig"):
        run = Recorded(folder, **dict.fromkeys(refused))
        run.instead[question] = answer
        reading = source(run)
        for _ in range(2):
            try:
                check_snapshot(reading.read(ALL))
            except SourceUnavailable as error:
                check_line(error)


@pytest.mark.parametrize(("reader", "path"), CASES)
def test_a_kept_answer_is_taken(reader: str, path: Path) -> None:
    with bounded():
        law(reader, path.read_bytes())


@pytest.mark.parametrize("reader", ASKED)
@fuzzed
@given(data=st.data())
def test_any_answer_is_taken(reader: str, data: st.DataObject) -> None:
    answer = data.draw(mutated(reader, *WORDS))
    with bounded():
        law(reader, answer)


LONG = 100_000
ENDLESS = {
    "elements in elements": (
        parse_xml,
        '<gpu id="00000000:01:00.0">' + "<a>" * LONG + "</a>" * LONG + "</gpu>",
    ),
    "one name": (parse_xml, f'<gpu id="00000000:01:00.0"><{"a" * LONG}>1</{"a" * LONG}></gpu>'),
    "unclosed": (parse_xml, '<gpu id="' * LONG),
    "columns": (parse_query_gpu, "uuid" + ", x" * LONG + "\n" + "1" + ", 1" * LONG + "\n"),
    "columns of processes": (parse_query_apps, "pid" + ", x" * LONG + "\n" + "1" + ", 1" * LONG + "\n"),
    "titles of pmon": (
        lambda text: parse_pmon(text, Findings()),
        "# gpu pid" + " x" * LONG + "\n" + "1" + " 1" * LONG + "\n",
    ),
    "blanks in a list": (parse_listing, "GPU 0: a (UUID: GPU-1)\n  MIG a" + " " * LONG + "\n"),
    "blanks in an error": (
        parse_report,
        "Unable to determine the device handle for GPU" + " " * LONG + "\n",
    ),
    "headings in headings": (
        parse_report,
        "GPU 00000000:01:00.0\n" + "".join(f"{' ' * depth}a\n" for depth in range(1, 800)) * 3,
    ),
}


@pytest.mark.parametrize("name", ENDLESS)
def test_what_is_long_is_not_long_to_read(name: str) -> None:
    parse, text = ENDLESS[name]
    with bounded():
        parse(text)


def test_an_answer_at_its_longest_takes_memory_in_proportion() -> None:
    line = "<a>" * 1000 + "1" + "</a>" * 1000
    text = '<gpu id="00000000:01:00.0">' + line * 20 + "</gpu>"
    assert len(text) < LONGEST_OUTPUT
    with held_below(100 * len(text)):
        parse_xml(text)
