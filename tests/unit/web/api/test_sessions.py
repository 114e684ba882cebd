"""/api/v1/sessions: which sessions are listed, in which order, and each exactly once over all pages."""

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

from builders import GIB, FakeClock, gpu, instance, node_state, process, reading, snapshot
from gpuledger.ledger.ledger import Ledger
from gpuledger.ledger.settings import LedgerSettings
from gpuledger.ledger.store.history import History
from gpuledger.model.node_state import NodeState
from gpuledger.model.process import GpuProcess
from gpuledger.model.workload import Workload
from gpuledger.web.api.endpoints import ENDPOINTS
from gpuledger.web.api.json_values import JsonObject
from gpuledger.web.api.ledger_access import LedgerAccess
from gpuledger.web.api.parameters import read_query
from gpuledger.web.api.responses import ApiError, encode_cursor
from gpuledger.web.api.sessions import list_sessions
from ledger_helpers import UNIX, Run

CARD, OTHER = gpu(0), gpu(1)
(PARAMETERS,) = (one.parameters for one in ENDPOINTS if one.name == "sessions")
POD = Workload("pod", "ml", "train-0", "pytorch", user="root")
ALICE = Workload("user", user="alice")


def parameters(query: str = "") -> dict[str, Any]:
    return read_query(query, PARAMETERS)


@dataclass
class Node:
    """A ledger on disk, its newest NodeState, and a client of the API."""

    folder: Path
    energy: int = 0
    run: Run = field(init=False)
    state: NodeState = field(init=False)
    ledger_access: LedgerAccess = field(init=False)

    def __post_init__(self) -> None:
        self.run = Run(self.folder)
        self.state = node_state(None)
        self.ledger_access = LedgerAccess(self.run.clock, lambda: History(self.run.store.file))

    def tick(self, *processes: GpuProcess, seconds: float = 1.0) -> None:
        self.energy += 10_000
        state = self.run.tick({CARD: self.energy, OTHER: self.energy}, processes, seconds)
        self.state = node_state(snapshot(unix=self.run.clock.now_unix), state)

    def request(self, query: str = "") -> JsonObject:
        return list_sessions(self.state, self.ledger_access, parameters(query))

    def pids(self, query: str = "") -> list[int]:
        return [one["pid"] for one in self.request(query)["sessions"]]


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


def test_open_and_ended_sessions_are_listed_in_order_of_first_sighting(node: Node) -> None:
    first, second, third = (process(CARD, pid, ticks=pid) for pid in (30, 20, 10))
    node.tick(first)
    node.tick(first, second)
    node.tick(second, third)
    body = node.request()
    assert [(one["pid"], one["ended"] is None) for one in body["sessions"]] == [
        (30, False),
        (20, True),
        (10, True),
    ]
    assert (body["next"], body["from_books"]) == (None, True)


def test_a_session_has_its_usage_and_null_for_unknown_values(node: Node) -> None:
    one = process(CARD, 7, memory=3 * GIB, sm=0.5, workload=POD)
    silent = process(OTHER, 8, memory=None, sm=None, workload=ALICE)
    for _ in range(4):
        node.tick(one, silent)
    busy, quiet = node.request()["sessions"]
    assert (busy["pod"], busy["user"], busy["owner_kind"]) == ("train-0", "", "pod")
    assert (busy["first_seen"], busy["last_seen"], busy["ended"]) == (UNIX + 1, UNIX + 4, None)
    assert (busy["peak_memory_bytes"], busy["sm_mean_ratio"]) == (3 * GIB, 0.5)
    assert (busy["memory_mean_bytes"], busy["active_seconds"]) == (3 * GIB, 3.0)
    assert busy["first_active"] == UNIX + 1
    assert busy["joules"] == busy["measured_joules"] + busy["apportioned_joules"] > 0
    assert busy["low_joules"] <= busy["joules"] <= busy["high_joules"]
    assert (quiet["user"], quiet["peak_memory_bytes"], quiet["sm_mean_ratio"]) == ("alice", None, None)


def test_on_a_gpu_without_energy_readings_a_session_has_null_energy(node: Node) -> None:
    mute = gpu(2)
    for _ in range(3):
        state = node.run.tick({CARD: 1000, mute: None}, (process(CARD, 7), process(mute, 8)), 1.0)
        node.state = node_state(snapshot(unix=node.run.clock.now_unix), state)
    body = {one["pid"]: one for one in node.request()["sessions"]}
    names = [name for name in body[8] if name.endswith("joules")]
    assert len(names) == 5
    assert {body[8][name] for name in names} == {None}
    assert body[7]["joules"] == 0


def test_a_cursor_with_times_beyond_the_ledger_finds_nothing(node: Node) -> None:
    node.tick(process(CARD, 7))
    body = node.request(f"cursor={encode_cursor([10**100, 10**100, 0, 0])}")
    assert (body["sessions"], body["from_books"]) == ([], True)


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
def test_filters_apply_to_open_and_ended_sessions(node: Node, query: str, pids: list[int]) -> None:
    all_processes = [
        process(CARD, 1, workload=POD),
        process(CARD, 2, workload=ALICE),
        process(OTHER, 3, workload=POD),
        process(OTHER, 4, workload=ALICE),
    ]
    node.tick(*all_processes)
    node.tick(*all_processes)
    node.tick(*all_processes[2:])
    assert node.pids(query) == pids


def test_a_session_that_ended_after_the_state_is_listed_once_from_the_ledger(
    node: Node,
) -> None:
    one = process(CARD, 7)
    node.tick(one)
    before = node.state
    node.tick()
    (body,) = list_sessions(before, node.ledger_access, parameters())["sessions"]
    assert (body["pid"], body["ended"], body["exit_seen"]) == (7, UNIX + 1, True)


def test_a_session_newer_than_the_state_is_listed_from_the_ledger(node: Node) -> None:
    node.tick(process(CARD, 7))
    before = node.state
    node.tick(process(CARD, 7), process(CARD, 8))
    assert [one["pid"] for one in list_sessions(before, node.ledger_access, parameters())["sessions"]] == [
        7,
        8,
    ]


def test_under_mig_a_session_names_gpu_and_instance() -> None:
    part = instance(CARD, 2)
    ledger = Ledger(LedgerSettings())
    state = ledger.post(snapshot(reading(CARD), reading(part, process(part, 5))))
    seen = node_state(snapshot(reading(CARD), unix=1_700_000_000.0), state)
    (body,) = list_sessions(seen, LedgerAccess(FakeClock()), parameters())["sessions"]
    assert (body["uuid"], body["gpu"], body["instance"]) == ("GPU-0", "0", "2_0")


def test_without_a_ledger_on_disk_only_running_sessions_are_listed() -> None:
    ledger = Ledger(LedgerSettings())
    ledger.post(snapshot(reading(CARD, process(CARD, 1), process(CARD, 2))))
    state = ledger.post(snapshot(reading(CARD, process(CARD, 2)), unix=1_700_000_001.0))
    body = list_sessions(
        node_state(snapshot(), state), LedgerAccess(FakeClock(1_700_000_001.0)), parameters()
    )
    assert ([one["pid"] for one in body["sessions"]], body["from_books"]) == ([2], False)


def test_an_unreadable_ledger_does_not_hide_running_sessions(node: Node, tmp_path: Path) -> None:
    node.tick(process(CARD, 7))
    gone = LedgerAccess(node.run.clock, lambda: History(tmp_path / "nowhere.db"))
    body = list_sessions(node.state, gone, parameters())
    assert ([one["pid"] for one in body["sessions"]], body["from_books"]) == ([7], False)


def test_now_in_a_simulated_ledger_is_its_end(node: Node) -> None:
    node.tick(process(CARD, 7))
    node.tick()
    long_after = FakeClock(UNIX + 10 * 86_400)
    ledger_access = LedgerAccess(long_after, lambda: History(node.run.store.file), simulated=True)
    body = list_sessions(node.state, ledger_access, parameters())
    assert ([one["pid"] for one in body["sessions"]], body["until"]) == ([7], UNIX + 2)
    ledger_access = LedgerAccess(long_after, lambda: History(node.run.store.file))
    assert list_sessions(node.state, ledger_access, parameters())["sessions"] == []


def test_now_in_a_simulated_ledger_without_readings_is_that_of_the_node(node: Node, tmp_path: Path) -> None:
    node.tick(process(CARD, 7))
    (tmp_path / "empty").mkdir()
    empty = Run(tmp_path / "empty")
    empty.store.close()
    ledger_access = LedgerAccess(FakeClock(UNIX), lambda: History(empty.store.file), simulated=True)
    body = list_sessions(node.state, ledger_access, parameters("since=3m"))
    assert ([one["pid"] for one in body["sessions"]], body["until"]) == ([7], node.state.unix)
    assert body["from_books"]


def test_paging_returns_each_session_once(node: Node) -> None:
    for pid in range(1, 24):
        node.tick(process(CARD, pid, ticks=pid), *([process(OTHER, 99)] if pid > 9 else []))
    whole = node.pids("limit=1000")
    assert paged(node, "limit=5") == whole
    assert len(whole) == 24


def paged(node: Node, query: str, *between: tuple[GpuProcess, ...]) -> list[int]:
    """The pids of all pages; between two pages passes one tick with the given processes."""
    found: list[int] = []
    ticks = list(between)
    body = node.request(query)
    while True:
        found += [one["pid"] for one in body["sessions"]]
        if body["next"] is None:
            return found
        if ticks:
            node.tick(*ticks.pop(0))
        body = node.request(f"{query}&cursor={body['next']}")


def test_sessions_that_end_between_pages_are_neither_lost_nor_repeated(node: Node) -> None:
    all_processes = [process(CARD, pid) for pid in range(1, 13)]
    node.tick(*all_processes)
    ticks = [tuple(all_processes[:3]), tuple(all_processes[9:]), ()]
    assert paged(node, "limit=3", *ticks) == list(range(1, 13))


def test_sessions_that_began_after_the_first_page_are_not_listed(node: Node) -> None:
    node.tick(*(process(CARD, pid) for pid in (1, 2, 3)))
    later = [process(CARD, pid) for pid in range(1, 9)]
    assert paged(node, "limit=2", tuple(later)) == [1, 2, 3]


def test_a_relative_time_is_resolved_with_the_first_page(node: Node) -> None:
    node.tick(process(CARD, 1, ticks=1), process(CARD, 2, ticks=2), process(CARD, 3, ticks=3))
    node.tick()
    first = node.request("since=10s&limit=1")
    node.tick(seconds=60.0)
    second = node.request(f"since=10s&limit=1&cursor={first['next']}")
    assert [one["pid"] for one in second["sessions"]] == [2]
    assert (second["since"], second["until"]) == (first["since"], first["until"])


@settings(max_examples=15)
@given(
    st.lists(st.sets(st.integers(1, 12), max_size=12), min_size=1, max_size=8),
    st.integers(1, 5),
    st.lists(st.sets(st.integers(1, 12), max_size=12), max_size=8),
)
def test_paging_returns_each_session_of_the_first_page_s_range_once(
    tmp_path_factory: pytest.TempPathFactory, before: list[set[int]], limit: int, between: list[set[int]]
) -> None:
    with opened(tmp_path_factory.mktemp("books")) as node:

        def processes_of(pids: set[int]) -> tuple[GpuProcess, ...]:
            return tuple(process(CARD, pid) for pid in sorted(pids))

        for pids in before:
            node.tick(*processes_of(pids))
        expected = [one["id"] for one in node.request("limit=1000")["sessions"]]
        found, body = [], node.request(f"limit={limit}")
        ticks = list(between)
        while True:
            found += [one["id"] for one in body["sessions"]]
            if body["next"] is None:
                break
            if ticks:
                node.tick(*processes_of(ticks.pop(0)))
            body = node.request(f"limit={limit}&cursor={body['next']}")
        assert found == expected


@pytest.mark.parametrize(
    "cursor",
    [
        "x",
        "%2B%2B",
        "W10",
        encode_cursor([1, 2, 3]),
        encode_cursor([1, 2, 3, 4, 5]),
        encode_cursor([1, 2, 3, 4.5]),
        encode_cursor([1, 2, 3, 1e300]),
        "é",
        "A" * 4000,
    ],
)
def test_a_forged_cursor_is_refused(node: Node, cursor: str) -> None:
    node.tick(process(CARD, 7))
    with pytest.raises(ApiError) as refused:
        node.request(f"cursor={cursor}")
    assert (refused.value.status, refused.value.parameter) == (400, "cursor")


ALL_PARAMETERS = f"since={UNIX}&until={UNIX + 50}&gpu=0&namespace=ml&pod=train-0&user=&state=open"


def test_a_cursor_alone_continues_with_the_parameters_of_the_first_request(node: Node) -> None:
    others = [process(CARD, 9, ticks=1), process(OTHER, 10, ticks=1, workload=POD)]
    expected = [process(CARD, pid, ticks=pid, workload=POD) for pid in range(1, 8)]
    node.tick(*expected, *others)
    found, body = [], node.request(f"{ALL_PARAMETERS}&limit=2")
    while True:
        found += [one["pid"] for one in body["sessions"]]
        if body["next"] is None:
            break
        body = node.request(f"cursor={body['next']}&limit=3")
    assert found == list(range(1, 8))
    assert (body["since"], body["until"]) == (UNIX, UNIX + 50)


@pytest.mark.parametrize("name", ["since", "until", "gpu", "namespace", "pod", "user", "state"])
def test_a_parameter_that_differs_from_the_cursor_is_refused_and_named(node: Node, name: str) -> None:
    node.tick(*(process(CARD, pid, workload=POD) for pid in (1, 2, 3)))
    other = {"since": "2h", "until": "1s", "gpu": "1", "state": "closed"}.get(name, "other")
    for first in ("limit=1", f"{ALL_PARAMETERS}&limit=1"):
        cursor = node.request(first)["next"]
        with pytest.raises(ApiError) as refused:
            node.request(f"cursor={cursor}&{name}={other}")
        assert (refused.value.status, refused.value.parameter) == (400, name)
        assert name in refused.value.message


def test_the_times_of_a_response_match_its_cursor(node: Node) -> None:
    node.tick(*(process(CARD, pid) for pid in (1, 2)))
    first = node.request("since=1h&limit=1")
    body = node.request(f"cursor={first['next']}&since={first['since']}&until={first['until']}")
    assert [one["pid"] for one in body["sessions"]] == [2]


@pytest.mark.parametrize(
    "first_parameters", [{"state": "shut"}, {"user": "\ud800"}, {"user": 1}, {"user": None}, [], 7]
)
def test_a_cursor_with_invalid_parameters_is_refused(node: Node, first_parameters: Any) -> None:
    node.tick(process(CARD, 7))
    with pytest.raises(ApiError) as refused:
        node.request(f"cursor={encode_cursor([1, 2, 3, 4], first_parameters or [[]])}")
    assert (refused.value.status, refused.value.parameter) == (400, "cursor")


@pytest.mark.parametrize("text", ["[NaN,1,2,3]", "[true,1,2,3]", '["1",1,2,3]', "{}", "[1e999,1,2,3]"])
def test_a_cursor_with_invalid_numbers_is_refused(node: Node, text: str) -> None:
    import base64

    node.tick(process(CARD, 7))
    word = base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")
    with pytest.raises(ApiError):
        node.request(f"cursor={word}")


@pytest.mark.parametrize("query", ["since=1h&until=2h", "since=now", "since=0h", "since=00d&until=0s"])
def test_an_empty_range_is_refused(node: Node, query: str) -> None:
    node.tick()
    with pytest.raises(ApiError, match="since is not before until") as refused:
        node.request(query)
    assert (refused.value.status, refused.value.parameter) == (400, "since")


def test_the_sessions_at_one_moment_can_be_requested(node: Node) -> None:
    for pid in (1, 2, 3):
        node.tick(process(CARD, pid, ticks=pid))
    assert node.pids(f"since={UNIX + 2}&until={UNIX + 2}") == [2]


def test_the_response_is_valid_json(node: Node) -> None:
    node.tick(process(CARD, 7))
    assert json.loads(json.dumps(node.request(), allow_nan=False)) == node.request()
