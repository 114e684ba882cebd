"""Pages become samples: read exactly, quickly where nothing changed, and ended where nothing is told."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open
from prometheus_client.parser import text_string_to_metric_families as parse_text

from gpuledger.agent.relabel.rule import Relabelling, Rule
from gpuledger.agent.scrape.labelling import LabelLimits, Labelling, encoded
from gpuledger.agent.scrape.lines import OPENMETRICS, TEXT, BadLine, Format, labels_of
from gpuledger.agent.scrape.memory import PageMemory
from gpuledger.agent.scrape.pages import PageError, Pages
from gpuledger.agent.scrape.reader import Counts, Samples
from gpuledger.exposition.remote_write import STALE, series_prefix

TARGET = {"job": "j", "instance": "i"}


def entry(value: float | None, **labels: str) -> bytes:
    """What a sample of the target's becomes; None is its staleness marker."""
    name = labels.pop("name", "a")
    told = {"__name__": name, **TARGET, **labels}
    return series_prefix(encoded(told)) + (STALE if value is None else struct.pack("<d", value))


def pages(*rules: Rule, limits: LabelLimits | None = None, memory: PageMemory | None = None) -> Pages:
    return Pages(Labelling(TARGET, Relabelling(rules), limits), memory=memory)


def take(given: Pages, text: str, form: Format = TEXT, limit: int = 0, honor: bool = False) -> Samples:
    return given.take(text.encode(), form, honor=honor, limit=limit)


def test_a_changed_value_and_an_unchanged_one_are_told_and_nothing_is_new() -> None:
    one = pages()
    assert take(one, '# HELP a b\na{x="1"} 1\na{x="2"} 2\n').counts == Counts(2, 2, 2)
    again = take(one, '# HELP a b\na{x="1"} 1\na{x="2"} 3\n')
    assert again.entries == [entry(1, x="1"), entry(3, x="2")]
    assert again.counts == Counts(2, 2, 0)


def test_a_series_that_is_gone_ends_once_and_is_new_when_it_comes_back() -> None:
    one = pages()
    take(one, "a 1\nb 1\n")
    assert take(one, "a 1\n").entries == [entry(1), entry(None, name="b")]
    assert take(one, "a 1\n").entries == [entry(1)]
    assert take(one, "a 1\nb 1\n").counts.added == 1


def test_a_failed_scrape_ends_everything_once_and_nothing_is_new_after_it() -> None:
    one = pages()
    take(one, "a 1\nb 1\n")
    assert sorted(one.end()) == sorted([entry(None), entry(None, name="b")])
    assert one.end() == []
    after = take(one, "a 2\n")
    assert (after.entries, after.counts.added) == ([entry(2)], 0)


def test_the_staleness_marker_has_prometheus_bits() -> None:
    assert entry(None)[-8:] == bytes.fromhex("020000000000f07f")


def test_nan_is_a_value_and_not_the_marker() -> None:
    assert take(pages(), "a NaN\n").entries[0][-8:] == bytes.fromhex("010000000000f87f")


def test_the_first_of_two_equal_series_counts_and_goes_on_to() -> None:
    one = pages(Rule(action="labeldrop", regex="x"))
    for value in (1, 2, 2, 3):
        found = take(one, f'a{{x="1"}} {value}\na{{x="2"}} 9\n')
        assert found.entries == [entry(value)]
        assert found.counts.kept == 2
    assert take(one, 'a{x="2"} 9\n').entries == [entry(9)]


def test_the_same_line_twice_is_one_sample() -> None:
    one = pages()
    for _ in range(3):
        found = take(one, "a 1\na 1\na 2\n")
        assert (found.entries, found.duplicates) == ([entry(1)], 2)


def test_a_series_with_its_own_time_keeps_it_and_never_ends() -> None:
    one = pages()
    found = take(one, "a 1 1700000000000\n")
    assert (found.entries, [time for _, _, time in found.timed]) == ([], [1_700_000_000_000])
    assert take(one, "a 1 1700000000000\n").counts == Counts(1, 1, 0)
    assert take(one, "").entries == []


def test_without_honor_timestamps_its_time_is_the_scrapes() -> None:
    one = Pages(Labelling(TARGET), honor_timestamps=False)
    assert one.take(b"a 1 1700000000000\n", TEXT, honor=False).entries == [entry(1)]
    assert one.take(b"", TEXT, honor=False).entries == [entry(None)]


def test_an_exemplar_that_comes_and_goes_does_not_end_its_series() -> None:
    one = pages()
    for tail in ("", ' # {t="1"} 0.5', "", ' # {t="2"} 0.5'):
        assert take(one, f"a 1{tail}\n# EOF\n", OPENMETRICS).entries == [entry(1)]


def test_a_page_in_the_other_format_goes_on_with_the_series() -> None:
    one = pages()
    take(one, "a 1\nb 1\n")
    assert take(one, "a 1\n# EOF\n", OPENMETRICS).entries == [entry(1), entry(None, name="b")]


HONOR = [
    ("moved aside", False, 'a{job="mine"} 1', {"job": "j", "exported_job": "mine"}),
    ("stands", True, 'a{job="mine"} 1', {"job": "mine"}),
    ("an empty one takes the target's away", True, 'a{instance=""} 1', {"instance": ""}),
    ("an empty one is not moved", False, 'a{instance=""} 1', {}),
    (
        "moved further where that is taken",
        False,
        'a{job="mine",exported_job="other"} 1',
        {"exported_job": "other", "exported_exported_job": "mine"},
    ),
]


@pytest.mark.parametrize(("honor", "line", "labels"), [c[1:] for c in HONOR], ids=[c[0] for c in HONOR])
def test_labels_that_the_target_has_too(honor: bool, line: str, labels: dict[str, str]) -> None:
    assert take(pages(), line, honor=honor).entries == [entry(1, **labels)]


def test_what_metric_relabelling_drops_is_counted_as_scraped_alone() -> None:
    one = pages(Rule(action="keep", source_labels=("__name__",), regex="b"))
    for value in (1, 2):
        assert take(one, f"a {value}\nb 1\n").counts == Counts(2, 1, int(value == 1))


LIMITS = [
    ("sample limit", {"limit": 1}, None, "a 1\nb 1\n", "sample_limit is 1"),
    ("label limit", {}, LabelLimits(labels=3), 'a{x="1"} 1', "has 4 labels, 3 are allowed"),
    ("label name", {}, LabelLimits(name_length=8), 'a{xxxxxxxxx="1"} 1', "longer than 8 bytes"),
    ("label value", {}, LabelLimits(value_length=2), 'a{x="123"} 1', "longer than 2 bytes"),
]


@pytest.mark.parametrize(
    ("keys", "limits", "text", "complaint"), [c[1:] for c in LIMITS], ids=[c[0] for c in LIMITS]
)
def test_a_page_beyond_a_limit_is_refused(
    keys: dict[str, int], limits: LabelLimits | None, text: str, complaint: str
) -> None:
    with pytest.raises(PageError, match=complaint):
        take(pages(limits=limits), text, **keys)


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


REFUSED = [
    ("a line that is none", "b", None, (1, 1)),
    ("a value that is none", "b x", None, (1, 1)),
    ("a label that is there twice", 'b{x="1",x="2"} 1', None, (2, 1)),
    ("a label beyond a limit", 'b{x="123"} 1', LabelLimits(value_length=2), (2, 1)),
    ("a sample with its own time before it", "c 1 1700000000000\nb", None, (2, 2)),
]


@pytest.mark.parametrize(
    ("line", "limits", "counts"), [c[1:] for c in REFUSED], ids=[case[0] for case in REFUSED]
)
def test_what_stands_before_a_break_is_counted_and_is_not_new_again(
    line: str, limits: LabelLimits | None, counts: tuple[int, int]
) -> None:
    one = pages(limits=limits)
    new = []
    for _ in range(3):
        with pytest.raises(PageError) as caught:
            take(one, f"a 1\n{line}\n")
        assert (caught.value.counts.scraped, caught.value.counts.kept) == counts
        assert one.end() == []
        new.append(caught.value.counts.added)
    assert new == [counts[1], 0, 0]
    assert take(one, "a 2\nz 1\n").counts.added == 1


def test_two_lines_of_a_series_before_a_break_are_told_once_when_it_is_mended() -> None:
    one = pages(Rule(action="labeldrop", regex="x"))
    with pytest.raises(PageError):
        take(one, 'a{x="1"} 1\na{x="2"} 2\nb')
    assert take(one, 'a{x="1"} 1\na{x="2"} 2\n').entries == [entry(1)]


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


@settings(deadline=None, max_examples=100)
@given(st.lists(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from("12")), max_size=6), max_size=5))
@example([[("a", "1"), ("a", "2"), ("b", "1")], [("a", "1"), ("a", "1"), ("b", "1")], []])
@example([[("a", "1"), ("a", "2")], [("a", "2"), ("a", "1")]])
def test_remembering_changes_nothing_but_what_is_new(history: list[list[tuple[str, str]]]) -> None:
    one = pages()
    before: dict[bytes, bytes] = {}
    for page in history:
        body = "".join(f"{name} {value}\n" for name, value in page)
        fresh = pages()
        plain = {sample[:-8]: sample[-8:] for sample in take(fresh, body).entries}
        ends = {prefix: STALE for prefix in before if prefix not in plain}
        assert {sample[:-8]: sample[-8:] for sample in take(one, body).entries} == plain | ends
        before = plain


PAGES = st.lists(
    st.one_of(
        st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from(("1", "2", "x", "1 5"))), max_size=6),
        st.none(),
    ),
    max_size=6,
)


def all_told(memory: PageMemory, history: list[list[tuple[str, str]] | None]) -> list[object]:
    """What became of each page, None being a scrape that failed."""
    one, told = pages(memory=memory), list[object]()
    for page in history:
        if page is None:
            told.append(sorted(one.end()))
            continue
        try:
            found = take(one, "".join(f"{name} {value}\n" for name, value in page))
            told.append((found.counts, sorted(found.entries), found.timed, found.duplicates))
        except PageError as error:
            told.append((str(error), error.counts, sorted(one.end())))
    return told


@settings(deadline=None, max_examples=100)
@given(PAGES)
def test_a_page_that_is_kept_unpacked_is_gone_on_from_as_a_packed_one_is(
    history: list[list[tuple[str, str]] | None],
) -> None:
    assert all_told(PageMemory(), history) == all_told(PageMemory(0), history)


def test_memory_is_held_by_who_comes_first_and_given_back() -> None:
    memory = PageMemory(300)
    first, second = pages(memory=memory), pages(memory=memory)
    take(first, "a 1\n")
    held = memory.used
    assert 0 < held == first.kept_bytes <= 300 < 2 * held
    take(second, "a 1\n")
    assert memory.used == held
    first.rest()
    assert memory.used == 0
    take(second, "a 1\n")
    assert memory.used == held


@pytest.mark.parametrize("over", ["end", "rest", "larger"])
def test_a_page_that_is_over_holds_no_memory(over: str) -> None:
    memory = PageMemory(300)
    one = pages(memory=memory)
    take(one, "a 1\n")
    if over == "end":
        one.end()
    elif over == "rest":
        one.rest()
    else:
        take(one, "".join(f"a{number} 1\n" for number in range(9)))
    assert memory.used == 0
    assert take(one, "a 2\n").entries[0] == entry(2)


def test_bad_lines_say_what_is_wrong() -> None:
    with pytest.raises(BadLine, match="'1_0' is no number"):
        TEXT.sample(b"a 1_0")
