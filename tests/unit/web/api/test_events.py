"""/api/v1/events: what each client receives, and when."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from threading import Thread
from typing import TypeVar

from builders import FakeClock, gpu, node_state, process, reading, snapshot
from gpuledger.model.node_state import Health, NodeState
from gpuledger.model.session import LedgerState, SessionRow
from gpuledger.web.api.events import EventHub, EventStream
from running import PATIENCE

T = TypeVar("T")
RETRY = b"retry: 2000\n\n"


def tick(number: int, *, sessions: int = 0, closed: int = 0, readings: bool = True) -> NodeState:
    rows = tuple(SessionRow(n, process(gpu()), 0.0, 0.0) for n in range(sessions))
    ledger = LedgerState(sessions=rows, sessions_closed={"GPU-0": closed})
    health = Health("ok", healthy=True, attempted=True, ticks=number)
    found = node_state(snapshot(reading(gpu())), ledger, health)
    return found if readings else replace(found, snapshot=None)


class EventClient:
    """A client that reads all pending data when it is woken, unless it is a `slow_reader`."""

    def __init__(self, events: EventHub, limit: int | None = None, *, slow_reader: bool = False) -> None:
        self.received: list[bytes] = []
        self.ended = False
        self.slow_reader = slow_reader
        self.stream = EventStream(events, limit, events.generation)
        self.stream.begin(self.wake)
        self.wake()

    def wake(self) -> None:
        while not self.slow_reader and not self.ended:
            data = self.stream.take()
            if data is None:
                self.ended = True
                self.stream.end()
            elif data:
                self.received.append(data)
            else:
                return

    @property
    def events(self) -> list[tuple[str, dict[str, float]]]:
        """The name and the data of each event."""
        found = []
        for block in b"".join(self.received).decode().split("\n\n"):
            lines = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
            if "event" in lines:
                found.append((lines["event"], json.loads(lines["data"])))
        return found

    @property
    def ticks(self) -> list[float]:
        return [data["tick"] for name, data in self.events if name == "tick"]


def run(scenario: Callable[[EventHub], Awaitable[T]], quiet: float = 60.0) -> T:
    async def within() -> T:
        return await asyncio.wait_for(scenario(EventHub(FakeClock(), quiet)), PATIENCE)

    return asyncio.run(within())


async def run_loop() -> None:
    """Let the loop run its pending callbacks."""
    for _ in range(3):
        await asyncio.sleep(0)


def test_a_stream_starts_with_the_retry_time_and_the_newest_state() -> None:
    async def scenario(events: EventHub) -> list[bytes]:
        events.publish(tick(7))
        return EventClient(events).received

    assert run(scenario) == [
        RETRY,
        b"id: 7\nevent: tick\n"
        b'data: {"tick":7,"unix":1700000000.0,"now":1700000000.0,"healthy":true,"readings":true}\n\n',
    ]


def test_before_the_first_state_only_the_retry_time_is_sent() -> None:
    async def scenario(events: EventHub) -> list[bytes]:
        return EventClient(events).received

    assert run(scenario) == [RETRY]


def test_each_state_is_one_tick_for_every_client() -> None:
    async def scenario(events: EventHub) -> list[list[float]]:
        clients = [EventClient(events) for _ in range(3)]
        for number in (1, 2, 3):
            events.publish(tick(number))
            await run_loop()
        return [client.ticks for client in clients]

    assert run(scenario) == [[1, 2, 3]] * 3


def test_states_are_published_from_another_thread() -> None:
    async def scenario(events: EventHub) -> list[float]:
        client = EventClient(events)
        thread = Thread(target=lambda: events.publish(tick(1)))
        thread.start()
        while not client.ticks:
            await asyncio.sleep(0)
        thread.join()
        return client.ticks

    assert run(scenario) == [1]


def test_a_state_without_readings_is_marked() -> None:
    async def scenario(events: EventHub) -> list[tuple[str, dict[str, float]]]:
        events.publish(tick(1, readings=False))
        return EventClient(events).events

    ((_, data),) = run(scenario)
    assert (data["readings"], data["healthy"]) == (False, True)


def test_a_slow_client_skips_ticks_and_gets_all_session_counts() -> None:
    async def scenario(events: EventHub) -> tuple[EventClient, EventClient]:
        events.publish(tick(1, sessions=2))
        slow, quick = EventClient(events), EventClient(events)
        slow.slow_reader = True
        for state in (tick(2, sessions=3), tick(3, sessions=3, closed=1), tick(4, sessions=1, closed=3)):
            events.publish(state)
            await run_loop()
        slow.slow_reader = False
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


def test_sessions_before_the_start_of_a_stream_are_not_sent() -> None:
    async def scenario(events: EventHub) -> list[str]:
        events.publish(tick(1, sessions=5, closed=9))
        client = EventClient(events)
        events.publish(tick(2, sessions=5, closed=9))
        await run_loop()
        return [name for name, _ in client.events]

    assert run(scenario) == ["tick", "tick"]


def test_a_stream_ends_after_the_requested_number_of_events() -> None:
    async def scenario(events: EventHub) -> tuple[list[str], bool, int]:
        client = EventClient(events, limit=2)
        # The second event is the session event of the first state; the second state is not needed.
        events.publish(tick(1, sessions=1))
        await run_loop()
        events.publish(tick(2, sessions=1))
        await run_loop()
        return [name for name, _ in client.events], client.ended, len(events)

    assert run(scenario) == (["tick", "session"], True, 0)


def test_a_limit_applies_within_one_batch_of_events() -> None:
    async def scenario(events: EventHub) -> tuple[list[str], bool]:
        client = EventClient(events, limit=1)
        events.publish(tick(1, sessions=1))
        await run_loop()
        return [name for name, _ in client.events], client.ended

    assert run(scenario) == (["tick"], True)


def test_a_comment_keeps_an_idle_connection_open() -> None:
    async def scenario(events: EventHub) -> list[bytes]:
        client = EventClient(events)
        while len(client.received) < 3:
            await asyncio.sleep(0.001)
        return client.received[:3]

    assert run(scenario, quiet=0.01) == [RETRY, b": still here\n\n", b": still here\n\n"]


def test_comments_are_not_queued_for_a_slow_client() -> None:
    async def scenario(events: EventHub) -> list[bytes]:
        slow, quick = EventClient(events), EventClient(events)
        slow.slow_reader = True
        while len(quick.received) < 5:
            await asyncio.sleep(0.001)
        slow.slow_reader = False
        slow.wake()
        return slow.received

    assert run(scenario, quiet=0.005) == [RETRY, b": still here\n\n"]


def test_a_failing_client_does_not_affect_the_others(caplog) -> None:
    async def scenario(events: EventHub) -> tuple[list[float], int]:
        broken, client = EventClient(events), EventClient(events)

        def fail() -> None:
            raise RuntimeError("a connection has a bug")

        broken.stream.begin(fail)
        for number in (1, 2):
            events.publish(tick(number))
            await run_loop()
        return client.ticks, len(events)

    assert run(scenario) == ([1, 2], 1)
    assert "a connection has a bug" in caplog.text


def test_nothing_is_sent_after_the_end_of_a_stream() -> None:
    async def scenario(events: EventHub) -> tuple[int, list[bytes]]:
        client = EventClient(events)
        client.stream.end()
        client.stream.end()
        events.publish(tick(1))
        await run_loop()
        return len(events), client.received

    assert run(scenario) == (0, [RETRY])


def test_publishing_after_the_end_of_the_loop_works() -> None:
    events = EventHub(FakeClock())

    async def scenario() -> None:
        EventClient(events)

    asyncio.run(scenario())
    events.publish(tick(1))
    assert events.latest.number == 1


def test_closing_all_streams_also_ends_streams_of_earlier_admitted_clients() -> None:
    async def scenario(events: EventHub) -> tuple[list[bool], int, list[bytes]]:
        clients = [EventClient(events), EventClient(events)]
        generation = events.generation
        events.publish(tick(1))
        thread = Thread(target=events.close_all)
        thread.start()
        thread.join()
        await run_loop()
        # A client that was admitted before the reload and opens its stream after it.
        late = EventStream(events, None, generation)
        late.begin(lambda: None)
        data = late.take()
        late.end()
        new = EventClient(events)
        return [*(client.ended for client in clients), data is None], len(events), new.received[:1]

    assert run(scenario) == ([True] * 3, 1, [RETRY])


def test_a_stream_of_ticks_only_has_no_numbers_of_sessions() -> None:
    events = EventHub(FakeClock())
    everything, ticks_only = (
        EventStream(events, None, events.generation, ticks_only=one) for one in (False, True)
    )
    for stream in (everything, ticks_only):
        stream.take()
    events.publish(tick(1, sessions=3, closed=2))
    assert b"event: session" in (everything.take() or b"")
    said = ticks_only.take() or b""
    assert b"event: tick" in said
    assert b"session" not in said
