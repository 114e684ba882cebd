"""Of several operators one acts: who holds the Lease, and renews it in time."""

from __future__ import annotations

import asyncio
from typing import Any

from gpuledger.kubernetes.writing import Api, Unreachable
from gpuledger.operator.leader import Leader
from operator_api import MemoryApi

PATH = "/apis/coordination.k8s.io/v1/namespaces/n/leases/operator"
SECONDS = 30.0


class Clock:
    """Time that passes when somebody looks: a second each time."""

    def __init__(self) -> None:
        self.now = 1000.0

    def unix(self) -> float:
        return 1_700_000_000.0 + self.now

    def elapsed(self) -> float:
        self.now += 1.0
        return self.now


def leader(server: MemoryApi, identity: str, clock: Clock | None = None) -> Leader:
    return Leader(Api(server), "n", "operator", identity, SECONDS, clock or Clock())


def spec(server: MemoryApi) -> dict[str, Any]:
    found: dict[str, Any] = server.objects[PATH]["spec"]
    return found


async def looks(one: Leader, number: int) -> bool:
    """Whether it acts after so many looks at the Lease."""
    for _ in range(number):
        if await one.look():
            return True
    return False


def test_the_first_one_acts() -> None:
    server = MemoryApi()
    first = leader(server, "first")
    asyncio.run(first.acquire())
    assert first.leads
    assert spec(server)["holderIdentity"] == "first"
    assert spec(server)["leaseDurationSeconds"] == 30


def test_the_second_one_waits_as_long_as_the_first_renews() -> None:
    async def run() -> None:
        server = MemoryApi()
        first, second = leader(server, "first"), leader(server, "second")
        assert await looks(first, 1)
        for _ in range(100):
            assert await looks(first, 1)
            assert not await looks(second, 1)
        assert second.holder == "first"

    asyncio.run(run())


def test_the_second_one_takes_over_when_the_first_renews_no_more() -> None:
    async def run() -> None:
        server = MemoryApi()
        first, second = leader(server, "first"), leader(server, "second")
        assert await looks(first, 1)
        assert not await looks(second, 20)
        assert await looks(second, 20)
        assert spec(server)["holderIdentity"] == "second"
        assert spec(server)["leaseTransitions"] == 1

    asyncio.run(run())


def test_the_clock_of_the_holder_need_not_be_right() -> None:
    async def run() -> None:
        server = MemoryApi()
        first, second = leader(server, "first"), leader(server, "second")
        assert await looks(first, 1)
        # By what the first has written it ended long ago.
        server.objects[PATH]["spec"]["renewTime"] = "2001-01-01T00:00:00.000000Z"
        assert not await looks(second, 10)

    asyncio.run(run())


def test_who_has_lost_it_does_not_act() -> None:
    async def run() -> None:
        server = MemoryApi()
        first, second = leader(server, "first"), leader(server, "second")
        assert await looks(first, 1)
        assert await looks(second, 60)
        assert not await looks(first, 1)
        assert not first.leads

    asyncio.run(run())


def test_what_is_let_go_is_taken_at_once() -> None:
    async def run() -> None:
        server = MemoryApi()
        first, second = leader(server, "first"), leader(server, "second")
        assert await looks(first, 1)
        assert not await looks(second, 1)
        await first.release()
        assert not first.leads
        assert await looks(second, 1)

    asyncio.run(run())


def test_what_is_let_go_while_a_renewal_is_on_its_way_is_taken_at_once() -> None:
    async def run() -> None:
        server = MemoryApi()
        first, second = leader(server, "first"), leader(server, "second")
        assert await looks(first, 1)
        # Written, but its answer was not waited for.
        server.keep(PATH, server.objects[PATH])
        assert not await looks(second, 1)
        await first.release()
        assert await looks(second, 1)

    asyncio.run(run())


def test_what_another_has_taken_meanwhile_is_not_let_go() -> None:
    async def run() -> None:
        server = MemoryApi()
        first, second = leader(server, "first"), leader(server, "second")
        assert await looks(first, 1)
        assert await looks(second, 40)
        await first.release()
        assert spec(server)["holderIdentity"] == "second"

    asyncio.run(run())


def test_of_two_at_the_same_moment_one_is_refused() -> None:
    class Racing(MemoryApi):
        """Between another's look and its write, a third one writes."""

        def _put(self, question: Any, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
            if body["spec"]["holderIdentity"] == "second":
                self.keep(question.path, self.objects[question.path])
            return super()._put(question, body)

    async def run() -> None:
        server = Racing()
        first, second = leader(server, "first"), leader(server, "second")
        assert await looks(first, 1)
        await first.release()
        assert not await looks(second, 1)
        assert not second.leads

    asyncio.run(run())


def test_a_lease_that_was_deleted_is_made_anew() -> None:
    async def run() -> None:
        server = MemoryApi()
        first = leader(server, "first")
        assert await looks(first, 1)
        del server.objects[PATH]
        assert await looks(first, 1)
        assert spec(server)["holderIdentity"] == "first"

    asyncio.run(run())


def test_who_cannot_renew_gives_up_before_another_may_act() -> None:
    class Away(MemoryApi):
        away = False

        async def send(self, question: Any) -> tuple[int, bytes]:
            if self.away:
                raise Unreachable("gone")
            return await super().send(question)

    async def run() -> None:
        server, clock = Away(), Clock()
        # Looks are a fifth of the duration apart: here that is next to nothing of the machine's time.
        first = Leader(Api(server), "n", "operator", "first", 0.5, clock)
        assert await looks(first, 1)
        server.away = True
        await first.keep()
        assert not first.leads

    asyncio.run(run())


def test_who_took_long_to_begin_does_not_act_on_a_lease_that_has_run_out_meanwhile() -> None:
    async def run() -> None:
        server, clock = MemoryApi(), Clock()
        first, second = leader(server, "first", clock), leader(server, "second")
        await first.acquire()
        # The API server was asked for definitions, and slow.
        clock.now += SECONDS
        assert not await looks(second, 1)
        assert await looks(second, 40)
        await asyncio.wait_for(first.keep(), 5)
        assert not first.leads

    asyncio.run(run())


def test_who_renews_in_time_goes_on() -> None:
    class Counting(MemoryApi):
        renewals = 0

        def _put(self, question: Any, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
            self.renewals += 1
            return super()._put(question, body)

    class Stopped(Clock):
        """However slow this machine is, it is in time."""

        def elapsed(self) -> float:
            return self.now

    async def run() -> None:
        server = Counting()
        first = Leader(Api(server), "n", "operator", "first", 0.25, Stopped())
        await first.acquire()
        keeping = asyncio.create_task(first.keep())
        while server.renewals < 6:
            await asyncio.wait((keeping,), timeout=0.01)
            assert not keeping.done()
        assert first.leads
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)

    asyncio.run(run())
