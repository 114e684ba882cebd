"""Leader election: one operator holds the Lease and renews it in time."""

from __future__ import annotations

import asyncio
from typing import Any

from gpuledger.kubernetes.object_client import ObjectClient, WriteUnreachable
from gpuledger.operator.leader_election import LeaderElection
from operator_api import MemoryApi
from running import PATIENCE

PATH = "/apis/coordination.k8s.io/v1/namespaces/n/leases/operator"
SECONDS = 30.0


class Clock:
    """A clock that advances by a second with every reading."""

    def __init__(self) -> None:
        self.now = 1000.0

    def unix(self) -> float:
        return 1_700_000_000.0 + self.now

    def elapsed(self) -> float:
        self.now += 1.0
        return self.now


class StoppedClock(Clock):
    """Stands still, so that a slow machine renews in time, too."""

    def elapsed(self) -> float:
        return self.now


def leader(server: MemoryApi, identity: str, clock: Clock | None = None) -> LeaderElection:
    return LeaderElection(ObjectClient(server), "n", "operator", identity, SECONDS, clock or Clock())


def spec(server: MemoryApi) -> dict[str, Any]:
    found: dict[str, Any] = server.objects[PATH]["spec"]
    return found


async def acquires(election: LeaderElection, attempts: int) -> bool:
    """Whether one of so many attempts acquires the Lease."""
    for _ in range(attempts):
        if await election.try_acquire():
            return True
    return False


def test_the_first_operator_becomes_the_leader() -> None:
    server = MemoryApi()
    first = leader(server, "first")
    asyncio.run(first.acquire())
    assert first.is_leader
    assert spec(server)["holderIdentity"] == "first"
    assert spec(server)["leaseDurationSeconds"] == 30


def test_the_second_operator_waits_while_the_first_renews() -> None:
    async def run() -> None:
        server = MemoryApi()
        first, second = leader(server, "first"), leader(server, "second")
        assert await acquires(first, 1)
        for _ in range(100):
            assert await acquires(first, 1)
            assert not await acquires(second, 1)
        assert second.holder == "first"

    asyncio.run(run())


def test_the_second_operator_takes_over_after_the_first_stops_renewing() -> None:
    async def run() -> None:
        server = MemoryApi()
        first, second = leader(server, "first"), leader(server, "second")
        assert await acquires(first, 1)
        assert not await acquires(second, 20)
        assert await acquires(second, 20)
        assert spec(server)["holderIdentity"] == "second"
        assert spec(server)["leaseTransitions"] == 1

    asyncio.run(run())


def test_the_clock_of_the_holder_does_not_matter() -> None:
    async def run() -> None:
        server = MemoryApi()
        first, second = leader(server, "first"), leader(server, "second")
        assert await acquires(first, 1)
        # According to the first one's clock, the Lease expired long ago.
        server.objects[PATH]["spec"]["renewTime"] = "2001-01-01T00:00:00.000000Z"
        assert not await acquires(second, 10)

    asyncio.run(run())


def test_a_leader_that_lost_the_lease_steps_down() -> None:
    async def run() -> None:
        server = MemoryApi()
        first, second = leader(server, "first"), leader(server, "second")
        assert await acquires(first, 1)
        assert await acquires(second, 60)
        assert not await acquires(first, 1)
        assert not first.is_leader

    asyncio.run(run())


def test_a_released_lease_is_acquired_at_once() -> None:
    async def run() -> None:
        server = MemoryApi()
        first, second = leader(server, "first"), leader(server, "second")
        assert await acquires(first, 1)
        assert not await acquires(second, 1)
        await first.release()
        assert not first.is_leader
        assert await acquires(second, 1)

    asyncio.run(run())


def test_a_lease_released_during_a_renewal_is_acquired_at_once() -> None:
    async def run() -> None:
        server = MemoryApi()
        first, second = leader(server, "first"), leader(server, "second")
        assert await acquires(first, 1)
        # A renewal was written, but the client did not wait for the response.
        server.put_object(PATH, server.objects[PATH])
        assert not await acquires(second, 1)
        await first.release()
        assert await acquires(second, 1)

    asyncio.run(run())


def test_the_lease_of_another_holder_is_not_released() -> None:
    async def run() -> None:
        server = MemoryApi()
        first, second = leader(server, "first"), leader(server, "second")
        assert await acquires(first, 1)
        assert await acquires(second, 40)
        await first.release()
        assert spec(server)["holderIdentity"] == "second"

    asyncio.run(run())


def test_of_two_concurrent_writes_one_is_refused() -> None:
    class Racing(MemoryApi):
        """A third client writes between the read and the write of the second one."""

        def _put(self, request: Any, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
            if body["spec"]["holderIdentity"] == "second":
                self.put_object(request.path, self.objects[request.path])
            return super()._put(request, body)

    async def run() -> None:
        server = Racing()
        first, second = leader(server, "first"), leader(server, "second")
        assert await acquires(first, 1)
        await first.release()
        assert not await acquires(second, 1)
        assert not second.is_leader

    asyncio.run(run())


def test_a_deleted_lease_is_created_again() -> None:
    async def run() -> None:
        server = MemoryApi()
        first = leader(server, "first")
        assert await acquires(first, 1)
        del server.objects[PATH]
        assert await acquires(first, 1)
        assert spec(server)["holderIdentity"] == "first"

    asyncio.run(run())


def test_a_leader_that_cannot_renew_steps_down_before_another_takes_over() -> None:
    class Away(MemoryApi):
        away = False

        async def send(self, request: Any) -> tuple[int, bytes]:
            if self.away:
                raise WriteUnreachable("gone")
            return await super().send(request)

    async def run() -> None:
        server, clock = Away(), Clock()
        # Attempts are a fifth of the duration apart; a short duration keeps the test fast.
        first = LeaderElection(ObjectClient(server), "n", "operator", "first", 0.5, clock)
        assert await acquires(first, 1)
        server.away = True
        await first.keep_renewing()
        assert not first.is_leader

    asyncio.run(run())


def test_a_leader_with_a_slow_start_steps_down_if_the_lease_has_expired() -> None:
    async def run() -> None:
        server, clock = MemoryApi(), Clock()
        first, second = leader(server, "first", clock), leader(server, "second")
        await first.acquire()
        # The API server was slow to return the CRDs.
        clock.now += SECONDS
        assert not await acquires(second, 1)
        assert await acquires(second, 40)
        await asyncio.wait_for(first.keep_renewing(), PATIENCE)
        assert not first.is_leader

    asyncio.run(run())


def test_a_leader_that_renews_in_time_continues() -> None:
    class Counting(MemoryApi):
        renewals = 0

        def _put(self, request: Any, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
            self.renewals += 1
            return super()._put(request, body)

    async def run() -> None:
        server = Counting()
        first = LeaderElection(ObjectClient(server), "n", "operator", "first", 0.25, StoppedClock())
        await first.acquire()
        keeping = asyncio.create_task(first.keep_renewing())
        while server.renewals < 6:
            await asyncio.wait((keeping,), timeout=0.01)
            assert not keeping.done()
        assert first.is_leader
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)

    asyncio.run(run())


def test_a_cancellation_during_a_renewal_ends_the_renewing() -> None:
    """`asyncio.wait_for` of Python 3.11 loses one that arrives together with the result."""

    async def run() -> None:
        class Cancelling(MemoryApi):
            def _put(self, request: Any, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
                keeping.cancel()
                return super()._put(request, body)

        first = LeaderElection(ObjectClient(Cancelling()), "n", "operator", "first", 0.25, StoppedClock())
        await first.acquire()
        keeping = asyncio.create_task(first.keep_renewing())
        await asyncio.wait((keeping,), timeout=PATIENCE)
        assert keeping.cancelled()

    asyncio.run(run())
