"""A receiver refuses some series of a request: the others are delivered, and only these are lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.agent.deliver.queue import QueuedRecord
from gpuledger.agent.deliver.records import compress_block
from gpuledger.agent.deliver.refused_series import (
    LEFT_OUT_SECONDS,
    RefusalSearch,
    RefusedSeries,
    SeriesSample,
)
from gpuledger.exposition.remote_write import encode_bytes_field
from write_helpers import (
    HandClock,
    Post,
    ScriptedReceiver,
    block,
    emptied,
    only_state,
    receiving,
    run,
    sending,
    settings,
    until,
)
from write_request import series_of, unpacked

SERIES = 20
Sample = tuple[str, str, int]


def samples(post: Post) -> list[Sample]:
    """Target, series and timestamp of each sample of a request."""
    return [
        (dict(labels)["target"], dict(labels)["series"], moment)
        for labels, found in series_of(unpacked(post.body))
        for _, moment in found
    ]


class ValidatingReceiver(ScriptedReceiver):
    """Answers `status` to a request with an invalid sample. `partial`: it keeps the valid samples of it."""

    def __init__(self, is_bad: Callable[[Sample], bool], *, partial: bool, status: str = "400 No") -> None:
        super().__init__(self.answer, body="err-max-label-names-per-series")
        self.is_bad, self.partial, self.status = is_bad, partial, status
        self.kept: list[Sample] = []
        self.sent = 0

    def answer(self, post: Post) -> str:
        found = samples(post)
        self.sent += len(found)
        good = [sample for sample in found if not self.is_bad(sample)]
        refused = len(good) < len(found)
        if self.partial or not refused:
            self.kept += good
        return self.status if refused else "204 No Content"


def bad_series(sample: Sample) -> bool:
    return sample[:2] == ("1", "7")


@pytest.mark.parametrize("partial", [True, False])
def test_only_the_refused_series_is_lost(
    tmp_path: Path, partial: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        there = ValidatingReceiver(bad_series, partial=partial)
        async with receiving(there), sending(tmp_path, settings(there.url)) as here:
            for number in range(30):
                for target in range(4):
                    here.accept(block(target, number, samples=SERIES))
                await emptied(here)
            state = only_state(here)
            assert state.dropped["rejected"] == 30
            assert state.sent_samples == 30 * 4 * SERIES - 30
            assert state.refused_series == 1
            assert not state.refusing
        assert len(set(there.kept)) == 30 * 4 * SERIES - 30
        # After two searches, the series is left out and each sample is sent once.
        assert there.sent < 1.3 * 30 * 4 * SERIES

    run(test)
    lines = [record.getMessage() for record in caplog.records]
    assert sum('such as m{series="7", target="1"}' in line for line in lines) == 1


@pytest.mark.parametrize("partial", [True, False])
@pytest.mark.parametrize(
    ("is_bad", "bad"),
    [
        (bad_series, 1),
        (lambda sample: sample[:2] == ("0", "0"), 1),
        (lambda sample: sample[0] == "0", SERIES),
    ],
    ids=["one", "the first", "all of the first target"],
)
def test_a_series_above_a_limit_does_not_hold_up_the_others(
    tmp_path: Path, is_bad: Callable[[Sample], bool], bad: int, partial: bool
) -> None:
    """Older Cortex answers 429 as long as a request has a series above the limit of the tenant."""

    async def test() -> None:
        there = ValidatingReceiver(is_bad, partial=partial, status="429 Too Many Requests")
        async with receiving(there), sending(tmp_path, settings(there.url)) as here:
            for number in range(6):
                for target in range(4):
                    here.accept(block(target, number, samples=SERIES))
                await emptied(here)
            state = only_state(here)
            assert state.dropped["rejected"] == 6 * bad
            assert (state.refused_series, state.refusing, state.failing) == (bad, False, False)
        assert len(set(there.kept)) == 6 * (4 * SERIES - bad)

    run(test)


def test_the_search_for_a_limited_series_repeats_no_sample_that_is_too_old(tmp_path: Path) -> None:
    """Some receivers refuse a sample that is older than the last one of its series."""

    async def test() -> None:
        there = ValidatingReceiver(bad_series, partial=False, status="429 Later")
        newest: dict[tuple[str, str], int] = {}

        def script(post: Post) -> str:
            found = samples(post)
            if any(moment < newest.get((target, series), 0) for target, series, moment in found):
                return "400 out of order"
            if not any(map(bad_series, found)):
                newest.update({(target, series): moment for target, series, moment in found})
            return there.answer(post)

        there.script = script
        async with receiving(there), sending(tmp_path, settings(there.url)) as here:
            for number in range(3):
                for target in range(4):
                    here.accept(block(target, number, samples=SERIES))
            await emptied(here)
            assert only_state(here).dropped["rejected"] == 3
        assert len(set(there.kept)) == 12 * SERIES - 3

    run(test)


@pytest.mark.parametrize("header", ["", "\nRetry-After: 0"])
def test_a_limit_of_the_rate_loses_no_sample(tmp_path: Path, header: str) -> None:
    async def test() -> None:
        there = ValidatingReceiver(lambda sample: False, partial=False)
        there.script = lambda post: f"429 Later{header}" if len(there.posts) < 60 else there.answer(post)
        async with receiving(there), sending(tmp_path, settings(there.url)) as here:
            here.accept(block(1, 0, samples=SERIES))
            await emptied(here)
            assert only_state(here).dropped["rejected"] == 0
        assert len(set(there.kept)) == SERIES

    run(test)


def test_samples_beyond_the_rate_are_sent_as_it_allows_and_once(tmp_path: Path) -> None:
    """A request that is larger than what the receiver has left, which grows while the agent waits."""

    async def test() -> None:
        there, left = ValidatingReceiver(lambda sample: False, partial=False), [30]

        def script(post: Post) -> str:
            wanted = len(samples(post))
            if wanted > left[0]:
                left[0] += 1
                return "429 Too Many Requests"
            left[0] -= wanted
            return there.answer(post)

        there.script = script
        async with receiving(there), sending(tmp_path, settings(there.url)) as here:
            for number in range(3):
                here.accept(block(1, number, samples=100))
            await emptied(here)
            assert only_state(here).dropped["rejected"] == 0
        assert len(set(there.kept)) == 300
        assert len(there.kept) < 330
        assert all(
            times == sorted(times)
            for each in range(100)
            if (times := [moment for _, series, moment in there.kept if series == str(each)])
        )

    run(test)


def test_one_refused_sample_does_not_cost_the_next_one_of_its_series(tmp_path: Path) -> None:
    async def test() -> None:
        first = block(1, 0).oldest
        there = ValidatingReceiver(lambda sample: sample == ("1", "7", first + 5), partial=False)
        async with receiving(there), sending(tmp_path, settings(there.url)) as here:
            for number in range(10):
                here.accept(block(1, number, samples=SERIES))
                await emptied(here)
            assert only_state(here).dropped["rejected"] == 1
            assert only_state(here).refused_series == 0
        assert len(there.kept) == 10 * SERIES - 1
        times = [moment for _, series, moment in there.kept if series == "7"]
        assert times == sorted(times)

    run(test)


def test_a_refused_series_is_tried_again_later_and_returns(tmp_path: Path) -> None:
    async def test() -> None:
        clock, accepted = HandClock(), list[int]()
        there = ValidatingReceiver(lambda sample: bad_series(sample) and not accepted, partial=True)
        async with receiving(there), sending(tmp_path, settings(there.url), clock=clock) as here:
            for number in range(3):
                here.accept(block(1, number, samples=SERIES))
                await emptied(here)
            assert only_state(here).dropped["rejected"] == 3
            accepted.append(1)
            clock.now += LEFT_OUT_SECONDS - 1
            here.accept(block(1, 3, samples=SERIES))
            await emptied(here)
            assert only_state(here).dropped["rejected"] == 4
            clock.now += 2
            here.accept(block(1, 4, samples=SERIES))
            await emptied(here)
            assert (only_state(here).dropped["rejected"], only_state(here).refused_series) == (4, 0)

    run(test)


def test_a_receiver_that_refuses_everything_costs_few_requests_and_is_down(tmp_path: Path) -> None:
    async def test() -> None:
        there = ValidatingReceiver(lambda sample: True, partial=False)
        async with receiving(there), sending(tmp_path, settings(there.url)) as here:
            here.accept(block(1, 0, samples=100))
            await emptied(here)
            assert only_state(here).dropped["rejected"] == 100
            assert only_state(here).refusing
        assert len(there.posts) <= 30

    run(test)


@pytest.mark.parametrize(
    "is_out", [lambda number: number % 2, lambda number: 1 < number < 250], ids=["short", "long"]
)
def test_an_outage_during_the_search_loses_nothing(tmp_path: Path, is_out: Callable[[int], bool]) -> None:
    async def test() -> None:
        there = ValidatingReceiver(bad_series, partial=False)
        answer = there.answer
        there.script = lambda post: "503 Later" if is_out(len(there.posts)) else answer(post)
        async with receiving(there), sending(tmp_path, settings(there.url)) as here:
            here.accept(block(1, 0, samples=SERIES))
            await emptied(here)
            assert only_state(here).dropped["rejected"] == 1
        assert len(set(there.kept)) == SERIES - 1

    run(test)


def test_changed_settings_forget_the_refused_series(tmp_path: Path) -> None:
    async def test() -> None:
        there = ValidatingReceiver(bad_series, partial=True)
        async with receiving(there), sending(tmp_path, settings(there.url)) as here:
            here.accept(block(1, 0, samples=SERIES))
            await emptied(here)
            assert only_state(here).refused_series == 1
            await here.apply((settings(there.url, remote_timeout=7.0),))
            await until(lambda: only_state(here).refused_series == 0, "no refused series")

    run(test)


def item(serial: int, target: int, series: int) -> QueuedRecord:
    return QueuedRecord(serial, 0.0, serial, compress_block(block(target, serial, samples=series), 0))


def found_by(search: RefusalSearch, is_bad: Callable[[SeriesSample], bool]) -> list[SeriesSample]:
    """The samples that a receiver which keeps nothing of a refused request has after the search."""
    kept = list[SeriesSample]()
    while part := search.next_part():
        if any(map(is_bad, part)):
            search.refuse(part, divisible=True)
        else:
            kept += part
            search.accept(part)
    return kept


@given(bad=st.sets(st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=7), rounds=st.integers(1, 4))
def test_every_good_sample_arrives_and_every_bad_one_is_counted(
    bad: set[tuple[int, int]], rounds: int
) -> None:
    known = RefusedSeries(HandClock())

    def is_bad(sample: SeriesSample) -> bool:
        return any(
            sample.item.record.shard == target and b"series\x12\x01%d" % series in sample.labels
            for target, series in bad
        )

    for number in range(rounds):
        items = [item(10 * number + target, target, 10) for target in range(4)]
        search = RefusalSearch(items, known)
        kept = found_by(search, is_bad)
        assert len({(sample.item.serial, sample.labels) for sample in kept}) == 40 - len(bad)
        assert search.lost.total() == len(bad)
    assert known.count == len(bad)


@pytest.mark.parametrize(
    ("targets", "series"),
    [((0,), range(60)), ((3,), range(60)), ((0, 2), range(60)), ((0,), range(10)), ((1,), range(20, 50))],
)
def test_many_refused_series_of_a_target_cost_the_others_nothing(
    targets: tuple[int, ...], series: range
) -> None:
    known = RefusedSeries(HandClock())
    names = [b"series%b" % encode_bytes_field(2, b"%d" % one) for one in series]

    def is_bad(sample: SeriesSample) -> bool:
        return sample.item.record.shard in targets and any(name in sample.labels for name in names)

    for number in range(3):
        items = [item(10 * number + target, target, 60) for target in range(4)]
        search = RefusalSearch(items, known)
        kept = found_by(search, is_bad)
        bad = len(targets) * len(series)
        assert len({(sample.item.serial, sample.labels) for sample in kept}) == 240 - bad
        assert search.lost.total() == bad


def test_a_backlog_of_refused_series_costs_few_requests() -> None:
    """After its second refusal, the rest of a series is sent in a few parts, after the others."""
    known, requests = RefusedSeries(HandClock()), list[int]()

    def is_bad(sample: SeriesSample) -> bool:
        return any(name in sample.labels for name in (b"series\x12\x011", b"series\x12\x0217"))

    class Counted(RefusalSearch):
        def next_part(self) -> Sequence[SeriesSample]:
            part = super().next_part()
            requests.append(len(part))
            return part

    search = Counted([item(number, 0, 20) for number in range(40)], known)
    kept = found_by(search, is_bad)
    assert len({(sample.item.serial, sample.labels) for sample in kept}) == 40 * 18
    assert search.lost.total() == 40 * 2
    assert known.count == 2
    assert len(requests) < 100


def test_the_memory_of_refused_series_is_bounded_and_forgets_ended_ones() -> None:
    clock = HandClock()
    known = RefusedSeries(clock)
    (first,) = [item(0, 1, 1)]
    for number in range(10_050):
        known.add(SeriesSample(first, b"%d" % number, b"", 1))
    assert known.count == 10_000
    clock.now += 2 * LEFT_OUT_SECONDS + 1
    known.forget_ended()
    assert (known.count, known.concerns(first)) == (0, False)
