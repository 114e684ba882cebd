"""Laws that hold for every page: what is written is what a parser reads, and Prometheus's own agrees."""

from __future__ import annotations

import subprocess

from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from gpuledger.exposition import text
from gpuledger.exposition import text as openmetrics
from gpuledger.model.family import Family, FamilySpec
from gpuledger.model.text import clean_name

HOSTILE = [
    'a"b',
    "\\",
    "\\n",
    "\n",
    '"} 1\nevil 2',
    "{pod=",
    "# EOF",
    "\u2028",
    "é",
    "🙂",
    " ",
    "",
    "%s",
    '\\\\"',
]
VALUES = st.one_of(
    st.text(max_size=12).map(clean_name),
    st.sampled_from(HOSTILE),
)
NUMBERS = st.one_of(st.floats(allow_nan=False, allow_infinity=False), st.integers(-(2**60), 2**60))


@st.composite
def families(draw, lowest=None):
    numbers = NUMBERS if lowest is None else NUMBERS.filter(lambda value: value >= lowest)
    told = []
    for position in range(draw(st.integers(1, 4))):
        type_, suffix = draw(
            st.sampled_from(
                [("gauge", ""), ("counter", "_total"), ("counter", ""), ("unknown", ""), ("info", "_info")]
            )
        )
        labels = ("gpu", "pod", "command")[: draw(st.integers(0, 3))]
        help_ = draw(st.sampled_from(["Plain.", 'Say "x".', "Back\\slash", "Two\nlines", ""]))
        value = st.just(1) if type_ == "info" else numbers
        samples = draw(st.dictionaries(st.tuples(*[VALUES] * len(labels)), value, max_size=5))
        told.append(Family(FamilySpec(f"f{position}_x{suffix}", type_, help_, labels), samples))
    return told


def series(told):
    return {
        (family.spec.name, tuple(zip(family.spec.labels, labels, strict=True))): float(value)
        for family in told
        for labels, value in family.samples.items()
    }


def parsed(metrics):
    found = {}
    for metric in metrics:
        for sample in metric.samples:
            key = (sample.name, tuple(sample.labels.items()))
            assert key not in found, "a duplicate series"
            found[key] = float(sample.value)
    return found


@settings(deadline=None, max_examples=150)
@given(families())
def test_text_is_read_back_as_it_was_told(told):
    # The parser adds `_total` to counters that lack it; as gauges the same lines keep their names.
    page = text.encode_text(told).decode().replace(" counter\n", " gauge\n")
    assert parsed(parse_text(page)) == series(told)


@settings(deadline=None, max_examples=150)
@given(families(lowest=0))
def test_openmetrics_is_read_back_as_it_was_told(told):
    assert parsed(parse_openmetrics(openmetrics.encode_openmetrics(told).decode())) == series(told)


@settings(deadline=None, max_examples=100)
@given(families())
def test_both_formats_carry_the_same_sample_lines(told):
    in_text, in_openmetrics = (
        [line for line in page.split(b"\n") if line and not line.startswith(b"# ")]
        for page in (text.encode_text(told), openmetrics.encode_openmetrics(told))
    )
    assert in_text == in_openmetrics


@settings(deadline=None, max_examples=100)
@given(families(lowest=0))
def test_openmetrics_help_is_read_back(told):
    helps = {family.spec.name: family.spec.help for family in told if family.samples}
    found = {}
    for metric in parse_openmetrics(openmetrics.encode_openmetrics(told).decode()):
        (name,) = {sample.name for sample in metric.samples}
        found[name] = metric.documentation
    assert found == helps


def test_prometheus_reads_a_hostile_page():
    spec = FamilySpec(
        "gpu_process_info", "gauge", 'Help with "quotes", a \\ and a\nline feed.', ("gpu", "command")
    )
    page = text.encode_text([Family(spec, {("0", value): 1 for value in HOSTILE})])
    checked = subprocess.run(["promtool", "check", "metrics"], input=page, capture_output=True, check=False)
    assert checked.returncode == 0, checked.stderr.decode()
