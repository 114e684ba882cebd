"""Discovery under changes: delays, API upgrades, errors, readiness and shutdown."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuledger.agent.agent import Agent
from gpuledger.agent.config.agent_config import AgentConfig
from gpuledger.agent.discovery.discovery import Discovery, StatefulSetMember
from gpuledger.agent.discovery.selection import POD_MONITOR, SERVICE_MONITOR, EndpointSettings, Selection
from gpuledger.agent.relabel.rules import RelabelRules, hashmod
from gpuledger.agent.scrape.loop import ReceiverRouting
from gpuledger.agent.scrape.series_labels import WriteRelabeling
from gpuledger.agent.scrape.settings import ScrapeSettings, Target
from gpuledger.agent.status_page import agent_routes
from gpuledger.host.clock import SystemClock
from gpuledger.http.routes import READY, Request, Response
from gpuledger.kubernetes.access import ApiServerAccess
from gpuledger.kubernetes.objects import LabelSelector, NamespaceSelector
from running import PATIENCE
from scripted_api import Json, ScriptedApi, scripted_api
from scripted_target import Answer, scripted

PODS = "/api/v1/pods"
SETS = "/apis/apps/v1/namespaces/own/statefulsets"
SLICES = "/apis/discovery.k8s.io/{}/endpointslices"
COALESCE_SECONDS = 0.25


def pod(number: int) -> Json:
    containers = [{"name": "c", "image": "i", "ports": [{"name": "web", "containerPort": 9400}]}]
    return {
        "metadata": {"namespace": "a", "name": f"p{number}"},
        "spec": {"containers": containers},
        "status": {"phase": "Running", "podIP": f"10.0.0.{number}"},
    }


def stateful_set(replicas: int, ready: int) -> Json:
    status = {"observedGeneration": 1, "readyReplicas": ready}
    metadata = {"namespace": "own", "name": "agents", "generation": 1}
    return {"metadata": metadata, "spec": {"replicas": replicas}, "status": status}


def selection(kind: str = POD_MONITOR) -> Selection:
    endpoint = EndpointSettings("web", "http", "/metrics", {}, ScrapeSettings())
    return Selection("t", kind, NamespaceSelector(), LabelSelector(), (endpoint,))


class CountingLoop(asyncio.SelectorEventLoop):
    """Event loop that records delayed calls and their delays."""

    def __init__(self) -> None:
        super().__init__()
        self.later: list[tuple[str, float]] = []

    def call_later(  # type: ignore[override]  (callback and arguments are untyped here)
        self, delay: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        self.later.append((getattr(callback, "__qualname__", ""), delay))
        return super().call_later(delay, callback, *args, context=context)


class Found:
    """A discovery and its current targets."""

    def __init__(self, discovery: Discovery) -> None:
        self.discovery = discovery
        self._changed = asyncio.Event()

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not condition():
                await self._changed.wait()
                self._changed.clear()

    def changed(self) -> None:
        self._changed.set()

    def hosts(self) -> list[str]:
        return sorted(target.url.split("/")[2] for target in self.discovery.targets)


def run_discovery(
    api: ScriptedApi, then: Callable[[Found], Awaitable[object]], *selections: Selection, **more: Any
) -> CountingLoop:
    """Run discovery of the selections, then the coroutine function `then`, and stop."""

    async def discover() -> None:
        found = Found(Discovery(ApiServerAccess(api.url), SystemClock(), **more))
        found.discovery.set_selections(selections)
        found.discovery.start(found.changed)
        try:
            await then(found)
        finally:
            found.discovery.stop()

    with asyncio.Runner(loop_factory=CountingLoop) as runner:
        runner.run(discover())
        loop = runner.get_loop()
        assert isinstance(loop, CountingLoop)
        return loop


def test_a_change_becomes_a_target_after_only_the_coalescing_delay() -> None:
    with scripted_api({PODS: [pod(0)]}) as api:

        async def burst(found: Found) -> None:
            await found.until(lambda: found.hosts() == ["10.0.0.0:9400"])
            before = len(loops(asyncio.get_running_loop()))
            api.apply_changes(PODS, *(("ADDED", pod(number)) for number in range(1, 200)))
            await found.until(lambda: len(found.hosts()) == 200)
            # A burst is processed as a whole, not pod by pod.
            assert len(loops(asyncio.get_running_loop())) - before < 20

        loop = run_discovery(api, burst, selection())
    assert {delay for _, delay in loops(loop)} == {COALESCE_SECONDS}


def loops(loop: asyncio.AbstractEventLoop) -> list[tuple[str, float]]:
    """Return the delayed calls of discovery."""
    assert isinstance(loop, CountingLoop)
    return [one for one in loop.later if one[0].startswith("Discovery.")]


@pytest.mark.parametrize(("old", "new"), [("v1", "v1beta1"), ("v1beta1", "v1")])
def test_after_an_upgrade_the_other_api_version_is_used(old: str, new: str) -> None:
    service = {"metadata": {"namespace": "a", "name": "s"}, "spec": {"ports": [{"name": "web", "port": 80}]}}

    def parts(ip: str) -> list[Json]:
        metadata = {"namespace": "a", "name": "s-1", "labels": {"kubernetes.io/service-name": "s"}}
        ports = [{"name": "web", "port": 9400}]
        return [
            {
                "metadata": metadata,
                "addressType": "IPv4",
                "ports": ports,
                "endpoints": [{"addresses": [ip]}],
            }
        ]

    with scripted_api({"/api/v1/services": [service], SLICES.format(old): parts("10.0.0.1")}) as api:

        async def upgrade(found: Found) -> None:
            await found.until(lambda: found.hosts() == ["10.0.0.1:9400"])
            api.responses[SLICES.format(new)] = parts("10.0.0.2")
            api.refuse(SLICES.format(old), 404)
            await found.until(lambda: found.hosts() == ["10.0.0.2:9400"])

        run_discovery(api, upgrade, selection(SERVICE_MONITOR))


def test_a_failing_list_is_reported_from_the_start() -> None:
    with scripted_api({PODS: 500}) as api:

        async def fail(found: Found) -> None:
            await found.until(lambda: found.discovery.reports[0].error.startswith("500 from"))

        run_discovery(api, fail, selection())


class Broken(RelabelRules):
    """Rules with a defect."""

    def apply(self, labels: dict[str, str]) -> bool:
        raise RuntimeError("a defect")


def test_a_defect_in_one_selection_does_not_affect_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with scripted_api({PODS: [pod(1)]}) as api:

        async def find(found: Found) -> None:
            await found.until(lambda: found.hosts() == ["10.0.0.1:9400"])
            api.apply_changes(PODS, ("ADDED", pod(2)))
            await found.until(lambda: found.hosts() == ["10.0.0.1:9400", "10.0.0.2:9400"])
            assert "internal error" in found.discovery.reports[0].error

        run_discovery(api, find, replace(selection(), name="broken", rules=Broken(())), selection())
    assert "discovery of the targets of broken failed" in caplog.text


def ready(agent: Agent) -> tuple[int, str]:
    answer = agent_routes(agent.view).respond(Request("GET", READY))
    assert isinstance(answer, Response)
    return answer.status, answer.body.decode()


def agent_of(api: ScriptedApi, folder: Path, *targets: Target, ordinal: int = 0, **more: Any) -> Agent:
    discovery = Discovery(
        ApiServerAccess(api.url), SystemClock(), scale=StatefulSetMember("own", "agents", ordinal), **more
    )
    routing = ReceiverRouting(WriteRelabeling())
    config = AgentConfig(targets=[*targets], receivers=(), routing=routing, selections=[selection()])
    return Agent(config, folder, SystemClock(), discovery)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.01)


def is_ready(agent: Agent) -> bool:
    return ready(agent)[0] == 200


@asynccontextmanager
async def started(agent: Agent) -> AsyncIterator[Agent]:
    agent.start()
    try:
        yield agent
    finally:
        await agent.stop(0.0)


def test_an_agent_is_ready_when_its_shard_is_known_and_discovery_has_run(tmp_path: Path) -> None:
    async def begin() -> None:
        async with started(agent_of(api, tmp_path)) as agent:
            await until(lambda: agent.view().discovery.reports[0].passed["port"])
            status, body = ready(agent)
            assert status == 503
            assert "the number of shards is unknown" in body
            api.apply_changes(SETS, ("ADDED", stateful_set(1, 0)))
            await until(lambda: is_ready(agent))
            assert len(agent.view().loops) == 1

    with scripted_api({PODS: [pod(1)], SETS: []}) as api:
        asyncio.run(begin())


def test_an_agent_without_permission_to_list_still_becomes_ready(
    tmp_path: Path,
) -> None:
    async def begin() -> None:
        async with started(agent_of(api, tmp_path)) as agent:
            await until(lambda: is_ready(agent))

    with scripted_api({PODS: 403, SETS: [stateful_set(1, 1)]}) as api:
        asyncio.run(begin())


def test_a_stopping_shard_scrapes_until_the_others_can_have_taken_over(
    tmp_path: Path,
) -> None:
    async def end(port: int, scrapes: Callable[[], int]) -> None:
        own = Target("s", f"http://127.0.0.1:{port}/metrics", (), ScrapeSettings(0.2, 0.2))
        ordinal = hashmod(f"127.0.0.1:{port}", 2)
        agent = agent_of(api, tmp_path, own, ordinal=ordinal, arrival_seconds=60.0)
        agent.start()
        await until(scrapes)
        ending = asyncio.create_task(agent.stop(0.0))
        before = scrapes()
        await until(lambda: scrapes() >= before + 3)
        ending.cancel()
        await asyncio.gather(ending, return_exceptions=True)

    with (
        scripted_api({PODS: [], SETS: [stateful_set(2, 2)]}) as api,
        scripted(lambda _: Answer("a 1\n")) as target,
    ):
        asyncio.run(end(target.port, lambda: sum(target.requests.values())))


def test_a_single_agent_stops_at_once(tmp_path: Path) -> None:
    async def end() -> None:
        async with asyncio.timeout(PATIENCE), started(agent_of(api, tmp_path, arrival_seconds=1e9)) as agent:
            await until(lambda: is_ready(agent))

    with scripted_api({PODS: [], SETS: [stateful_set(1, 1)]}) as api:
        asyncio.run(end())
