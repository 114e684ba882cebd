"""/api/v1/events: what each client hears, and when."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from threading import Thread
from typing import TypeVar

from builders import FakeClock, gpu, page, process, reading, snapshot
from gpuledger.model.node_state import Health, NodeState
from gpuledger.model.session import LedgerState, SessionRow
from gpuledger.web.api.events import Events, Listener

T = TypeVar("T")
RETRY = b"retry: 2000\n\n"


def tick(number: int, *, sessions: int = 0, closed: int = 0, readings: bool = True) -> NodeState:
    rows = tuple(SessionRow(n, process(gpu()), 0.0, 0.0) for n in range(sessions))
    ledger = LedgerState(sessions=rows, sessions_closed={"GPU-0": closed})
    health = Health("ok", healthy=True, tried=True, ticks=number)
    found = page(snapshot(reading(gpu())), ledger, health)
    return found if readings else replace(found, snapshot=None)


class Ear:
    """A client that takes what there is whenever it is woken; `deaf` is one that does not get to it."""

    def __init__(self, events: Events, limit: int | None = None, *, deaf: bool = False) -> None:
        self.heard: list[bytes] = []
        self.over = False
        self.deaf = deaf
        self.stream: Listener = events.listen(limit)
        self.stream.begin(self.wake)
        self.wake()

    def wake(self) -> None:
        while not self.deaf and not self.over:
            told = self.stream.take()
            if told is None:
                self.over = True
                self.stream.end()
            elif told:
                self.heard.append(told)
            else:
                return

    @property
    def events(self) -> list[tuple[str, dict[str, float]]]:
        """Name and data of each."""
        found = []
        for block in b"".join(self.heard).decode().split("\n\n"):
            lines = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
            if "event" in lines:
                found.append((lines["event"], json.loads(lines["data"])))
        return found

    @property
    def ticks(self) -> list[float]:
        return [data["tick"] for name, data in self.events if name == "tick"]


def run(scenario: Callable[[Events], Awaitable[T]], quiet: float = 60.0) -> T:
    async def within() -> T:
        return await asyncio.wait_for(scenario(Events(FakeClock(), quiet)), 30)

    return asyncio.run(within())


async def turn() -> None:
    """Let the loop do what it was told to."""
    for _ in range(3):
        await asyncio.sleep(0)


def test_a_client_is_told_when_to_come_back_and_then_of_the_newest_page() -> None:
    async def scenario(events: Events) -> list[bytes]:
        events.publish(tick(7))
        return Ear(events).heard

    assert run(scenario) == [
        RETRY,
        b"id: 7\nevent: tick\n"
        b'data: {"tick":7,"unix":1700000000.0,"now":1700000000.0,"healthy":true,"readings":true}\n\n',
    ]


def test_before_the_first_page_nothing_is_said_but_when_to_come_back() -> None:
    async def scenario(events: Events) -> list[bytes]:
        return Ear(events).heard

    assert run(scenario) == [RETRY]


def test_each_page_is_one_tick_for_everybody() -> None:
    async def scenario(events: Events) -> list[list[float]]:
        ears = [Ear(events) for _ in range(3)]
        for number in (1, 2, 3):
            events.publish(tick(number))
            await turn()
        return [ear.ticks for ear in ears]

    assert run(scenario) == [[1, 2, 3]] * 3


def test_pages_come_from_another_thread() -> None:
    async def scenario(events: Events) -> list[float]:
        ear = Ear(events)
        thread = Thread(target=lambda: events.publish(tick(1)))
        thread.start()
        while not ear.ticks:
            await asyncio.sleep(0)
        thread.join()
        return ear.ticks

    assert run(scenario) == [1]


def test_a_page_without_readings_says_so() -> None:
    async def scenario(events: Events) -> list[tuple[str, dict[str, float]]]:
        events.publish(tick(1, readings=False))
        return Ear(events).events

    ((_, data),) = run(scenario)
    assert (data["readings"], data["healthy"]) == (False, True)


def test_who_is_slow_skips_ticks_and_hears_of_all_sessions() -> None:
    async def scenario(events: Events) -> tuple[Ear, Ear]:
        events.publish(tick(1, sessions=2))
        slow, quick = Ear(events), Ear(events)
        slow.deaf = True
        for page_ in (tick(2, sessions=3), tick(3, sessions=3, closed=1), tick(4, sessions=1, closed=3)):
            events.publish(page_)
            await turn()
        slow.deaf = False
        slow.wake()
        return slow, quick

    slow, quick = run(scenario)
    assert (slow.ticks, quick.ticks) == ([1, 4], [1, 2, 3, 4])
    sessions = {"opened": 2, "closed": 3}
    assert [data for name, data in slow.events if name == "session"] == [sessions]
    assert [data for name, data in quick.events if name == "session"] == [
        {"opened": 1, "closed": 0},
        {"opened": 1, "closed": 1},
        {"opened": 0, "closed": 2},
    ]


def test_sessions_from_before_a_client_came_are_not_news_to_it() -> None:
    async def scenario(events: Events) -> list[str]:
        events.publish(tick(1, sessions=5, closed=9))
        ear = Ear(events)
        events.publish(tick(2, sessions=5, closed=9))
        await turn()
        return [name for name, _ in ear.events]

    assert run(scenario) == ["tick", "tick"]


def test_it_ends_after_as_many_events_as_were_asked_for() -> None:
    async def scenario(events: Events) -> tuple[list[str], bool, int]:
        ear = Ear(events, limit=2)
        # The second event is the sessions' of the first Page: the second Page is not waited for.
        events.publish(tick(1, sessions=1))
        await turn()
        events.publish(tick(2, sessions=1))
        await turn()
        return [name for name, _ in ear.events], ear.over, len(events)

    assert run(scenario) == (["tick", "session"], True, 0)


def test_a_limit_within_what_is_told_at_once_cuts_there() -> None:
    async def scenario(events: Events) -> tuple[list[str], bool]:
        ear = Ear(events, limit=1)
        events.publish(tick(1, sessions=1))
        await turn()
        return [name for name, _ in ear.events], ear.over

    assert run(scenario) == (["tick"], True)


def test_when_nothing_is_said_for_long_a_comment_keeps_the_connection() -> None:
    async def scenario(events: Events) -> list[bytes]:
        ear = Ear(events)
        while len(ear.heard) < 3:
            await asyncio.sleep(0.001)
        return ear.heard[:3]

    assert run(scenario, quiet=0.01) == [RETRY, b": still here\n\n", b": still here\n\n"]


def test_comments_are_not_queued_for_who_is_slow() -> None:
    async def scenario(events: Events) -> list[bytes]:
        slow, quick = Ear(events), Ear(events)
        slow.deaf = True
        while len(quick.heard) < 5:
            await asyncio.sleep(0.001)
        slow.deaf = False
        slow.wake()
        return slow.heard

    assert run(scenario, quiet=0.005) == [RETRY, b": still here\n\n"]


def test_a_client_that_fails_costs_the_others_nothing(caplog) -> None:
    async def scenario(events: Events) -> tuple[list[float], int]:
        broken, ear = Ear(events), Ear(events)

        def fail() -> None:
            raise RuntimeError("a connection has a bug")

        broken.stream.begin(fail)
        for number in (1, 2):
            events.publish(tick(number))
            await turn()
        return ear.ticks, len(events)

    assert run(scenario) == ([1, 2], 1)
    assert "a connection has a bug" in caplog.text


def test_nobody_is_told_anything_after_the_end() -> None:
    async def scenario(events: Events) -> tuple[int, list[bytes]]:
        ear = Ear(events)
        ear.stream.end()
        ear.stream.end()
        events.publish(tick(1))
        await turn()
        return len(events), ear.heard

    assert run(scenario) == (0, [RETRY])


def test_pages_after_the_end_of_the_loop_are_no_trouble() -> None:
    events = Events(FakeClock())

    async def scenario() -> None:
        Ear(events)

    asyncio.run(scenario())
    events.publish(tick(1))
    assert events.news.number == 1


def test_all_streams_end_at_once_and_those_let_in_before_hear_nothing_later() -> None:
    async def scenario(events: Events) -> tuple[list[bool], int, list[bytes]]:
        ears = [Ear(events), Ear(events)]
        era = events.era
        events.publish(tick(1))
        thread = Thread(target=events.end_all)
        thread.start()
        thread.join()
        await turn()
        # Let in before, begins to listen after: between the two was the reload.
        late = events.listen(None, era)
        late.begin(lambda: None)
        told = late.take()
        late.end()
        new = Ear(events)
        return [*(ear.over for ear in ears), told is None], len(events), new.heard[:1]

    assert run(scenario) == ([True] * 3, 1, [RETRY])
