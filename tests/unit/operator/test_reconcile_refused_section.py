"""A section that only the API server refuses costs no other section."""

from __future__ import annotations

import asyncio
import json
from collections import Counter

import pytest

from operator_api import MemoryApi
from unit.operator.bench import EXPORTER, PATH, Bench, Statuses, status_of
from unit.operator.support import Json, target

AGENT = EXPORTER.replace("daemonsets", "statefulsets").replace("exporter", "agent")
ACCOUNT = "/api/v1/namespaces/n/serviceaccounts/gpumonitor-gpus-agent"
# What the operator accepts and the API server refuses.
REFUSED: dict[str, Json] = {
    "an unknown resource": {"resources": {"limits": {"memroy": "1Gi"}}},
    "a mount without a volume": {"extraVolumeMounts": [{"name": "none", "mountPath": "/none"}]},
    "two volumes of one name": {
        "extraVolumes": [{"name": "a", "emptyDir": {}}, {"name": "a", "emptyDir": {}}]
    },
}
TARGETS: Json = {"targets": [target()]}


def find_error(body: Json) -> str:
    """Why the API server refuses an object, as far as these tests need it."""
    if body["kind"] not in ("DaemonSet", "StatefulSet"):
        return ""
    pods = body["spec"]["template"]["spec"]
    claims = body["spec"].get("volumeClaimTemplates") or ()
    volumes = Counter(one["name"] for one in pods["volumes"])
    names = {*volumes, *(one["metadata"]["name"] for one in claims)}
    for container in pods["containers"]:
        for resource in container["resources"].get("limits") or ():
            if resource not in ("cpu", "memory"):
                return f'limits[{resource}]: Invalid value: "{resource}"'
        for mount in container["volumeMounts"]:
            if mount["name"] not in names:
                return f'volumeMounts.name: Not found: "{mount["name"]}"'
    twice = [name for name, count in volumes.items() if count > 1]
    return f'volumes.name: Duplicate value: "{twice[0]}"' if twice else ""


def sections(exporter: Json, agent: Json) -> Json:
    return {"exporter": exporter, "agent": {**TARGETS, **agent}}


def degraded(bench: Bench) -> Json:
    (found,) = (one for one in status_of(bench)["conditions"] if one["type"] == "Degraded")
    return dict(found)


def workloads(server: MemoryApi) -> set[str]:
    return {EXPORTER, AGENT} & server.objects.keys()


async def reconciled(*specs: Json, server: MemoryApi | None = None) -> Bench:
    """A reconciler that was given these specs one after the other."""
    bench = Bench(server or Statuses(find_error))
    for spec in specs:
        bench.change(spec=spec)
        await bench.reconcile()
    return bench


def applied_spec(bench: Bench) -> Json:
    return dict(json.loads(status_of(bench)["appliedSpec"]))


@pytest.mark.parametrize("case", REFUSED)
def test_a_refused_section_is_omitted_at_the_first_apply(case: str) -> None:
    async def work() -> None:
        bench = await reconciled(sections(REFUSED[case], {"replicas": 2}))
        assert workloads(bench.server) == {AGENT}
        assert bench.server.objects[AGENT]["spec"]["replicas"] == 2
        assert degraded(bench)["reason"] == "Rejected"
        message = degraded(bench)["message"]
        assert message.startswith(
            "spec.exporter: DaemonSet n/gpumonitor-gpus-exporter is refused by the API server: 422 "
        )
        assert message.endswith("; spec.exporter is not applied")
        assert applied_spec(bench) == sections({"enabled": False}, {"replicas": 2})

        bench = await reconciled(sections({"port": 9500}, REFUSED[case]))
        assert workloads(bench.server) == {EXPORTER}
        assert ACCOUNT not in bench.server.objects
        assert degraded(bench)["message"].startswith("spec.agent: StatefulSet n/gpumonitor-gpus-agent is ref")
        assert degraded(bench)["message"].endswith("; spec.agent is not applied")

    asyncio.run(work())


@pytest.mark.parametrize("case", REFUSED)
def test_a_refused_section_is_kept_as_it_was_applied_last(case: str) -> None:
    async def work() -> None:
        first = sections({"port": 9500}, {"port": 9501})
        bench = await reconciled(first)
        exporter = bench.server.objects[EXPORTER]
        bench.change(spec=sections({"port": 9600, **REFUSED[case]}, {"replicas": 3}))
        await bench.reconcile()
        assert bench.server.objects[EXPORTER] == exporter
        assert bench.server.objects[AGENT]["spec"]["replicas"] == 3
        assert degraded(bench)["message"].endswith("; spec.exporter is kept as it was applied last")
        assert applied_spec(bench) == sections({"port": 9500}, {"replicas": 3})

        bench = await reconciled(first)
        agent = bench.server.objects[AGENT]
        bench.change(spec=sections({"port": 9600}, {"replicas": 3, **REFUSED[case]}))
        await bench.reconcile()
        assert bench.server.objects[AGENT] == agent
        assert "9600" in json.dumps(bench.server.objects[EXPORTER])
        assert degraded(bench)["message"].endswith("; spec.agent is kept as it was applied last")
        assert applied_spec(bench) == sections({"port": 9600}, {"port": 9501})

    asyncio.run(work())


@pytest.mark.parametrize("case", REFUSED)
def test_two_refused_sections_are_both_named_and_nothing_is_changed(case: str) -> None:
    async def work() -> None:
        for before in ((), (sections({"port": 9500}, {}),)):
            bench = await reconciled(*before)
            made = {path for path in bench.server.objects if "/events" not in path} - {PATH}
            bench.change(spec=sections(REFUSED[case], {"replicas": 3, **REFUSED[case]}))
            bench.writes()
            await bench.reconcile()
            assert {path for path in bench.server.objects if "/events" not in path} - {PATH} == made
            message = degraded(bench)["message"]
            assert message.startswith("spec.exporter: DaemonSet n/")
            assert "; spec.agent: StatefulSet n/" in message
            assert ("appliedSpec" in status_of(bench)) == bool(before)

    asyncio.run(work())


def test_the_accepted_section_is_kept_by_a_new_operator_and_restored() -> None:
    async def work() -> None:
        spec = sections(REFUSED["an unknown resource"], {"replicas": 2})
        first = await reconciled(sections({"port": 9500}, {}), spec)
        exporter, message = first.server.objects[EXPORTER], degraded(first)["message"]
        after = Bench(first.server)
        await after.list_objects()
        del first.server.objects[AGENT]
        after.owned.apply_listing("StatefulSet", [], 10_000)
        after.monitors.record_monitor(first.server.objects[PATH])
        await after.reconcile()
        assert first.server.objects[EXPORTER]["spec"] == exporter["spec"]
        assert first.server.objects[AGENT]["spec"]["replicas"] == 2
        assert degraded(after)["message"] == message
        # Later reconciliations change nothing.
        after.writes()
        assert [await after.reconcile() for _ in range(2)] == [2.0, 4.0]
        assert after.writes() == []

    asyncio.run(work())


def test_a_corrected_section_is_applied() -> None:
    async def work() -> None:
        good = sections({"port": 9500}, {})
        bench = await reconciled(sections(REFUSED["an unknown resource"], {}), good)
        assert workloads(bench.server) == {EXPORTER, AGENT}
        assert degraded(bench)["reason"] == "AsWanted"
        assert applied_spec(bench) == good

    asyncio.run(work())


def test_a_section_that_the_server_accepts_later_is_applied_without_a_change_of_the_resource() -> None:
    async def work() -> None:
        policy = ["no exporters here"]

        def deny(body: Json) -> str:
            return policy[0] if policy and body["kind"] == "DaemonSet" else ""

        bench = await reconciled(sections({}, {}), server=Statuses(deny))
        assert workloads(bench.server) == {AGENT}
        policy.clear()
        await bench.reconcile()
        assert workloads(bench.server) == {EXPORTER, AGENT}
        assert degraded(bench)["reason"] == "AsWanted"

    asyncio.run(work())


def test_a_refused_exporter_costs_no_agent_beside_a_wrong_target() -> None:
    async def work() -> None:
        spec = {
            **sections(REFUSED["an unknown resource"], {}),
            "agent": {"targets": [target(), "no mapping"]},
        }
        bench = await reconciled(spec)
        assert workloads(bench.server) == {AGENT}
        message = degraded(bench)["message"]
        assert message.count("spec.agent.targets[1]") == 1
        assert message.count("spec.exporter is not applied") == 1

    asyncio.run(work())


def test_a_refused_exporter_and_a_wrong_agent_change_nothing() -> None:
    async def work() -> None:
        bench = await reconciled(sections({"port": 9500}, {}))
        before = {path: bench.server.objects[path] for path in (EXPORTER, AGENT)}
        bench.change(spec=sections(REFUSED["an unknown resource"], {"replicas": "many"}))
        await bench.reconcile()
        assert {path: bench.server.objects[path] for path in before} == before
        assert degraded(bench)["reason"] == "Rejected"
        for part in ("spec.exporter: DaemonSet", "spec.agent.replicas: ", "spec.agent is kept as it was"):
            assert part in degraded(bench)["message"]

    asyncio.run(work())


def test_an_agent_that_would_scrape_the_exporters_of_others_is_not_deployed() -> None:
    async def work() -> None:
        bench = await reconciled({"exporter": REFUSED["an unknown resource"]})
        assert workloads(bench.server) == set()
        assert degraded(bench)["message"].startswith("spec.exporter: DaemonSet n/")

    asyncio.run(work())


def test_a_section_that_a_new_policy_refuses_as_it_runs_costs_no_other() -> None:
    """A new operator sends what runs as a dry run; then the exporters are neither changed nor deleted."""

    async def work() -> None:
        policies: list[str] = []

        def deny(body: Json) -> str:
            return "".join(policies) if body["kind"] == "DaemonSet" else ""

        first = await reconciled(sections({"port": 9500}, {}), server=Statuses(deny))
        exporters = {path for path in first.server.objects if path.endswith("exporter")}
        exporter = first.server.objects[EXPORTER]
        policies.append("no exporters here")
        for replicas in (2, 3):
            after = Bench(first.server)
            await after.list_objects()
            after.change(spec=sections({"port": 9500}, {"replicas": replicas}))
            await after.reconcile()
            assert exporters <= after.server.objects.keys()
            assert after.server.objects[EXPORTER] == exporter
            assert after.server.objects[AGENT]["spec"]["replicas"] == replicas
            message = degraded(after)["message"]
            assert message.startswith("spec.exporter: DaemonSet n/gpumonitor-gpus-exporter is refused")
            assert message.endswith("; spec.exporter is kept as it was applied last")
            assert applied_spec(after) == sections({"port": 9500}, {"replicas": replicas})

    asyncio.run(work())
