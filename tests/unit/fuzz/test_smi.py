"""Fuzz tests of the nvidia-smi parsers: any output gives possible values or an error of one line."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzzing import bounded, check_line, check_snapshot, corpus_files, fuzzed, memory_below, mutated_files
from gpuledger.host.commands import MAX_OUTPUT_BYTES
from gpuledger.model.errors import SourceUnavailable
from gpuledger.sources.findings import SourceFindings
from gpuledger.sources.smi.csv import parse_query_apps, parse_query_gpu
from gpuledger.sources.smi.parsed_gpus import parse_gpu_listing
from gpuledger.sources.smi.processes import parse_pmon
from gpuledger.sources.smi.text_report import parse_text_report
from gpuledger.sources.smi.xml import parse_xml
from smi.recorded import ALL, Recorded, source

# By corpus: its query, and the queries that must fail for it to be used.
QUERIES: dict[str, tuple[str, tuple[str, ...]]] = {
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
CASES = [
    pytest.param(reader, path, id=f"{reader}-{path.name}")
    for reader in QUERIES
    for path in corpus_files(reader)
]


def check_output(reader: str, answer: bytes) -> None:
    """Read two ticks, because the second uses state of the first."""
    query, refused = QUERIES[reader]
    for folder in ("cards", "mig"):
        run = Recorded(folder, **dict.fromkeys(refused))
        run.instead[query] = answer
        reading = source(run)
        for _ in range(2):
            try:
                check_snapshot(reading.read(ALL))
            except SourceUnavailable as error:
                check_line(error)


@pytest.mark.parametrize(("reader", "path"), CASES)
def test_corpus_smi_output_is_parsed(reader: str, path: Path) -> None:
    with bounded():
        check_output(reader, path.read_bytes())


@pytest.mark.parametrize("reader", QUERIES)
@fuzzed
@given(data=st.data())
def test_mutated_smi_output_is_parsed(reader: str, data: st.DataObject) -> None:
    answer = data.draw(mutated_files(reader, *WORDS))
    with bounded():
        check_output(reader, answer)


LONG = 100_000
LONG_INPUTS = {
    "elements in elements": (
        parse_xml,
        '<gpu id="00000000:01:00.0">' + "<a>" * LONG + "</a>" * LONG + "</gpu>",
    ),
    "one name": (parse_xml, f'<gpu id="00000000:01:00.0"><{"a" * LONG}>1</{"a" * LONG}></gpu>'),
    "unclosed": (parse_xml, '<gpu id="' * LONG),
    "columns": (parse_query_gpu, "uuid" + ", x" * LONG + "\n" + "1" + ", 1" * LONG + "\n"),
    "columns of processes": (parse_query_apps, "pid" + ", x" * LONG + "\n" + "1" + ", 1" * LONG + "\n"),
    "titles of pmon": (
        lambda text: parse_pmon(text, SourceFindings()),
        "# gpu pid" + " x" * LONG + "\n" + "1" + " 1" * LONG + "\n",
    ),
    "blanks in a list": (parse_gpu_listing, "GPU 0: a (UUID: GPU-1)\n  MIG a" + " " * LONG + "\n"),
    "blanks in an error": (
        parse_text_report,
        "Unable to determine the device handle for GPU" + " " * LONG + "\n",
    ),
    "headings in headings": (
        parse_text_report,
        "GPU 00000000:01:00.0\n" + "".join(f"{' ' * depth}a\n" for depth in range(1, 800)) * 3,
    ),
}


@pytest.mark.parametrize("name", LONG_INPUTS)
def test_long_input_is_read_in_bounded_time(name: str) -> None:
    parse, text = LONG_INPUTS[name]
    with bounded():
        parse(text)


def test_memory_for_the_longest_output_is_proportional_to_its_length() -> None:
    line = "<a>" * 1000 + "1" + "</a>" * 1000
    text = '<gpu id="00000000:01:00.0">' + line * 20 + "</gpu>"
    assert len(text) < MAX_OUTPUT_BYTES
    with memory_below(100 * len(text)):
        parse_xml(text)
