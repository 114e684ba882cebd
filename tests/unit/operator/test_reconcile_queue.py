"""The queue of resources that are due for reconciliation."""

from __future__ import annotations

import asyncio

from gpuledger.operator.reconcile import DelayQueue


def test_a_key_that_was_scheduled_often_is_returned_once() -> None:
    async def run() -> list[str]:
        due = DelayQueue()
        for _ in range(100):
            due.schedule("a")
        due.schedule("b", 0.001)
        return [await due.next_key(), await due.next_key()]

    assert asyncio.run(run()) == ["a", "b"]


def test_the_earlier_of_two_times_wins() -> None:
    async def run() -> list[str]:
        due = DelayQueue()
        due.schedule("a", 3600.0)
        due.schedule("b", 1800.0)
        due.schedule("a", 0.0)
        # A later time does not replace an earlier one.
        due.schedule("a", 3600.0)
        return [await due.next_key()]

    assert asyncio.run(run()) == ["a"]


def test_an_earlier_key_wakes_the_waiter() -> None:
    async def run() -> str:
        due = DelayQueue()
        due.schedule("late", 3600.0)
        waiting = asyncio.create_task(due.next_key())
        await asyncio.sleep(0)
        due.schedule("soon")
        return await waiting

    assert asyncio.run(run()) == "soon"
