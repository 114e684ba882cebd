"""Reconciliations of resources in mode cronjob: the objects, their replacement, and the status."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpuledger.operator.render.objects import Rendered, render_objects
from gpuledger.operator.spec import GpuMonitor
from gpuledger.operator.status import ExporterNode
from unit.operator.bench import ALONE, EXPORTER, PATH, Bench, context_of, run, status_of
from unit.operator.support import Json

CRON_JOB = "/apis/batch/v1/namespaces/n/cronjobs/gpumonitor-gpus-exporter"
JOBS: Json = {"mode": "cronjob", "cronJob": {"nodeCount": 2}}


def spec(**exporter: Any) -> Json:
    return {**ALONE, "exporter": exporter}


def conditions(bench: Bench) -> dict[str, tuple[str, str, str]]:
    return {
        one["type"]: (one["status"], one["reason"], one.get("message", ""))
        for one in status_of(bench)["conditions"]
    }


async def observe(bench: Bench, *nodes: ExporterNode, **status: Any) -> None:
    """The CronJob's controller and the pods of its Jobs change; reconcile."""
    there = bench.server.objects[CRON_JOB]
    bench.server.put_object(CRON_JOB, {**there, "status": status})
    bench.owned.record_object(bench.server.objects[CRON_JOB])
    (monitor,) = bench.monitors
    monitor.nodes = nodes
    # Numbers are written with a changed condition, or after an hour.
    monitor.status_written_at = float("-inf")
    await bench.reconcile()


@pytest.mark.parametrize("other", [{}, {"mode": "collect"}], ids=["daemonset", "collect"])
def test_a_changed_mode_deletes_the_workload_of_the_other(other: Json) -> None:
    async def work(bench: Bench) -> None:
        bench.change(spec=spec(**JOBS))
        await bench.reconcile()
        assert CRON_JOB in bench.server.objects
        assert EXPORTER not in bench.server.objects
        bench.change(spec=spec(**other))
        await bench.reconcile()
        assert CRON_JOB not in bench.server.objects
        assert EXPORTER in bench.server.objects
        bench.change(spec=spec(**JOBS))
        await bench.reconcile()
        assert CRON_JOB in bench.server.objects
        assert EXPORTER not in bench.server.objects

    run(work)


def test_a_deleted_resource_leaves_no_cron_job() -> None:
    async def work(bench: Bench) -> None:
        bench.change(spec=spec(**JOBS))
        await bench.reconcile()
        bench.change(metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})
        await bench.reconcile()
        assert CRON_JOB not in bench.server.objects

    run(work)


def test_a_changed_cron_job_is_restored() -> None:
    async def work(bench: Bench) -> None:
        bench.change(spec=spec(**JOBS))
        await bench.reconcile()
        there = bench.server.objects[CRON_JOB]
        bench.server.put_object(CRON_JOB, {**there, "spec": {**there["spec"], "suspend": True}})
        bench.owned.record_object(bench.server.objects[CRON_JOB])
        await bench.reconcile()
        assert bench.server.objects[CRON_JOB]["spec"]["suspend"] is False

    run(work)


EARLIER, STARTED, LATER = (f"2026-01-01T00:0{minute}:00Z" for minute in (0, 1, 2))
GOOD, ALSO = ExporterNode("a", True), ExporterNode("b", True)
BAD = ExporterNode("b", False, error="CrashLoopBackOff")


def test_the_status_has_the_results_of_the_jobs() -> None:
    async def work(bench: Bench) -> None:
        bench.change(spec=spec(**JOBS))
        await bench.reconcile()
        starting = "no result of a Job is known; they start by the schedule */1 * * * *"
        assert conditions(bench)["Available"] == ("False", "Starting", starting)
        # The first Job may start much later: it is not late.
        (monitor,) = bench.monitors
        assert monitor.deadline.seconds_left((None, None), monitor.generation, 1e9) is None

        await observe(bench, GOOD, BAD, lastScheduleTime=STARTED)
        status = status_of(bench)
        assert (status["gpuNodes"], status["exportersReady"]) == (2, 1)
        assert status["nodes"][1] == {"name": "b", "ready": False, "error": "CrashLoopBackOff"}
        message = "1 of 2 nodes have written their file in the newest Jobs"
        assert conditions(bench)["Available"] == ("True", "Running", message)
        assert conditions(bench)["Progressing"][:2] == ("True", "RollingOut")

        await observe(bench, GOOD, ALSO, lastScheduleTime=STARTED)
        assert status_of(bench)["exportersReady"] == 2
        assert conditions(bench)["Progressing"][:2] == ("False", "Complete")
        assert conditions(bench)["Degraded"][:2] == ("False", "AsWanted")

    run(work)


@pytest.mark.parametrize(
    ("nodes", "status", "available"),
    [
        # All pods of a Job have succeeded; they were deleted since.
        (
            (),
            {"lastScheduleTime": STARTED, "lastSuccessfulTime": LATER},
            ("True", "Running"),
        ),
        # The newest Job has not succeeded, and no pod of it is left.
        (
            (),
            {"lastScheduleTime": STARTED, "lastSuccessfulTime": EARLIER},
            ("False", "Starting"),
        ),
        ((BAD,), {"lastScheduleTime": STARTED}, ("False", "NoExporterReady")),
        # More pods than nodes are expected: a Job of an earlier specification.
        ((GOOD, ALSO, ExporterNode("c", True)), {"lastScheduleTime": STARTED}, ("True", "Running")),
    ],
)
def test_without_pods_the_cron_job_says_whether_its_jobs_succeed(
    nodes: tuple[ExporterNode, ...], status: Json, available: tuple[str, str]
) -> None:
    async def work(bench: Bench) -> None:
        bench.change(spec=spec(**JOBS))
        await bench.reconcile()
        await observe(bench, *nodes, **status)
        assert conditions(bench)["Available"][:2] == available

    run(work)


def test_a_suspended_cron_job_is_not_available() -> None:
    async def work(bench: Bench) -> None:
        bench.change(spec=spec(mode="cronjob", cronJob={"nodeCount": 2, "suspend": True}))
        await bench.reconcile()
        assert conditions(bench)["Available"] == (
            "False",
            "Suspended",
            "the CronJob is suspended and starts no Jobs",
        )

    run(work)


def test_the_status_says_why_a_daemon_set_runs_in_place_of_the_jobs() -> None:
    async def work(bench: Bench) -> None:
        bench.change(spec=spec(mode="cronjob"))
        await bench.reconcile()
        bench.exporters(8)
        await bench.reconcile()
        status, reason, message = conditions(bench)["Available"]
        assert (status, reason) == ("True", "Running")
        assert message.startswith("8 of 8 exporters are ready; no GPU nodes are known, so a DaemonSet")
        assert "spec.exporter.cronJob.nodeCount" in message

    run(work)


def test_the_status_says_why_pods_of_jobs_are_not_created() -> None:
    async def work(bench: Bench) -> None:
        bench.change(spec=spec(**JOBS))
        await bench.reconcile()
        message = 'Error creating: pods "x-1" is forbidden: violates PodSecurity "baseline:latest"'
        event = {
            "kind": "Event",
            "metadata": {"name": "e", "namespace": "n"},
            "message": message,
            "lastTimestamp": STARTED,
        }
        bench.server.put_object("/api/v1/namespaces/n/events/e", event)
        job = {"kind": "Job", "namespace": "n", "name": "gpumonitor-gpus-exporter-1", "uid": "job-uid"}
        await observe(bench, lastScheduleTime=STARTED, active=[job])
        queries = [one.query for one in bench.server.requests if one.path.endswith("/events")]
        assert {"fieldSelector": "involvedObject.uid=job-uid,reason=FailedCreate"} in queries
        assert conditions(bench)["Degraded"] == (
            "True",
            "PodsNotCreated",
            "the pods of Job gpumonitor-gpus-exporter-1 are not created: Error creating: pods are forbidden: "
            'violates PodSecurity "baseline:latest"',
        )

    run(work)


def test_found_nodes_are_rendered_and_rendered_again_when_they_change() -> None:
    """The resource is judged again although it did not change."""

    async def work(bench: Bench) -> None:
        nodes: list[tuple[str, ...]] = [("a",)]
        missing = [True]

        def render(body: Json, monitor: GpuMonitor) -> Rendered:
            found = None if missing[0] else nodes[0]
            return render_objects(monitor, replace(context_of(body), gpu_nodes=found))

        async def look_up() -> bool:
            was, missing[0] = missing[0], False
            return was

        bench.render, bench.monitors.look_up = render, look_up
        bench.change(spec=spec(mode="cronjob"))
        await bench.reconcile()
        # Nothing was applied before the nodes were known.
        assert f"PATCH {EXPORTER}" not in bench.server.writes

        def pods() -> int:
            return int(bench.server.objects[CRON_JOB]["spec"]["jobTemplate"]["spec"]["completions"])

        assert pods() == 1
        nodes[0] = ("a", "b")
        await bench.reconcile()
        assert pods() == 1
        bench.monitors.render_again()
        await bench.reconcile()
        assert pods() == 2
        assert PATH in bench.server.objects

    run(work)
