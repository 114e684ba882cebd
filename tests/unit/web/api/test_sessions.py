"""/api/v1/sessions: which sessions are told, in which order, and that none is told twice or left out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from books_helpers import UNIX, Run
from builders import GIB, FakeClock, gpu, instance, page, process, reading, snapshot
from gpuledger.ledger.ledger import Ledger
from gpuledger.ledger.settings import LedgerSettings
from gpuledger.ledger.store.history import History
from gpuledger.model.node_state import NodeState
from gpuledger.model.process import GpuProcess
from gpuledger.model.workload import Workload
from gpuledger.web.api.answers import Refused, cursor_of
from gpuledger.web.api.books import BooksAsRead
from gpuledger.web.api.endpoints import ENDPOINTS
from gpuledger.web.api.parameters import read_query
from gpuledger.web.api.sessions import sessions_of
from gpuledger.web.api.values import Words

CARD, OTHER = gpu(0), gpu(1)
(PARAMETERS,) = (one.parameters for one in ENDPOINTS if one.name == "sessions")
POD = Workload("pod", "ml", "train-0", "pytorch", user="root")
ALICE = Workload("user", user="alice")


def asked(query: str = "") -> dict[str, Any]:
    return read_query(query, PARAMETERS)


@dataclass
class Node:
    """Books on disk, their newest Page, and what the API says of them."""

    folder: Path
    energy: int = 0
    run: Run = field(init=False)
    page: NodeState = field(init=False)
    books: BooksAsRead = field(init=False)

    def __post_init__(self) -> None:
        self.run = Run(self.folder)
        self.page = page(None)
        self.books = BooksAsRead(self.run.clock, lambda: History(self.run.store.file))

    def tick(self, *processes: GpuProcess, seconds: float = 1.0) -> None:
        self.energy += 10_000
        state = self.run.tick({CARD: self.energy, OTHER: self.energy}, processes, seconds)
        self.page = page(snapshot(unix=self.run.clock.now_unix), state)

    def told(self, query: str = "") -> Words:
        return sessions_of(self.page, self.books, asked(query))

    def pids(self, query: str = "") -> list[int]:
        return [one["pid"] for one in self.told(query)["sessions"]]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with opened(tmp_path) as found:
        yield found


@contextmanager
def opened(folder: Path) -> Iterator[Node]:
    found = Node(folder)
    try:
        yield found
    finally:
        found.run.store.close()


def test_open_and_ended_ones_are_told_in_order_of_first_sight(node: Node) -> None:
    first, second, third = (process(CARD, pid, ticks=pid) for pid in (30, 20, 10))
    node.tick(first)
    node.tick(first, second)
    node.tick(second, third)
    told = node.told()
    assert [(one["pid"], one["ended"] is None) for one in told["sessions"]] == [
        (30, False),
        (20, True),
        (10, True),
    ]
    assert (told["next"], told["from_books"]) == (None, True)


def test_a_session_says_what_it_used_and_what_is_not_known(node: Node) -> None:
    one = process(CARD, 7, memory=3 * GIB, sm=0.5, workload=POD)
    silent = process(OTHER, 8, memory=None, sm=None, workload=ALICE)
    for _ in range(4):
        node.tick(one, silent)
    busy, quiet = node.told()["sessions"]
    assert (busy["pod"], busy["user"], busy["owner_kind"]) == ("train-0", "", "pod")
    assert (busy["first_seen"], busy["last_seen"], busy["ended"]) == (UNIX + 1, UNIX + 4, None)
    assert (busy["peak_memory_bytes"], busy["sm_mean_ratio"]) == (3 * GIB, 0.5)
    assert busy["joules"] == busy["measured_joules"] + busy["apportioned_joules"] > 0
    assert busy["low_joules"] <= busy["joules"] <= busy["high_joules"]
    assert (quiet["user"], quiet["peak_memory_bytes"], quiet["sm_mean_ratio"]) == ("alice", None, None)


def test_on_a_gpu_that_tells_no_energy_a_session_has_none_and_not_zero(node: Node) -> None:
    mute = gpu(2)
    for _ in range(3):
        state = node.run.tick({CARD: 1000, mute: None}, (process(CARD, 7), process(mute, 8)), 1.0)
        node.page = page(snapshot(unix=node.run.clock.now_unix), state)
    told = {one["pid"]: one for one in node.told()["sessions"]}
    names = [name for name in told[8] if name.endswith("joules")]
    assert len(names) == 5
    assert {told[8][name] for name in names} == {None}
    assert told[7]["joules"] == 0


def test_a_cursor_with_times_beyond_all_books_finds_nothing(node: Node) -> None:
    node.tick(process(CARD, 7))
    told = node.told(f"cursor={cursor_of([10**100, 10**100, 0, 0])}")
    assert (told["sessions"], told["from_books"]) == ([], True)


@pytest.mark.parametrize(
    ("query", "pids"),
    [
        ("", [1, 2, 3, 4]),
        ("gpu=0", [1, 2]),
        ("gpu=GPU-1", [3, 4]),
        ("gpu=9", []),
        ("namespace=ml", [1, 3]),
        ("namespace=", [2, 4]),
        ("pod=train-0&gpu=1", [3]),
        ("user=alice", [2, 4]),
        ("user=", [1, 3]),
        ("user=root", []),
        ("state=open", [3, 4]),
        ("state=closed", [1, 2]),
        ("state=closed&user=alice", [2]),
        (f"until={UNIX}", []),
        (f"since={UNIX + 3}", [3, 4]),
        (f"since={UNIX + 2}", [1, 2, 3, 4]),
        ("pod=%F0%9F%92%A9'%22%00", []),
    ],
)
def test_filters_hold_for_open_and_ended_ones_alike(node: Node, query: str, pids: list[int]) -> None:
    everybody = [
        process(CARD, 1, workload=POD),
        process(CARD, 2, workload=ALICE),
        process(OTHER, 3, workload=POD),
        process(OTHER, 4, workload=ALICE),
    ]
    node.tick(*everybody)
    node.tick(*everybody)
    node.tick(*everybody[2:])
    assert node.pids(query) == pids


def test_a_session_that_ended_between_the_page_and_the_books_is_told_once_as_the_books_have_it(
    node: Node,
) -> None:
    one = process(CARD, 7)
    node.tick(one)
    before = node.page
    node.tick()
    (told,) = sessions_of(before, node.books, asked())["sessions"]
    assert (told["pid"], told["ended"], told["exit_seen"]) == (7, UNIX + 1, True)


def test_a_session_that_the_page_does_not_know_yet_is_told_from_the_books(node: Node) -> None:
    node.tick(process(CARD, 7))
    before = node.page
    node.tick(process(CARD, 7), process(CARD, 8))
    assert [one["pid"] for one in sessions_of(before, node.books, asked())["sessions"]] == [7, 8]


def test_under_mig_a_session_says_gpu_and_instance() -> None:
    part = instance(CARD, 2)
    ledger = Ledger(LedgerSettings())
    state = ledger.post(snapshot(reading(CARD), reading(part, process(part, 5))))
    seen = page(snapshot(reading(CARD), unix=1_700_000_000.0), state)
    (told,) = sessions_of(seen, BooksAsRead(FakeClock()), asked())["sessions"]
    assert (told["uuid"], told["gpu"], told["instance"]) == ("GPU-0", "0", "2_0")


def test_without_books_what_runs_now_is_told_and_that_it_is_all() -> None:
    ledger = Ledger(LedgerSettings())
    ledger.post(snapshot(reading(CARD, process(CARD, 1), process(CARD, 2))))
    state = ledger.post(snapshot(reading(CARD, process(CARD, 2)), unix=1_700_000_001.0))
    told = sessions_of(page(snapshot(), state), BooksAsRead(FakeClock(1_700_000_001.0)), asked())
    assert ([one["pid"] for one in told["sessions"]], told["from_books"]) == ([2], False)


def test_books_that_cannot_be_read_do_not_hide_what_runs_now(node: Node, tmp_path: Path) -> None:
    node.tick(process(CARD, 7))
    gone = BooksAsRead(node.run.clock, lambda: History(tmp_path / "nowhere.db"))
    told = sessions_of(node.page, gone, asked())
    assert ([one["pid"] for one in told["sessions"]], told["from_books"]) == ([7], False)


def test_made_up_time_is_the_books_own(node: Node) -> None:
    node.tick(process(CARD, 7))
    node.tick()
    long_after = FakeClock(UNIX + 10 * 86_400)
    books = BooksAsRead(long_after, lambda: History(node.run.store.file), made_up=True)
    told = sessions_of(node.page, books, asked())
    assert ([one["pid"] for one in told["sessions"]], told["until"]) == ([7], UNIX + 2)
    books = BooksAsRead(long_after, lambda: History(node.run.store.file))
    assert sessions_of(node.page, books, asked())["sessions"] == []


def test_pages_have_what_one_answer_would_and_each_once(node: Node) -> None:
    for pid in range(1, 24):
        node.tick(process(CARD, pid, ticks=pid), *([process(OTHER, 99)] if pid > 9 else []))
    whole = node.pids("limit=1000")
    assert paged(node, "limit=5") == whole
    assert len(whole) == 24


def paged(node: Node, query: str, *between: tuple[GpuProcess, ...]) -> list[int]:
    """Pids page by page; between two pages a tick with these processes passes."""
    found: list[int] = []
    ticks = list(between)
    told = node.told(query)
    while True:
        found += [one["pid"] for one in told["sessions"]]
        if told["next"] is None:
            return found
        if ticks:
            node.tick(*ticks.pop(0))
        told = node.told(f"{query}&cursor={told['next']}")


def test_sessions_that_end_between_pages_are_neither_lost_nor_told_twice(node: Node) -> None:
    everybody = [process(CARD, pid) for pid in range(1, 13)]
    node.tick(*everybody)
    ticks = [tuple(everybody[:3]), tuple(everybody[9:]), ()]
    assert paged(node, "limit=3", *ticks) == list(range(1, 13))


def test_those_that_began_since_the_first_page_are_not_in_its_range(node: Node) -> None:
    node.tick(*(process(CARD, pid) for pid in (1, 2, 3)))
    later = [process(CARD, pid) for pid in range(1, 9)]
    assert paged(node, "limit=2", tuple(later)) == [1, 2, 3]


def test_the_range_of_a_relative_time_does_not_move_from_page_to_page(node: Node) -> None:
    node.tick(process(CARD, 1, ticks=1), process(CARD, 2, ticks=2), process(CARD, 3, ticks=3))
    node.tick()
    first = node.told("since=10s&limit=1")
    node.tick(seconds=60.0)
    second = node.told(f"since=10s&limit=1&cursor={first['next']}")
    assert [one["pid"] for one in second["sessions"]] == [2]
    assert (second["since"], second["until"]) == (first["since"], first["until"])


@settings(deadline=None, max_examples=15)
@given(
    st.lists(st.sets(st.integers(1, 12), max_size=12), min_size=1, max_size=8),
    st.integers(1, 5),
    st.lists(st.sets(st.integers(1, 12), max_size=12), max_size=8),
)
def test_whatever_comes_and_goes_pages_have_everybody_of_the_first_page_s_time_once(
    tmp_path_factory: pytest.TempPathFactory, before: list[set[int]], limit: int, between: list[set[int]]
) -> None:
    with opened(tmp_path_factory.mktemp("books")) as node:

        def people(pids: set[int]) -> tuple[GpuProcess, ...]:
            return tuple(process(CARD, pid) for pid in sorted(pids))

        for pids in before:
            node.tick(*people(pids))
        expected = [one["id"] for one in node.told("limit=1000")["sessions"]]
        found, told = [], node.told(f"limit={limit}")
        ticks = list(between)
        while True:
            found += [one["id"] for one in told["sessions"]]
            if told["next"] is None:
                break
            if ticks:
                node.tick(*people(ticks.pop(0)))
            told = node.told(f"limit={limit}&cursor={told['next']}")
        assert found == expected


@pytest.mark.parametrize(
    "cursor",
    [
        "x",
        "%2B%2B",
        "W10",
        cursor_of([1, 2, 3]),
        cursor_of([1, 2, 3, 4, 5]),
        cursor_of([1, 2, 3, 4.5]),
        cursor_of([1, 2, 3, 1e300]),
        "é",
        "A" * 4000,
    ],
)
def test_a_cursor_that_no_answer_had_is_refused(node: Node, cursor: str) -> None:
    node.tick(process(CARD, 7))
    with pytest.raises(Refused) as refused:
        node.told(f"cursor={cursor}")
    assert (refused.value.status, refused.value.parameter) == (400, "cursor")


ALL_SAID = f"since={UNIX}&until={UNIX + 50}&gpu=0&namespace=ml&pod=train-0&user=&state=open"


def test_a_cursor_alone_goes_on_with_all_that_was_asked_for(node: Node) -> None:
    others = [process(CARD, 9, ticks=1), process(OTHER, 10, ticks=1, workload=POD)]
    wanted = [process(CARD, pid, ticks=pid, workload=POD) for pid in range(1, 8)]
    node.tick(*wanted, *others)
    found, told = [], node.told(f"{ALL_SAID}&limit=2")
    while True:
        found += [one["pid"] for one in told["sessions"]]
        if told["next"] is None:
            break
        told = node.told(f"cursor={told['next']}&limit=3")
    assert found == list(range(1, 8))
    assert (told["since"], told["until"]) == (UNIX, UNIX + 50)


@pytest.mark.parametrize("name", ["since", "until", "gpu", "namespace", "pod", "user", "state"])
def test_another_parameter_than_the_cursor_was_made_with_is_refused_and_named(node: Node, name: str) -> None:
    node.tick(*(process(CARD, pid, workload=POD) for pid in (1, 2, 3)))
    other = {"since": "2h", "until": "1s", "gpu": "1", "state": "closed"}.get(name, "other")
    for first in ("limit=1", f"{ALL_SAID}&limit=1"):
        cursor = node.told(first)["next"]
        with pytest.raises(Refused) as refused:
            node.told(f"cursor={cursor}&{name}={other}")
        assert (refused.value.status, refused.value.parameter) == (400, name)
        assert name in refused.value.message


def test_the_times_of_an_answer_are_those_of_its_cursor(node: Node) -> None:
    node.tick(*(process(CARD, pid) for pid in (1, 2)))
    first = node.told("since=1h&limit=1")
    told = node.told(f"cursor={first['next']}&since={first['since']}&until={first['until']}")
    assert [one["pid"] for one in told["sessions"]] == [2]


@pytest.mark.parametrize(
    "asked_before", [{"state": "shut"}, {"user": "\ud800"}, {"user": 1}, {"user": None}, [], 7]
)
def test_a_cursor_of_parameters_that_nobody_can_give_is_refused(node: Node, asked_before: Any) -> None:
    node.tick(process(CARD, 7))
    with pytest.raises(Refused) as refused:
        node.told(f"cursor={cursor_of([1, 2, 3, 4], asked_before or [[]])}")
    assert (refused.value.status, refused.value.parameter) == (400, "cursor")


@pytest.mark.parametrize("text", ["[NaN,1,2,3]", "[true,1,2,3]", '["1",1,2,3]', "{}", "[1e999,1,2,3]"])
def test_a_cursor_of_other_things_than_numbers_is_refused(node: Node, text: str) -> None:
    import base64

    node.tick(process(CARD, 7))
    word = base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")
    with pytest.raises(Refused):
        node.told(f"cursor={word}")


@pytest.mark.parametrize("query", ["since=1h&until=2h", "since=now", "since=0h", "since=00d&until=0s"])
def test_a_range_that_is_none_is_refused(node: Node, query: str) -> None:
    node.tick()
    with pytest.raises(Refused, match="since is not before until") as refused:
        node.told(query)
    assert (refused.value.status, refused.value.parameter) == (400, "since")


def test_who_was_there_at_one_moment_is_a_question(node: Node) -> None:
    for pid in (1, 2, 3):
        node.tick(process(CARD, pid, ticks=pid))
    assert node.pids(f"since={UNIX + 2}&until={UNIX + 2}") == [2]


def test_the_answer_is_json(node: Node) -> None:
    node.tick(process(CARD, 7))
    assert json.loads(json.dumps(node.told(), allow_nan=False)) == node.told()
