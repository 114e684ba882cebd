"""Lines of a page are read exactly, in both formats, and one that is none costs the page."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open
from prometheus_client.parser import text_string_to_metric_families as parse_text

from gpuledger.agent.scrape.lines import OPENMETRICS, TEXT, BadLine, Format, labels_of
from gpuledger.agent.scrape.pages import PageError
from gpuledger.agent.scrape.reader import Counts
from scraped_pages import pages, take

BAD = [
    ("a", TEXT),
    ("a{x=1} 1", TEXT),
    ('a{x="1"', TEXT),
    ("a 1_0", TEXT),
    ("a 0x1p3", TEXT),
    ("a 1e999", TEXT),
    ('a{}"{} 1', TEXT),
    ('a{x="1"}"rest} 1', OPENMETRICS),
    ("a 1\r", TEXT),
    ("a 1 " + "9" * 5000, TEXT),
    ("a 1 " + "9" * 19, TEXT),
    ("a 1 1e308", OPENMETRICS),
    ("a12", TEXT),
    ('a{x="1",x="2"} 1', TEXT),
    ("# TYPE a thing", TEXT),
    ("a  1", OPENMETRICS),
    ('a{x="1",} 1', OPENMETRICS),
    ("", OPENMETRICS),
    ("# EOF\na 1", OPENMETRICS),
    ("# UNIT a_seconds bytes", OPENMETRICS),
]


@pytest.mark.parametrize(("line", "form"), BAD, ids=[repr(line[:30]) for line, _ in BAD])
def test_a_bad_line_is_named_and_costs_the_page(line: str, form: Format) -> None:
    one = pages()
    end = "# EOF\n" if form.ends else ""
    with pytest.raises(PageError, match=r"^line \d") as caught:
        take(one, f"good 1\n{line}\n{end}", form)
    assert caught.value.counts.scraped <= 2


@pytest.mark.parametrize("line", ["# HELP a-b c", "# HELP a", "#HELP 1", "# TYPE a  gauge", "\t#"])
def test_a_comment_that_prometheus_or_the_format_lets_pass_costs_nothing(line: str) -> None:
    assert take(pages(), f"{line}\na 1\n").counts == Counts(1, 1, 1)


def test_an_openmetrics_page_must_end() -> None:
    with pytest.raises(PageError, match="does not end with # EOF"):
        take(pages(), "a 1\n", OPENMETRICS)


names = st.from_regex(r"[a-z][a-z0-9_]{0,6}", fullmatch=True)
texts = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\r"), max_size=8)
values = st.one_of(st.floats(allow_nan=True), st.integers(-(10**15), 10**15).map(float))
labelled = st.dictionaries(names, texts, max_size=4)
told = st.lists(st.tuples(names, labelled, values), max_size=8)


def written(rows: Iterable[tuple[str, dict[str, str], float]]) -> list[str]:
    lines = []
    for name, labels, value in rows:
        escapes = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
        inner = ",".join(f'{label}="{text.translate(escapes)}"' for label, text in labels.items())
        number = {math.inf: "+Inf", -math.inf: "-Inf"}.get(value, "NaN" if math.isnan(value) else repr(value))
        lines.append(f"{name}{{{inner}}} {number}" if inner else f"{name} {number}")
    return lines


def ours(lines: Iterable[str], form: Format) -> list[tuple[str, dict[str, str], bytes]]:
    found = []
    for line in lines:
        sample = form.sample(line.encode())
        if sample is not None:
            labels = labels_of(sample.series)
            found.append((labels.pop("__name__"), labels, sample.value))
    return found


def bits(value: float) -> bytes:
    return bytes.fromhex("010000000000f87f") if math.isnan(value) else struct.pack("<d", value)


@settings(deadline=None, max_examples=150)
@given(told)
def test_text_is_read_as_the_official_client_reads_it(rows: list[tuple[str, dict[str, str], float]]) -> None:
    lines = written(rows)
    page = "".join(f"{line}\n" for line in lines)
    theirs = [
        (sample.name, dict(sample.labels), bits(sample.value))
        for family in parse_text(page)
        for sample in family.samples
    ]
    key = repr
    assert sorted(ours(lines, TEXT), key=key) == sorted(theirs, key=key)


@settings(deadline=None, max_examples=150)
@given(st.dictionaries(names, st.tuples(labelled, values), max_size=6), st.booleans())
def test_openmetrics_is_read_as_the_official_client_reads_it(
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


@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=60), st.sampled_from((TEXT, OPENMETRICS)))
def test_whatever_comes_is_samples_or_a_page_error(body: bytes, form: Format) -> None:
    for _ in range(2):
        one = pages()
        try:
            one.take(b"a 1\n" + body, form, honor=False)
            one.take(body, form, honor=False)
        except PageError as error:
            assert "\n" not in str(error)


def test_bad_lines_say_what_is_wrong() -> None:
    with pytest.raises(BadLine, match="'1_0' is no number"):
        TEXT.sample(b"a 1_0")
