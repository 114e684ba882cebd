"""Pages become samples: quickly where nothing changed, and ended where nothing is told."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpuledger.agent.relabel.rule import Rule
from gpuledger.agent.scrape.labelling import LabelLimits, Labelling
from gpuledger.agent.scrape.lines import OPENMETRICS, TEXT
from gpuledger.agent.scrape.pages import PageError, Pages
from gpuledger.agent.scrape.reader import Counts
from gpuledger.agent.scrape.state import PageMemory
from scraped_pages import TARGET, entry, pages, take


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


@pytest.mark.parametrize("series", ["LONG", 'a{LONG="x"}', 'a{x="LONG"}'], ids=["name", "label", "value"])
def test_what_a_target_called_its_series_is_not_kept_beyond_its_page(series: str) -> None:
    one = pages()
    tracemalloc.start()
    try:
        for number in range(20):
            take(one, series.replace("LONG", f"b{number}" * 50_000) + " 1\n")
        take(one, "a 1\n")
        kept = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert kept < 1_000_000


CLASHES = [
    ("the second is gone", "a 1\na 2\n", "a 3\n", 3),
    ("the first is gone", "a 1\na 2\n", "a 2\n", 2),
    ("the second is the first by now", "a 1\na 2\n", "a 2\na 3\n", 2),
    ("in the other order", "a 1\na 2\n", "a 2\na 1\n", 2),
    ("both are others", "a 1\na 2\n", "a 3\na 4\n", 3),
    ("only now there are two", "a 1\n", "a 2\na 1\n", 2),
    ("it had a time of its own", "a 1 5\n", "a 2\na 1\n", 2),
]


@pytest.mark.parametrize(
    ("before", "after", "value"), [case[1:] for case in CLASHES], ids=[case[0] for case in CLASHES]
)
def test_the_first_line_of_a_series_counts_whatever_was_told_before(
    before: str, after: str, value: float
) -> None:
    one = pages()
    take(one, before)
    assert take(one, after).entries == [entry(value)]


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


def test_a_series_with_its_own_time_from_now_on_ends_as_what_it_was() -> None:
    # A real Prometheus 2.42 has the marker, too.
    one = pages()
    take(one, "a 1\n")
    found = take(one, "a 2 1700000000000\n")
    assert (found.entries, len(found.timed)) == ([entry(None)], 1)
    assert take(one, "a 3 1700000000001\n").entries == []


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


TOLD = st.tuples(st.sampled_from("ab"), st.sampled_from(("1", "2", "3", "1 5", "2 5", "2 6")))


@settings(deadline=None, max_examples=300)
@given(st.lists(st.lists(TOLD, max_size=4), max_size=5))
@example([[("a", "1"), ("a", "2"), ("b", "1")], [("a", "1"), ("a", "1"), ("b", "1")], []])
@example([[("a", "1"), ("a", "2")], [("a", "2"), ("a", "1")]])
def test_remembering_changes_nothing_but_what_is_new(history: list[list[tuple[str, str]]]) -> None:
    one = pages()
    before: dict[str, str] = {}
    for page in history:
        plain: dict[str, str] = {}
        for name, value in page:
            if " " not in value:
                plain.setdefault(name, value)
        own = [entry(float(value.split()[0]), name=name) for name, value in page if " " in value]
        ends = [entry(None, name=name) for name in before if name not in plain]
        found = take(one, "".join(f"{name} {value}\n" for name, value in page))
        wanted = [entry(float(value), name=name) for name, value in plain.items()]
        assert sorted(found.entries) == sorted(wanted + ends)
        assert sorted(prefix + value for prefix, value, _ in found.timed) == sorted(own)
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
