"""One look at a resource: what is done, in which order, and what is told of it."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from gpuledger.host.clock import SystemClock
from gpuledger.kubernetes.writing import Api, Question
from gpuledger.operator.apply import Applier
from gpuledger.operator.counts import Counts
from gpuledger.operator.events import Events, Teller
from gpuledger.operator.facts import Facts
from gpuledger.operator.kinds import KINDS, as_owner
from gpuledger.operator.monitors import Monitors, Render
from gpuledger.operator.objects_listing import list_made
from gpuledger.operator.owned import Owned
from gpuledger.operator.reconcile import FINALIZER, Due, Reconciler
from gpuledger.operator.render.objects import Rendered, render
from gpuledger.operator.spec import GpuMonitor
from operator_api import MemoryApi
from unit.operator.support import Json, gpu_monitor

PATH = "/apis/gpuledger.dev/v1alpha1/gpumonitors/gpus"
EXPORTER = "/apis/apps/v1/namespaces/n/daemonsets/gpumonitor-gpus-exporter"
OLDER = PATH.replace("gpus", "older")
ALONE: Json = {"agent": {"enabled": False}}


def facts_of(body: Json) -> Facts:
    return Facts(as_owner(body), "n", default_remote_write=({"url": "http://store/"},))


class Bench:
    """A reconciler and the server that it works on; numbers in a status are written once an hour."""

    def __init__(self, server: MemoryApi | None = None) -> None:
        self.server = server or MemoryApi()
        self.counts = counts = Counts()
        self.api = api = Api(self.server)
        clock = SystemClock()
        self.owned = Owned()
        self.render: Render = lambda body, asked: render(asked, facts_of(body))
        self.monitors = Monitors(lambda body, asked: self.render(body, asked), 600.0, lambda _: None)
        applier = Applier(api, self.owned, ["n"], counts)
        events = Events(api, "me", clock, counts)
        teller = Teller(api, self.monitors, self.owned, events, clock, counts, 3600.0)
        self.reconciler = Reconciler(api, self.monitors, self.owned, applier, events, teller, Due(), counts)

    def change(self, **content: Any) -> None:
        """Somebody writes the resource."""
        there = self.server.objects.get(PATH) or gpu_monitor(ALONE)
        metadata = {**there["metadata"], **content.pop("metadata", {})}
        generation = there["metadata"].get("generation", 0) + (
            "spec" in content or "generation" not in metadata
        )
        self.server.keep(PATH, {**there, **content, "metadata": {**metadata, "generation": generation}})
        self.monitors.take(self.server.objects[PATH])

    async def look(self) -> float | None:
        (monitor,) = self.monitors
        return await self.reconciler.look(monitor)

    async def list_made(self) -> None:
        """As a term begins."""
        for kind in KINDS:
            made = await list_made(self.api, kind, ["n"])
            self.owned.settle(kind.kind, made.bodies, made.version)

    def writes(self) -> list[str]:
        found = [one for one in self.server.writes if "/events" not in one]
        self.server.asked.clear()
        return found

    def exporters(self, ready: int) -> None:
        """A controller tells of them."""
        numbers = dict.fromkeys(("desiredNumberScheduled", "updatedNumberScheduled"), 8)
        there = self.server.objects[EXPORTER]
        status = {"observedGeneration": 1, "numberReady": ready, **numbers}
        self.server.keep(EXPORTER, {**there, "status": status})
        self.owned.take(self.server.objects[EXPORTER])


class Statuses(MemoryApi):
    """A server that has the status within the resource, as a subresource writes it."""

    def _patch(self, question: Question, body: Json) -> tuple[int, Json]:
        if not question.path.endswith("/status"):
            return super()._patch(question, body)
        path = question.path.removesuffix("/status")
        return super()._patch(
            Question("PATCH", path, question.query, question.body, question.content_type), body
        )


def run(work: Callable[[Bench], Coroutine[Any, Any, None]]) -> None:
    async def within() -> None:
        await work(Bench(Statuses()))

    asyncio.run(within())


def status_of(bench: Bench) -> Json:
    found: Json = bench.server.objects[PATH].get("status") or {}
    return found


def test_the_finalizer_comes_first_and_the_status_last() -> None:
    async def work(bench: Bench) -> None:
        bench.change()
        await bench.look()
        first, *made, last = bench.writes()
        assert first == f"PATCH {PATH}"
        assert last == f"PATCH {PATH}/status"
        assert f"PATCH {EXPORTER}" in made
        assert bench.server.objects[PATH]["metadata"]["finalizers"] == [FINALIZER]

    run(work)


def test_a_second_look_asks_nothing() -> None:
    async def work(bench: Bench) -> None:
        bench.change()
        await bench.look()
        bench.writes()
        await bench.look()
        assert bench.server.asked == []

    run(work)


def test_a_deleted_one_is_let_go_when_nothing_is_left_of_it() -> None:
    async def work(bench: Bench) -> None:
        bench.change()
        await bench.look()
        bench.writes()
        bench.change(metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})
        await bench.look()
        *deleted, last = bench.writes()
        assert {one.split()[0] for one in deleted} == {"DELETE"}
        assert last == f"PATCH {PATH}"
        assert [path for path in bench.server.objects if "/events/" not in path] == [PATH]
        assert bench.server.objects[PATH]["metadata"]["finalizers"] == []

    run(work)


def test_the_finalizers_of_others_are_kept() -> None:
    async def work(bench: Bench) -> None:
        bench.change(metadata={"finalizers": ["theirs"]})
        await bench.look()
        assert bench.server.objects[PATH]["metadata"]["finalizers"] == ["theirs", FINALIZER]
        bench.change(metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})
        await bench.look()
        assert bench.server.objects[PATH]["metadata"]["finalizers"] == ["theirs"]

    run(work)


def test_numbers_wait_and_turns_do_not() -> None:
    async def work(bench: Bench) -> None:
        bench.change()
        await bench.look()
        bench.exporters(1)
        bench.writes()
        # It is available now: a turn.
        await bench.look()
        assert bench.writes() == [f"PATCH {PATH}/status"]
        assert status_of(bench)["exportersReady"] == 1
        bench.exporters(2)
        after = await bench.look()
        assert bench.writes() == []
        assert after is not None, "it is looked at again when numbers may be written"
        # All are ready: a turn again.
        bench.exporters(8)
        await bench.look()
        assert bench.writes() == [f"PATCH {PATH}/status"]
        assert status_of(bench)["exportersReady"] == 8

    run(work)


def test_a_spec_that_cannot_be_leaves_what_is_there() -> None:
    async def work(bench: Bench) -> None:
        bench.change()
        await bench.look()
        made = {path for path in bench.server.objects if path != PATH and "/events" not in path}
        bench.writes()
        bench.change(spec={"exporter": {"port": "many"}})
        await bench.look()
        assert bench.writes() == [f"PATCH {PATH}/status"]
        assert made <= bench.server.objects.keys()
        degraded = next(one for one in status_of(bench)["conditions"] if one["type"] == "Degraded")
        assert (degraded["status"], degraded["reason"]) == ("True", "InvalidSpec")
        assert "spec.exporter.port" in degraded["message"]

    run(work)


REFUSED: dict[str, Json] = {
    "by the schema": {**ALONE, "exporter": {"port": "many"}},
    "by the API server": {**ALONE, "exporter": {"image": "refused"}},
}


class Choosy(Statuses):
    """Takes no DaemonSet with the image `refused`."""

    def _patch(self, question: Question, body: Json) -> tuple[int, Json]:
        if question.path.startswith(EXPORTER) and '"refused"' in json.dumps(body):
            return 422, {"reason": "Invalid", "message": "no such image"}
        return super()._patch(question, body)


@pytest.mark.parametrize("spec", REFUSED.values(), ids=REFUSED)
def test_what_runs_on_is_kept_as_it_was_when_the_spec_is_refused(spec: Json) -> None:
    async def work() -> None:
        bench = Bench(Choosy())
        bench.change()
        await bench.look()
        was = bench.server.objects[EXPORTER]
        bench.change(spec=spec)
        await bench.look()
        assert bench.server.objects[EXPORTER] == was
        template = {**was["spec"]["template"], "metadata": {"labels": {}}}
        changed = {**was, "spec": {**was["spec"], "template": template}}
        bench.server.keep(EXPORTER, changed)
        bench.owned.take(bench.server.objects[EXPORTER])
        await bench.look()
        assert bench.server.objects[EXPORTER]["spec"] == was["spec"]
        degraded = next(one for one in status_of(bench)["conditions"] if one["type"] == "Degraded")
        assert degraded["status"] == "True"

    asyncio.run(work())


@pytest.mark.parametrize("spec", REFUSED.values(), ids=REFUSED)
def test_a_look_at_a_refused_spec_counts_once(spec: Json) -> None:
    async def work() -> None:
        bench = Bench(Choosy())
        bench.change(spec=spec)
        await bench.look()
        assert bench.counts.reconciles == {"refused": 1}

    asyncio.run(work())


def test_nothing_is_made_for_a_resource_that_is_gone_already() -> None:
    """It was deleted before it had a finalizer to wait for us; the watch has not told yet."""

    async def work(bench: Bench) -> None:
        bench.change()
        del bench.server.objects[PATH]
        await bench.look()
        assert bench.writes() == [f"PATCH {PATH}"]
        assert bench.server.objects == {}

    run(work)


@pytest.mark.parametrize("spec", REFUSED.values(), ids=REFUSED)
def test_an_operator_that_begins_keeps_what_another_has_applied(spec: Json) -> None:
    """It knows what that was from the resource's status."""

    async def work() -> None:
        server = Choosy()
        bench = Bench(server)
        bench.change()
        await bench.look()
        was = server.objects[EXPORTER]
        bench.change(spec=spec)
        await bench.look()
        del server.objects[EXPORTER]
        after = Bench(server)
        after.monitors.take(server.objects[PATH])
        await after.look()
        assert server.objects[EXPORTER]["spec"] == was["spec"]
        assert json.loads(status_of(after)["appliedSpec"]) == ALONE

    asyncio.run(work())


@pytest.mark.parametrize("text", ["", "{", '{"exporter": {"port": "many"}}', "[]", "3"], ids=repr)
def test_a_status_that_tells_nothing_of_use_is_as_none(text: str) -> None:
    async def work(bench: Bench) -> None:
        bench.change(spec={"exporter": {"port": "many"}}, status={"appliedSpec": text})
        await bench.look()
        assert bench.writes() == [f"PATCH {PATH}/status"]
        assert "appliedSpec" not in status_of(bench)

    run(work)


def test_a_specification_of_great_length_is_not_kept_twice() -> None:
    async def work(bench: Bench) -> None:
        note = {"example.com/long": "x" * 300_000}
        bench.change(spec={**ALONE, "exporter": {"podAnnotations": note}})
        await bench.look()
        assert "appliedSpec" not in status_of(bench)

    run(work)


@pytest.mark.parametrize("anew", [False, True], ids=["the same operator", "another one"])
def test_exporters_leave_the_nodes_that_an_older_resource_takes(anew: bool) -> None:
    async def work(bench: Bench) -> None:
        bench.change(
            metadata={"creationTimestamp": "2026-01-02"}, spec={"exporter": {"nodeSelector": {"a": "b"}}}
        )
        await bench.look()
        agent = EXPORTER.replace("daemonsets", "statefulsets").replace("exporter", "agent")
        assert {EXPORTER, agent} <= bench.server.objects.keys()
        bench.server.keep(OLDER, gpu_monitor(ALONE, "older"))
        bench.server.objects[OLDER]["metadata"] |= {"creationTimestamp": "2026-01-01", "generation": 1}
        after = Bench(bench.server) if anew else bench
        for path in (OLDER, PATH):
            after.monitors.take(bench.server.objects[path])
        for path in (PATH, OLDER, PATH):
            monitor = after.monitors.get(bench.server.objects[path]["metadata"]["uid"])
            assert monitor is not None
            await after.list_made()
            await after.reconciler.look(monitor)
        assert agent in bench.server.objects
        assert EXPORTER not in bench.server.objects
        assert EXPORTER.replace("gpus", "older") in bench.server.objects
        degraded = next(one for one in status_of(bench)["conditions"] if one["type"] == "Degraded")
        assert degraded["reason"] == "Overlap"

    run(work)


def test_the_loop_goes_on_while_a_large_resource_is_rendered() -> None:
    async def work(bench: Bench) -> None:
        begun, others_went_on = asyncio.Event(), threading.Event()
        loop, quick = asyncio.get_running_loop(), bench.render

        def slow(body: Json, asked: GpuMonitor) -> Rendered:
            loop.call_soon_threadsafe(begun.set)
            assert others_went_on.wait(60)
            return quick(body, asked)

        bench.render = slow
        bench.change()
        looking = asyncio.create_task(bench.look())
        await asyncio.wait_for(begun.wait(), 60)
        # Meanwhile it is changed, and then deleted.
        bench.change(spec={**ALONE, "exporter": {"image": "other"}})
        bench.monitors.forget(bench.server.objects[PATH])
        others_went_on.set()
        await looking
        assert bench.writes() == []

    run(work)


def test_what_may_pass_is_told_when_it_has_not_passed_three_times() -> None:
    class Away(Statuses):
        away = True

        async def send(self, question: Question) -> tuple[int, bytes]:
            if self.away and "/daemonsets/" in question.path:
                return 503, b'{"reason": "ServiceUnavailable"}'
            return await super().send(question)

    async def work() -> None:
        server = Away()
        bench = Bench(server)
        bench.change()
        assert [await bench.look() for _ in range(2)] == [1.0, 2.0]
        assert status_of(bench) == {}
        assert await bench.look() == 4.0
        assert {one["reason"] for one in status_of(bench)["conditions"]} >= {"ApplyFailed"}
        server.away = False
        await bench.look()
        assert "lastError" not in status_of(bench)

    asyncio.run(work())
