"""One reconciliation of a resource: the writes, their order, and the reported status."""

from __future__ import annotations

import asyncio
import json
import threading
from dataclasses import replace
from typing import Any

import pytest
import yaml

from gpuledger.app.operator_checks import check_agent
from gpuledger.kubernetes.object_client import ApiReply, ApiRequest
from gpuledger.operator.reconcile import FINALIZER
from gpuledger.operator.render.objects import Rendered, render_objects
from gpuledger.operator.spec import GpuMonitor
from running import PATIENCE
from unit.operator.bench import ALONE, EXPORTER, OLDER, PATH, Bench, Statuses, context_of, run, status_of
from unit.operator.support import Json, gpu_monitor


def test_the_finalizer_is_written_first_and_the_status_last() -> None:
    async def work(bench: Bench) -> None:
        bench.change()
        await bench.reconcile()
        first, *made, last = bench.writes()
        assert first == f"PATCH {PATH}"
        assert last == f"PATCH {PATH}/status"
        assert f"PATCH {EXPORTER}" in made
        assert bench.server.objects[PATH]["metadata"]["finalizers"] == [FINALIZER]

    run(work)


def test_a_second_reconciliation_sends_no_request() -> None:
    async def work(bench: Bench) -> None:
        bench.change()
        await bench.reconcile()
        bench.writes()
        await bench.reconcile()
        assert bench.server.requests == []

    run(work)


def test_the_finalizer_is_removed_after_all_objects_are_deleted() -> None:
    async def work(bench: Bench) -> None:
        bench.change()
        await bench.reconcile()
        bench.writes()
        bench.change(metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})
        await bench.reconcile()
        *deleted, last = bench.writes()
        assert {one.split()[0] for one in deleted} == {"DELETE"}
        assert last == f"PATCH {PATH}"
        assert [path for path in bench.server.objects if "/events/" not in path] == [PATH]
        assert bench.server.objects[PATH]["metadata"]["finalizers"] == []

    run(work)


def test_finalizers_of_others_are_kept() -> None:
    async def work(bench: Bench) -> None:
        bench.change(metadata={"finalizers": ["theirs"]})
        await bench.reconcile()
        assert bench.server.objects[PATH]["metadata"]["finalizers"] == ["theirs", FINALIZER]
        bench.change(metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})
        await bench.reconcile()
        assert bench.server.objects[PATH]["metadata"]["finalizers"] == ["theirs"]

    run(work)


def test_changed_numbers_are_delayed_and_changed_conditions_are_not() -> None:
    async def work(bench: Bench) -> None:
        bench.change()
        await bench.reconcile()
        bench.exporters(1)
        bench.writes()
        # A condition changes: it is now available.
        await bench.reconcile()
        assert bench.writes() == [f"PATCH {PATH}/status"]
        assert status_of(bench)["exportersReady"] == 1
        bench.exporters(2)
        after = await bench.reconcile()
        assert bench.writes() == []
        assert after is not None, "the next reconciliation writes the numbers"
        # A condition changes: all are ready.
        bench.exporters(8)
        await bench.reconcile()
        assert bench.writes() == [f"PATCH {PATH}/status"]
        assert status_of(bench)["exportersReady"] == 8

    run(work)


def test_an_invalid_spec_keeps_existing_objects() -> None:
    async def work(bench: Bench) -> None:
        bench.change()
        await bench.reconcile()
        made = {path for path in bench.server.objects if path != PATH and "/events" not in path}
        bench.writes()
        bench.change(spec={"exporter": {"port": "many"}, **ALONE})
        await bench.reconcile()
        assert bench.writes() == [f"PATCH {PATH}/status"]
        assert made <= bench.server.objects.keys()
        degraded = next(one for one in status_of(bench)["conditions"] if one["type"] == "Degraded")
        assert (degraded["status"], degraded["reason"]) == ("True", "InvalidSpec")
        assert "spec.exporter.port" in degraded["message"]

    run(work)


def test_bad_targets_are_named_in_the_status_and_the_others_are_scraped() -> None:
    def static(name: str, *endpoints: Json, **more: Any) -> Json:
        return {"targetName": name, "type": "StaticEndpoints", "endpoints": list(endpoints), **more}

    good = [static(f"good{number}", {"address": f"good:{number}"}) for number in range(1, 21)]
    rule = {"action": "hashmod", "source_labels": ["a"], "target_label": "b"}
    bad = [
        static("scheme", {"address": "http://bad:1"}),
        static("empty"),
        static("timeout", {"address": "bad:1", "interval": "10s", "timeout": "30ms"}),
        static("modulus", {"address": "bad:1"}, relabelConfigs=[rule]),
        {"targetName": "operator", "type": "PodMonitor", "selector": {"matchLabels": 5}},
    ]

    async def work(bench: Bench) -> None:
        bench.render = lambda body, monitor: render_objects(
            monitor, replace(context_of(body), check_agent=check_agent)
        )
        listed = [*good[:10], *bad, *good[10:]]
        bench.change(spec={"exporter": {"enabled": False}, "agent": {"targets": listed}})
        await bench.reconcile()
        config = bench.server.objects["/api/v1/namespaces/n/configmaps/gpumonitor-gpus-agent"]
        written = yaml.safe_load(config["data"]["agent.yaml"])["features"]["openAgent"]["targets"]
        assert written == good
        status = status_of(bench)
        degraded = next(one for one in status["conditions"] if one["type"] == "Degraded")
        assert (degraded["status"], degraded["reason"]) == ("True", "TargetsInvalid")
        paths = [line.partition(": ")[0] for line in degraded["message"].split("; spec.")]
        assert len(paths) == 5
        assert all(f"agent.targets[{index}]." in degraded["message"] for index in range(10, 15))
        assert "appliedSpec" in status
        assert status["lastError"].startswith("spec.agent.targets[14].selector.matchLabels: ")

        # Without them nothing is wrong.
        bench.change(spec={"exporter": {"enabled": False}, "agent": {"targets": good}})
        await bench.reconcile()
        status = status_of(bench)
        degraded = next(one for one in status["conditions"] if one["type"] == "Degraded")
        assert (degraded["status"], degraded["reason"]) == ("False", "AsWanted")
        assert "lastError" not in status

    run(work)


def test_the_status_says_why_pods_are_not_created() -> None:
    def failed(number: int, message: str) -> Json:
        return {
            "kind": "Event",
            "metadata": {"name": f"e{number}", "namespace": "n"},
            "reason": "FailedCreate",
            "message": f'Error creating: pods "gpumonitor-gpus-exporter-x{number}" is forbidden: {message}',
            "lastTimestamp": f"2026-01-01T00:00:0{number}Z",
        }

    async def work(bench: Bench) -> None:
        bench.change()
        await bench.reconcile()
        events = "/api/v1/namespaces/n/events"
        bench.server.put_object(f"{events}/e1", failed(1, "exceeded quota: few"))
        violation = 'violates PodSecurity "baseline:latest"'
        bench.server.put_object(f"{events}/e2", failed(2, violation))
        bench.exporters(ready=0, created=0)
        assert await bench.reconcile() == 10.0
        (query,) = (one.query for one in bench.server.requests if one.path == events)
        uid = bench.server.objects[EXPORTER]["metadata"]["uid"]
        assert query == {"fieldSelector": f"involvedObject.uid={uid},reason=FailedCreate"}
        reason = (
            "the pods of DaemonSet gpumonitor-gpus-exporter are not created: "
            f"Error creating: pods are forbidden: {violation}"
        )
        status = status_of(bench)
        found = {one["type"]: one for one in status["conditions"]}
        assert (found["Degraded"]["reason"], found["Degraded"]["message"]) == ("PodsNotCreated", reason)
        assert found["Available"]["message"] == f"0 of 8 exporters are ready; {reason}"
        assert status["lastError"] == reason

        bench.exporters(ready=8, created=8)
        await bench.reconcile()
        found = {one["type"]: one for one in status_of(bench)["conditions"]}
        assert found["Degraded"]["reason"] == "AsWanted"

    run(work)


REFUSED: dict[str, Json] = {
    "by the schema": {**ALONE, "exporter": {"port": "many"}},
    "by the API server": {**ALONE, "exporter": {"image": "refused"}},
}


class Choosy(Statuses):
    """A server that refuses a DaemonSet with the image `refused`."""

    def _patch(self, request: ApiRequest, body: Json) -> tuple[int, Json]:
        if request.path.startswith(EXPORTER) and '"refused"' in json.dumps(body):
            return 422, {"reason": "Invalid", "message": "no such image"}
        return super()._patch(request, body)


@pytest.mark.parametrize("spec", REFUSED.values(), ids=REFUSED)
def test_running_objects_are_restored_while_the_spec_is_refused(spec: Json) -> None:
    async def work() -> None:
        bench = Bench(Choosy())
        bench.change()
        await bench.reconcile()
        was = bench.server.objects[EXPORTER]
        bench.change(spec=spec)
        await bench.reconcile()
        assert bench.server.objects[EXPORTER] == was
        template = {**was["spec"]["template"], "metadata": {"labels": {}}}
        changed = {**was, "spec": {**was["spec"], "template": template}}
        bench.server.put_object(EXPORTER, changed)
        bench.owned.record_object(bench.server.objects[EXPORTER])
        await bench.reconcile()
        assert bench.server.objects[EXPORTER]["spec"] == was["spec"]
        degraded = next(one for one in status_of(bench)["conditions"] if one["type"] == "Degraded")
        assert degraded["status"] == "True"

    asyncio.run(work())


@pytest.mark.parametrize("spec", REFUSED.values(), ids=REFUSED)
def test_a_reconciliation_of_a_refused_spec_counts_once(spec: Json) -> None:
    async def work() -> None:
        bench = Bench(Choosy())
        bench.change(spec=spec)
        await bench.reconcile()
        assert bench.counts.reconciles == {"refused": 1}

    asyncio.run(work())


def test_no_object_is_created_for_a_deleted_resource() -> None:
    """It was deleted before it had a finalizer; the watch has not reported the deletion yet."""

    async def work(bench: Bench) -> None:
        bench.change()
        del bench.server.objects[PATH]
        await bench.reconcile()
        assert bench.writes() == [f"PATCH {PATH}"]
        assert bench.server.objects == {}

    run(work)


@pytest.mark.parametrize("spec", REFUSED.values(), ids=REFUSED)
def test_a_new_operator_restores_the_applied_spec_of_its_predecessor(spec: Json) -> None:
    """It reads the spec from the status of the resource."""

    async def work() -> None:
        server = Choosy()
        bench = Bench(server)
        bench.change()
        await bench.reconcile()
        was = server.objects[EXPORTER]
        bench.change(spec=spec)
        await bench.reconcile()
        del server.objects[EXPORTER]
        after = Bench(server)
        after.monitors.record_monitor(server.objects[PATH])
        await after.reconcile()
        assert server.objects[EXPORTER]["spec"] == was["spec"]
        assert json.loads(status_of(after)["appliedSpec"]) == ALONE

    asyncio.run(work())


@pytest.mark.parametrize("text", ["", "{", '{"exporter": {"port": "many"}}', "[]", "3"], ids=repr)
def test_an_invalid_applied_spec_in_the_status_is_ignored(text: str) -> None:
    async def work(bench: Bench) -> None:
        bench.change(spec={"exporter": {"port": "many"}}, status={"appliedSpec": text})
        await bench.reconcile()
        assert bench.writes() == [f"PATCH {PATH}/status"]
        assert "appliedSpec" not in status_of(bench)

    run(work)


def test_a_very_long_spec_is_not_copied_into_the_status() -> None:
    async def work(bench: Bench) -> None:
        note = {"example.com/long": "x" * 300_000}
        bench.change(spec={**ALONE, "exporter": {"podAnnotations": note}})
        await bench.reconcile()
        assert "appliedSpec" not in status_of(bench)

    run(work)


@pytest.mark.parametrize("restarted", [False, True], ids=["the same operator", "another one"])
def test_exporters_are_deleted_from_nodes_that_an_older_resource_selects(restarted: bool) -> None:
    async def work(bench: Bench) -> None:
        bench.change(
            metadata={"creationTimestamp": "2026-01-02"}, spec={"exporter": {"nodeSelector": {"a": "b"}}}
        )
        await bench.reconcile()
        agent = EXPORTER.replace("daemonsets", "statefulsets").replace("exporter", "agent")
        assert {EXPORTER, agent} <= bench.server.objects.keys()
        bench.server.put_object(OLDER, gpu_monitor(ALONE, "older"))
        bench.server.objects[OLDER]["metadata"] |= {"creationTimestamp": "2026-01-01", "generation": 1}
        after = Bench(bench.server) if restarted else bench
        for path in (OLDER, PATH):
            after.monitors.record_monitor(bench.server.objects[path])
        for path in (PATH, OLDER, PATH):
            monitor = after.monitors.get(bench.server.objects[path]["metadata"]["uid"])
            assert monitor is not None
            await after.list_objects()
            await after.reconciler.reconcile(monitor)
        assert agent in bench.server.objects
        assert EXPORTER not in bench.server.objects
        assert EXPORTER.replace("gpus", "older") in bench.server.objects
        degraded = next(one for one in status_of(bench)["conditions"] if one["type"] == "Degraded")
        assert degraded["reason"] == "Overlap"

    run(work)


def test_rendering_a_large_resource_does_not_block_the_event_loop() -> None:
    async def work(bench: Bench) -> None:
        started, may_finish = asyncio.Event(), threading.Event()
        loop, render_now = asyncio.get_running_loop(), bench.render

        def render_slowly(body: Json, monitor: GpuMonitor) -> Rendered:
            loop.call_soon_threadsafe(started.set)
            assert may_finish.wait(PATIENCE)
            return render_now(body, monitor)

        bench.render = render_slowly
        bench.change()
        reconciling = asyncio.create_task(bench.reconcile())
        await asyncio.wait_for(started.wait(), PATIENCE)
        # Meanwhile the resource is changed and then deleted.
        bench.change(spec={**ALONE, "exporter": {"image": "other"}})
        bench.monitors.remove_monitor(bench.server.objects[PATH])
        may_finish.set()
        await reconciling
        assert bench.writes() == []

    run(work)


def test_a_transient_error_is_reported_after_three_failures() -> None:
    class Away(Statuses):
        away = True

        async def send(self, request: ApiRequest) -> tuple[int, bytes]:
            if self.away and "/daemonsets/" in request.path:
                return 503, b'{"reason": "ServiceUnavailable"}'
            return await super().send(request)

    async def work() -> None:
        server = Away()
        bench = Bench(server)
        bench.change()
        assert [await bench.reconcile() for _ in range(2)] == [1.0, 2.0]
        assert status_of(bench) == {}
        assert await bench.reconcile() == 4.0
        assert {one["reason"] for one in status_of(bench)["conditions"]} >= {"ApplyFailed"}
        server.away = False
        await bench.reconcile()
        assert "lastError" not in status_of(bench)

    asyncio.run(work())


class Cautious(Statuses):
    """A server that warns about each DaemonSet that it stores."""

    async def send(self, request: ApiRequest) -> ApiReply:
        status, body = await super().send(request)
        return status, body, ("would violate PodSecurity",) if request.path == EXPORTER else ()


def test_the_status_has_the_warnings_of_the_server() -> None:
    async def work() -> None:
        bench = Bench(Cautious())
        bench.change()
        await bench.reconcile()
        found = {one["type"]: one for one in status_of(bench)["conditions"]}["ServerWarnings"]
        assert found["message"] == "DaemonSet n/gpumonitor-gpus-exporter: would violate PodSecurity"

    asyncio.run(work())


def test_a_wrong_section_costs_no_other() -> None:
    async def work(bench: Bench) -> None:
        bench.change()
        await bench.reconcile()
        exporter = bench.server.objects[EXPORTER]["spec"]
        bench.change(spec={"exporter": {"port": "many"}, "agent": {"replicas": 2}})
        await bench.reconcile()
        assert bench.server.objects[EXPORTER]["spec"] == exporter
        (agent,) = (one for one in bench.server.objects.values() if one["kind"] == "StatefulSet")
        assert agent["spec"]["replicas"] == 2
        status = status_of(bench)
        (degraded,) = (one for one in status["conditions"] if one["type"] == "Degraded")
        assert degraded["reason"] == "InvalidSpec"
        assert degraded["message"] == (
            "spec.exporter.port: expected a whole number from 1 to 65535, not 'many'; "
            "spec.exporter is kept as it was applied last"
        )
        assert json.loads(status["appliedSpec"]) == {"agent": {"replicas": 2}}
        # A new operator judges it the same.
        after = Bench(bench.server)
        after.monitors.record_monitor(bench.server.objects[PATH])
        await after.reconcile()
        assert bench.server.objects[EXPORTER]["spec"] == exporter
        assert json.loads(status_of(after)["appliedSpec"]) == {"agent": {"replicas": 2}}

    run(work)


def test_a_wrong_receiver_of_the_operator_is_named_in_status_and_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def work(bench: Bench) -> None:
        receivers = ({"url": "https://ann:hunter2@bad/write"}, {"url": "https://good/write"})
        bench.render = lambda body, monitor: render_objects(
            monitor, replace(context_of(body), check_agent=check_agent, default_remote_write=receivers)
        )
        bench.change(spec={})
        await bench.reconcile()
        config = bench.server.objects["/api/v1/namespaces/n/configmaps/gpumonitor-gpus-agent"]
        assert yaml.safe_load(config["data"]["agent.yaml"])["remote_write"] == [receivers[1]]
        degraded = next(one for one in status_of(bench)["conditions"] if one["type"] == "Degraded")
        assert degraded["reason"] == "ReceiversInvalid"
        start = "operator.defaultRemoteWrite[0].url: contains credentials, "
        assert degraded["message"].startswith(start)
        assert status_of(bench)["appliedSpec"] == "{}"
        (logged,) = caplog.messages
        assert logged.startswith(f"GpuMonitor gpus: {start}")
        assert "hunter2" not in logged

    run(work)
