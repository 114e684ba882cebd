"""The page cache returns samples and staleness markers, and reuses unchanged lines."""

from __future__ import annotations

import re
import tracemalloc

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpuledger.agent.relabel.rules import RelabelRule
from gpuledger.agent.scrape.line_parser import OPENMETRICS, TEXT_FORMAT
from gpuledger.agent.scrape.page_cache import PageCache, PageError
from gpuledger.agent.scrape.page_reader import SampleCounts
from gpuledger.agent.scrape.series_labels import LabelLimits, SeriesLabeler
from gpuledger.agent.scrape.state import PageMemoryBudget
from gpuledger.exposition.remote_write import STALE
from scraped_pages import TARGET, entry, page_cache, read_page


def test_changed_and_unchanged_values_are_returned_and_no_series_is_new() -> None:
    cache = page_cache()
    assert read_page(cache, '# HELP a b\na{x="1"} 1\na{x="2"} 2\n').counts == SampleCounts(2, 2, 2)
    again = read_page(cache, '# HELP a b\na{x="1"} 1\na{x="2"} 3\n')
    assert again.entries == [entry(1, x="1"), entry(3, x="2")]
    assert again.counts == SampleCounts(2, 2, 0)


def test_a_series_that_disappears_ends_once_and_is_new_when_it_returns() -> None:
    cache = page_cache()
    read_page(cache, "a 1\nb 1\n")
    assert read_page(cache, "a 1\n").entries == [entry(1), entry(None, name="b")]
    assert read_page(cache, "a 1\n").entries == [entry(1)]
    assert read_page(cache, "a 1\nb 1\n").counts.added == 1


def test_a_failed_scrape_ends_all_series_once_and_none_is_new_afterwards() -> None:
    cache = page_cache()
    read_page(cache, "a 1\nb 1\n")
    assert sorted(cache.end_series()) == sorted([entry(None), entry(None, name="b")])
    assert cache.end_series() == []
    after = read_page(cache, "a 2\n")
    assert (after.entries, after.counts.added) == ([entry(2)], 0)


def test_the_staleness_marker_has_prometheus_bits() -> None:
    assert entry(None)[-8:] == bytes.fromhex("020000000000f07f")


def test_nan_is_a_value_and_not_a_staleness_marker() -> None:
    assert read_page(page_cache(), "a NaN\n").entries[0][-8:] == bytes.fromhex("010000000000f87f")


def test_the_first_of_two_equal_series_is_used_on_every_page() -> None:
    cache = page_cache(RelabelRule(action="labeldrop", regex="x"))
    for value in (1, 2, 2, 3):
        found = read_page(cache, f'a{{x="1"}} {value}\na{{x="2"}} 9\n')
        assert found.entries == [entry(value)]
        assert found.counts.kept == 2
    assert read_page(cache, 'a{x="2"} 9\n').entries == [entry(9)]


@pytest.mark.parametrize("series", ["LONG", 'a{LONG="x"}', 'a{x="LONG"}'], ids=["name", "label", "value"])
def test_long_series_names_are_not_kept_beyond_their_page(series: str) -> None:
    cache = page_cache()
    tracemalloc.start()
    try:
        for number in range(20):
            read_page(cache, series.replace("LONG", f"b{number}" * 50_000) + " 1\n")
        read_page(cache, "a 1\n")
        kept = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert kept < 1_000_000


CLASHES = [
    ("the second is gone", "a 1\na 2\n", "a 3\n", 3),
    ("the first is gone", "a 1\na 2\n", "a 2\n", 2),
    ("the second is now the first", "a 1\na 2\n", "a 2\na 3\n", 2),
    ("reversed order", "a 1\na 2\n", "a 2\na 1\n", 2),
    ("both changed", "a 1\na 2\n", "a 3\na 4\n", 3),
    ("duplicate only now", "a 1\n", "a 2\na 1\n", 2),
    ("it had an explicit timestamp", "a 1 5\n", "a 2\na 1\n", 2),
]


@pytest.mark.parametrize(
    ("before", "after", "value"), [case[1:] for case in CLASHES], ids=[case[0] for case in CLASHES]
)
def test_the_first_line_of_a_series_is_used_whatever_the_previous_page_had(
    before: str, after: str, value: float
) -> None:
    cache = page_cache()
    read_page(cache, before)
    assert read_page(cache, after).entries == [entry(value)]


def test_the_same_line_twice_is_one_sample() -> None:
    cache = page_cache()
    for _ in range(3):
        found = read_page(cache, "a 1\na 1\na 2\n")
        assert (found.entries, found.duplicates) == ([entry(1)], 2)


def test_a_series_with_explicit_timestamps_keeps_them_and_never_ends() -> None:
    cache = page_cache()
    found = read_page(cache, "a 1 1700000000000\n")
    assert (found.entries, [time for _, _, time in found.timed]) == ([], [1_700_000_000_000])
    assert read_page(cache, "a 1 1700000000000\n").counts == SampleCounts(1, 1, 0)
    assert read_page(cache, "").entries == []


def test_a_series_that_gets_explicit_timestamps_ends_without_them() -> None:
    # Prometheus 2.42 writes the marker too.
    cache = page_cache()
    read_page(cache, "a 1\n")
    found = read_page(cache, "a 2 1700000000000\n")
    assert (found.entries, len(found.timed)) == ([entry(None)], 1)
    assert read_page(cache, "a 3 1700000000001\n").entries == []


def test_without_honor_timestamps_samples_get_the_scrapes_timestamp() -> None:
    cache = PageCache(SeriesLabeler(TARGET), honor_timestamps=False)
    assert cache.read_page(b"a 1 1700000000000\n", TEXT_FORMAT, honor=False).entries == [entry(1)]
    assert cache.read_page(b"", TEXT_FORMAT, honor=False).entries == [entry(None)]


def test_an_exemplar_that_comes_and_goes_does_not_end_its_series() -> None:
    cache = page_cache()
    for tail in ("", ' # {t="1"} 0.5', "", ' # {t="2"} 0.5'):
        assert read_page(cache, f"a 1{tail}\n# EOF\n", OPENMETRICS).entries == [entry(1)]


def test_a_page_in_another_format_continues_the_series() -> None:
    cache = page_cache()
    read_page(cache, "a 1\nb 1\n")
    assert read_page(cache, "a 1\n# EOF\n", OPENMETRICS).entries == [entry(1), entry(None, name="b")]


HONOR = [
    ("renamed to exported_", False, 'a{job="mine"} 1', {"job": "j", "exported_job": "mine"}),
    ("honored", True, 'a{job="mine"} 1', {"job": "mine"}),
    ("an empty label removes the target's label", True, 'a{instance=""} 1', {"instance": ""}),
    ("an empty label is not renamed", False, 'a{instance=""} 1', {}),
    (
        "renamed again if exported_ is in use",
        False,
        'a{job="mine",exported_job="other"} 1',
        {"exported_job": "other", "exported_exported_job": "mine"},
    ),
]


@pytest.mark.parametrize(("honor", "line", "labels"), [c[1:] for c in HONOR], ids=[c[0] for c in HONOR])
def test_conflicts_of_page_and_target_labels(honor: bool, line: str, labels: dict[str, str]) -> None:
    assert read_page(page_cache(), line, honor=honor).entries == [entry(1, **labels)]


def test_samples_dropped_by_metric_relabeling_count_only_as_scraped() -> None:
    cache = page_cache(RelabelRule(action="keep", source_labels=("__name__",), regex="b"))
    for value in (1, 2):
        assert read_page(cache, f"a {value}\nb 1\n").counts == SampleCounts(2, 1, int(value == 1))


LIMITS = [
    ("sample limit", {"limit": 1}, None, "a 1\nb 1\n", "sample_limit is 1"),
    ("label limit", {}, LabelLimits(labels=3), 'a{x="1"} 1', "has 4 labels, label_limit is 3"),
    ("label name", {}, LabelLimits(name_length=8), 'a{xxxxxxxxx="1"} 1', "longer than the limit of 8 bytes"),
    ("label value", {}, LabelLimits(value_length=2), 'a{x="123"} 1', "longer than the limit of 2 bytes"),
]


@pytest.mark.parametrize(
    ("keys", "limits", "text", "complaint"), [c[1:] for c in LIMITS], ids=[c[0] for c in LIMITS]
)
def test_a_page_above_a_limit_is_rejected(
    keys: dict[str, int], limits: LabelLimits | None, text: str, complaint: str
) -> None:
    with pytest.raises(PageError, match=complaint):
        read_page(page_cache(limits=limits), text, **keys)


REJECTED = [
    ("an invalid line", "b", None, (1, 1)),
    ("an invalid value", "b x", None, (1, 1)),
    ("a duplicate label", 'b{x="1",x="2"} 1', None, (2, 1)),
    ("a label above a limit", 'b{x="123"} 1', LabelLimits(value_length=2), (2, 1)),
    ("after a sample with an explicit timestamp", "c 1 1700000000000\nb", None, (2, 2)),
]


@pytest.mark.parametrize(
    ("line", "limits", "counts"), [c[1:] for c in REJECTED], ids=[case[0] for case in REJECTED]
)
def test_samples_before_a_bad_line_are_counted_and_not_new_again(
    line: str, limits: LabelLimits | None, counts: tuple[int, int]
) -> None:
    cache = page_cache(limits=limits)
    new = []
    for _ in range(3):
        with pytest.raises(PageError) as caught:
            read_page(cache, f"a 1\n{line}\n")
        assert (caught.value.counts.scraped, caught.value.counts.kept) == counts
        assert cache.end_series() == []
        new.append(caught.value.counts.added)
    assert new == [counts[1], 0, 0]
    assert read_page(cache, "a 2\nz 1\n").counts.added == 1


def test_two_lines_of_a_series_before_a_bad_line_give_one_sample_after_it_is_fixed() -> None:
    cache = page_cache(RelabelRule(action="labeldrop", regex="x"))
    with pytest.raises(PageError):
        read_page(cache, 'a{x="1"} 1\na{x="2"} 2\nb')
    assert read_page(cache, 'a{x="1"} 1\na{x="2"} 2\n').entries == [entry(1)]


ROWS = st.tuples(st.sampled_from("ab"), st.sampled_from(("1", "2", "3", "1 5", "2 5", "2 6")))


@given(st.lists(st.lists(ROWS, max_size=4), max_size=5))
@example([[("a", "1"), ("a", "2"), ("b", "1")], [("a", "1"), ("a", "1"), ("b", "1")], []])
@example([[("a", "1"), ("a", "2")], [("a", "2"), ("a", "1")]])
def test_the_cache_changes_nothing_but_the_count_of_new_series(history: list[list[tuple[str, str]]]) -> None:
    cache = page_cache()
    before: dict[str, str] = {}
    for page in history:
        plain: dict[str, str] = {}
        for name, value in page:
            if " " not in value:
                plain.setdefault(name, value)
        timed: dict[tuple[str, str], str] = {}
        for name, written in page:
            value, _, time = written.partition(" ")
            if time:
                timed.setdefault((name, time), value)
        own = [entry(float(value), name=name) for (name, _), value in timed.items()]
        ends = [entry(None, name=name) for name in before if name not in plain]
        found = read_page(cache, "".join(f"{name} {value}\n" for name, value in page))
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


def results_of(memory: PageMemoryBudget, history: list[list[tuple[str, str]] | None]) -> list[object]:
    """Return the result of each page; None in the history is a failed scrape."""
    cache, results = page_cache(memory=memory), list[object]()
    for page in history:
        if page is None:
            results.append(sorted(cache.end_series()))
            continue
        try:
            found = read_page(cache, "".join(f"{name} {value}\n" for name, value in page))
            results.append((found.counts, sorted(found.entries), found.timed, found.duplicates))
        except PageError as error:
            results.append((str(error), error.counts, sorted(cache.end_series())))
    return results


@given(PAGES)
def test_an_unpacked_page_gives_the_same_results_as_a_packed_one(
    history: list[list[tuple[str, str]] | None],
) -> None:
    assert results_of(PageMemoryBudget(), history) == results_of(PageMemoryBudget(0), history)


WRITTEN = st.sampled_from(("1", "2.5", "-0", "1e3", "NaN", "+Inf", "1_0", "0x1", "1e400", "x", "7 5"))
LAYOUT = '# HELP a text\n# TYPE a gauge\na{{x="1"}} {}\na{{x="2 3"}} {}\nb {}\ndropped {}\n'


@given(st.lists(st.tuples(WRITTEN, WRITTEN, WRITTEN, WRITTEN), min_size=2, max_size=4))
@example([("1",) * 4, ("1", "2", "NaN", "3"), ("1", "2", "2", "x")])
def test_a_page_of_which_only_values_change_is_read_like_a_first_page(history: list[tuple[str, ...]]) -> None:
    drop = RelabelRule(action="drop", source_labels=("__name__",), regex="dropped")
    cache = page_cache(drop)
    for values in history:
        text = LAYOUT.format(*values)
        try:
            wanted = read_page(page_cache(drop), text)
        except PageError as error:
            with pytest.raises(PageError, match=re.escape(str(error))):
                read_page(cache, text)
            cache.end_series()
            continue
        found = read_page(cache, text)
        assert [one for one in found.entries if one[-8:] != STALE] == wanted.entries
        assert (found.timed, found.duplicates) == (wanted.timed, 0)
        assert (found.counts.scraped, found.counts.kept) == (wanted.counts.scraped, wanted.counts.kept)


def test_page_memory_is_first_come_first_served_and_released() -> None:
    memory = PageMemoryBudget(300)
    first, second = page_cache(memory=memory), page_cache(memory=memory)
    read_page(first, "a 1\n")
    held = memory.used
    assert 0 < held == first.kept_bytes <= 300 < 2 * held
    read_page(second, "a 1\n")
    assert memory.used == held
    first.release_memory()
    assert memory.used == 0
    read_page(second, "a 1\n")
    assert memory.used == held


@pytest.mark.parametrize("over", ["ended", "released", "larger"])
def test_a_finished_page_holds_no_memory(over: str) -> None:
    memory = PageMemoryBudget(300)
    cache = page_cache(memory=memory)
    read_page(cache, "a 1\n")
    if over == "ended":
        cache.end_series()
    elif over == "released":
        cache.release_memory()
    else:
        read_page(cache, "".join(f"a{number} 1\n" for number in range(9)))
    assert memory.used == 0
    assert read_page(cache, "a 2\n").entries[0] == entry(2)
