"""Properties of every page: parsers, including promtool, read back exactly what was encoded."""

from __future__ import annotations

import subprocess

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from gpuledger.exposition import text
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
def family_lists(draw, lowest=None):
    numbers = NUMBERS if lowest is None else NUMBERS.filter(lambda value: value >= lowest)
    families = []
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
        families.append(Family(FamilySpec(f"f{position}_x{suffix}", type_, help_, labels), samples))
    return families


def series(families):
    return {
        (family.spec.name, tuple(zip(family.spec.labels, labels, strict=True))): float(value)
        for family in families
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


@given(family_lists())
def test_text_is_parsed_back_to_the_same_series(families):
    # The parser adds `_total` to counters without it; as gauges, the lines keep their names.
    page = text.encode_text(families).decode().replace(" counter\n", " gauge\n")
    assert parsed(parse_text(page)) == series(families)


@given(family_lists(lowest=0))
def test_openmetrics_is_parsed_back_to_the_same_series(families):
    assert parsed(parse_openmetrics(text.encode_openmetrics(families).decode())) == series(families)


@given(family_lists())
def test_both_formats_have_the_same_sample_lines(families):
    in_text, in_openmetrics = (
        [line for line in page.split(b"\n") if line and not line.startswith(b"# ")]
        for page in (text.encode_text(families), text.encode_openmetrics(families))
    )
    assert in_text == in_openmetrics


@given(family_lists(lowest=0))
def test_openmetrics_help_is_parsed_back(families):
    helps = {family.spec.name: family.spec.help for family in families if family.samples}
    found = {}
    for metric in parse_openmetrics(text.encode_openmetrics(families).decode()):
        (name,) = {sample.name for sample in metric.samples}
        found[name] = metric.documentation
    assert found == helps


def test_promtool_accepts_a_page_with_hostile_label_values():
    spec = FamilySpec(
        "gpu_process_info", "gauge", 'Help with "quotes", a \\ and a\nline feed.', ("gpu", "command")
    )
    page = text.encode_text([Family(spec, {("0", value): 1 for value in HOSTILE})])
    checked = subprocess.run(["promtool", "check", "metrics"], input=page, capture_output=True, check=False)
    assert checked.returncode == 0, checked.stderr.decode()
