"""The line parser accepts exactly both formats; one bad line rejects the page."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open
from prometheus_client.parser import text_string_to_metric_families as parse_text

from gpuledger.agent.scrape.line_parser import OPENMETRICS, TEXT_FORMAT, BadLine, PageFormat, parse_labels
from gpuledger.agent.scrape.page_cache import PageError
from gpuledger.agent.scrape.page_reader import SampleCounts
from scraped_pages import page_cache, read_page

BAD = [
    ("a", TEXT_FORMAT),
    ("a{x=1} 1", TEXT_FORMAT),
    ('a{x="1"', TEXT_FORMAT),
    ("a 1_0", TEXT_FORMAT),
    ("a 0x1p3", TEXT_FORMAT),
    ("a 1e999", TEXT_FORMAT),
    ('a{}"{} 1', TEXT_FORMAT),
    ('a{x="1"}"rest} 1', OPENMETRICS),
    ("a 1\r", TEXT_FORMAT),
    ("a 1 " + "9" * 5000, TEXT_FORMAT),
    ("a 1 " + "9" * 19, TEXT_FORMAT),
    ("a 1 1e308", OPENMETRICS),
    ("a12", TEXT_FORMAT),
    ('a{x="1",x="2"} 1', TEXT_FORMAT),
    ("# TYPE a thing", TEXT_FORMAT),
    ("a  1", OPENMETRICS),
    ('a{x="1",} 1', OPENMETRICS),
    ("", OPENMETRICS),
    ("# EOF\na 1", OPENMETRICS),
    ("# UNIT a_seconds bytes", OPENMETRICS),
]


@pytest.mark.parametrize(("line", "form"), BAD, ids=[repr(line[:30]) for line, _ in BAD])
def test_a_bad_line_rejects_the_page_and_its_number_is_reported(line: str, form: PageFormat) -> None:
    cache = page_cache()
    end = "# EOF\n" if form.requires_eof else ""
    with pytest.raises(PageError, match=r"^line \d") as caught:
        read_page(cache, f"good 1\n{line}\n{end}", form)
    assert caught.value.counts.scraped <= 2


@pytest.mark.parametrize("line", ["# HELP a-b c", "# HELP a", "#HELP 1", "# TYPE a  gauge", "\t#"])
def test_a_comment_that_prometheus_or_the_format_allows_is_accepted(line: str) -> None:
    assert read_page(page_cache(), f"{line}\na 1\n").counts == SampleCounts(1, 1, 1)


def test_an_openmetrics_page_must_end_with_eof() -> None:
    with pytest.raises(PageError, match="does not end with # EOF"):
        read_page(page_cache(), "a 1\n", OPENMETRICS)


names = st.from_regex(r"[a-z][a-z0-9_]{0,6}", fullmatch=True)
texts = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\r"), max_size=8)
values = st.one_of(st.floats(allow_nan=True), st.integers(-(10**15), 10**15).map(float))
labelled = st.dictionaries(names, texts, max_size=4)
samples = st.lists(st.tuples(names, labelled, values), max_size=8)


def written(rows: Iterable[tuple[str, dict[str, str], float]]) -> list[str]:
    lines = []
    for name, labels, value in rows:
        escapes = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
        inner = ",".join(f'{label}="{text.translate(escapes)}"' for label, text in labels.items())
        number = {math.inf: "+Inf", -math.inf: "-Inf"}.get(value, "NaN" if math.isnan(value) else repr(value))
        lines.append(f"{name}{{{inner}}} {number}" if inner else f"{name} {number}")
    return lines


def ours(lines: Iterable[str], form: PageFormat) -> list[tuple[str, dict[str, str], bytes]]:
    found = []
    for line in lines:
        sample = form.parse_line(line.encode())
        if sample is not None:
            labels = parse_labels(sample.series)
            found.append((labels.pop("__name__"), labels, sample.value))
    return found


def bits(value: float) -> bytes:
    return bytes.fromhex("010000000000f87f") if math.isnan(value) else struct.pack("<d", value)


@given(samples)
def test_text_parses_as_in_the_official_client(rows: list[tuple[str, dict[str, str], float]]) -> None:
    lines = written(rows)
    page = "".join(f"{line}\n" for line in lines)
    theirs = [
        (sample.name, dict(sample.labels), bits(sample.value))
        for family in parse_text(page)
        for sample in family.samples
    ]
    key = repr
    assert sorted(ours(lines, TEXT_FORMAT), key=key) == sorted(theirs, key=key)


@given(st.dictionaries(names, st.tuples(labelled, values), max_size=6), st.booleans())
def test_openmetrics_parses_as_in_the_official_client(
    rows: dict[str, tuple[dict[str, str], float]], exemplar: bool
) -> None:
    lines = []
    for line in written((name, labels, value) for name, (labels, value) in rows.items()):
        name = line.partition("{")[0].partition(" ")[0]
        lines.append(f"# TYPE {name} unknown")
        lines.append(line)
    if exemplar:
        lines += ["# TYPE zzzzzzzzz histogram", 'zzzzzzzzz_bucket{le="+Inf"} 3.0 # {trace="x y"} 0.5 1.5']
    page = "".join(f"{line}\n" for line in lines) + "# EOF\n"
    theirs = [
        (sample.name, dict(sample.labels), bits(sample.value))
        for family in parse_open(page)
        for sample in family.samples
    ]
    assert sorted(ours(lines, OPENMETRICS), key=repr) == sorted(theirs, key=repr)


@given(st.binary(max_size=60), st.sampled_from((TEXT_FORMAT, OPENMETRICS)))
def test_any_input_gives_samples_or_a_page_error(body: bytes, form: PageFormat) -> None:
    for _ in range(2):
        cache = page_cache()
        try:
            cache.read_page(b"a 1\n" + body, form, honor=False)
            cache.read_page(body, form, honor=False)
        except PageError as error:
            assert "\n" not in str(error)


def test_a_bad_line_error_names_the_problem() -> None:
    with pytest.raises(BadLine, match="'1_0' is not a number"):
        TEXT_FORMAT.parse_line(b"a 1_0")
