"""What is to be looked at, and when."""

from __future__ import annotations

import asyncio

from gpuledger.operator.reconcile import Due


def test_a_key_that_was_asked_for_often_comes_once() -> None:
    async def run() -> list[str]:
        due = Due()
        for _ in range(100):
            due.wake("a")
        due.wake("b", 0.001)
        return [await due.next(), await due.next()]

    assert asyncio.run(run()) == ["a", "b"]


def test_the_sooner_of_two_times_stands() -> None:
    async def run() -> list[str]:
        due = Due()
        due.wake("a", 3600.0)
        due.wake("b", 1800.0)
        due.wake("a", 0.0)
        # Later again: it stays as soon as it was.
        due.wake("a", 3600.0)
        return [await due.next()]

    assert asyncio.run(run()) == ["a"]


def test_who_waits_for_the_late_one_is_woken_by_a_sooner_one() -> None:
    async def run() -> str:
        due = Due()
        due.wake("late", 3600.0)
        waiting = asyncio.create_task(due.next())
        await asyncio.sleep(0)
        due.wake("soon")
        return await waiting

    assert asyncio.run(run()) == "soon"
