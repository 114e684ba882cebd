"""Renders the CronJob of mode cronjob, equivalent to that of the chart."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from gpuledger.operator.render.exporter import (
    affinity_of,
    exporter_container,
    exporter_pod_spec,
    hostname_affinity,
    restart_annotation_of,
)
from gpuledger.operator.render.naming import JOB_PREFIX, Manifest, Naming
from gpuledger.operator.render.pods import pod_template
from gpuledger.operator.spec import ExporterSpec

# A failing pod restarts in place until the deadline: a Job that fails earlier would stop the pods on the
# other nodes.
_RETRIES_PER_NODE: Final = 6
# As pods of a DaemonSet: a cordoned node, of which work goes on, must not keep an old file.
_CORDONED: Final = {
    "key": "node.kubernetes.io/unschedulable",
    "operator": "Exists",
    "effect": "NoSchedule",
}


@dataclass(frozen=True, slots=True)
class JobPlan:
    """How mode cronjob covers the GPU nodes, which are more or less known.

    `nodes` are their names, as far as they are known, and `count` is the number of pods of a Job. Without
    `has_job` they are too many for a CronJob; without `runs` it is suspended, because their number is not
    known. In both cases a DaemonSet covers them, and `note` says so.
    """

    nodes: tuple[str, ...]
    count: int
    has_job: bool = True
    runs: bool = True
    note: str = ""


def plan_jobs(naming: Naming) -> JobPlan:
    """The plan for a monitor in mode cronjob."""
    exporter, path = naming.monitor.exporter, naming.monitor.exporter_path
    jobs, every = exporter.cron_job, exporter.textfile.every
    nodes = tuple(sorted({*(jobs.nodes or _found_nodes(naming))}))
    if len(nodes) > jobs.max_nodes:
        note = (
            f"the GPU nodes exceed {path}.cronJob.maxNodes ({jobs.max_nodes}), so a DaemonSet that runs "
            f"collect --every {every} covers them in place of the CronJob"
        )
        return JobPlan(nodes, len(nodes), has_job=False, runs=False, note=note)
    if nodes or jobs.node_count:
        return JobPlan(nodes, len(nodes) or jobs.node_count)
    note = (
        f"no GPU nodes are known, so a DaemonSet that runs collect --every {every} covers all of them, and "
        f"the CronJob is suspended; for a CronJob that runs, set {path}.cronJob.nodes to their names, or "
        f"{path}.cronJob.nodeCount to their number"
    )
    return JobPlan((), 1, runs=False, note=note)


def _found_nodes(naming: Naming) -> tuple[str, ...]:
    # Only the scheduler evaluates an affinity.
    return () if naming.monitor.exporter.affinity else naming.context.gpu_nodes or ()


def cron_job(naming: Naming, plan: JobPlan) -> Manifest:
    """The CronJob: each Job runs one pod on each GPU node."""
    jobs, name = naming.monitor.exporter.cron_job, naming.names.exporter
    once = replace(naming, monitor=replace(naming.monitor, exporter=_running_once(naming.monitor.exporter)))
    labels = {**naming.labels("exporter"), JOB_PREFIX: name}
    spec = exporter_pod_spec(once, exporter_container(once), _job_affinity(naming, plan.nodes))
    tolerations = [*spec.get("tolerations", ()), _CORDONED]
    pods = {
        "restartPolicy": "OnFailure",
        "terminationGracePeriodSeconds": 5,
        **spec,
        "tolerations": tolerations,
    }
    annotations = restart_annotation_of(naming)
    return naming.object(
        naming.context.cron_job_version,
        "CronJob",
        name,
        "exporter",
        spec={
            "schedule": jobs.schedule,
            "suspend": jobs.suspend or not plan.runs,
            "concurrencyPolicy": "Forbid",
            "startingDeadlineSeconds": 30,
            "successfulJobsHistoryLimit": 1,
            "failedJobsHistoryLimit": 3,
            "jobTemplate": {
                "metadata": {"labels": labels},
                "spec": {
                    "parallelism": plan.count,
                    "completions": plan.count,
                    "activeDeadlineSeconds": jobs.active_deadline_seconds,
                    "ttlSecondsAfterFinished": jobs.ttl_seconds_after_finished,
                    "backoffLimit": _RETRIES_PER_NODE * plan.count,
                    "template": pod_template(labels, once.monitor.exporter, annotations, pods),
                },
            },
        },
    )


def _running_once(exporter: ExporterSpec) -> ExporterSpec:
    """Without a ledger, which needs a program that keeps running."""
    return replace(exporter, state_dir="", textfile=replace(exporter.textfile, every=""))


def _job_affinity(naming: Naming, nodes: tuple[str, ...]) -> Manifest:
    """Affinity to the nodes, each with at most one pod of the Jobs."""
    exporter = naming.monitor.exporter
    others = {**naming.selector("exporter"), JOB_PREFIX: naming.names.exporter}
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": others}}
    return {
        **(hostname_affinity(nodes) if nodes else affinity_of(exporter)),
        "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]},
    }
