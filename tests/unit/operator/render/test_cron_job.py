"""Mode cronjob of a GpuMonitor: the CronJob of the chart, or a DaemonSet where a CronJob cannot be right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

import chart
from chart import load_container_settings
from gpuledger.app.operator_checks import check_exporter
from unit.operator.support import Json, gpu_monitor, rendered, rendered_objects

NAME = "gpumonitor-gpus-exporter"
NODES = ["gpu-a", "gpu-b"]


def monitor(**exporter: Any) -> Json:
    return gpu_monitor({"exporter": {"mode": "cronjob", **exporter}, "agent": {"enabled": False}})


def cron_job(resource: Json, **more: Any) -> Json:
    return rendered_objects(resource, **more)[f"CronJob/{NAME}"]["spec"]


def workloads(resource: Json, **more: Any) -> dict[str, Json]:
    found = rendered_objects(resource, **more).items()
    return {name.partition("/")[0]: one for name, one in found if name.startswith(("Daemon", "CronJob"))}


def job_nodes(spec: Json) -> object:
    affinity = spec["jobTemplate"]["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    (term,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    return term


# Fields of `exporter`, and the values of the chart with the same meaning.
SAME: dict[str, tuple[Json, Json]] = {
    "nodes": ({"cronJob": {"nodes": NODES}}, {"cronjob": {"nodes": NODES}}),
    "a number of nodes": ({"cronJob": {"nodeCount": 3}}, {"cronjob": {"nodeCount": 3}}),
    "no known nodes": ({}, {}),
    "settings": (
        {
            "cronJob": {
                "nodes": NODES,
                "schedule": "*/5 * * * *",
                "activeDeadlineSeconds": 90,
                "ttlSecondsAfterFinished": 60,
                "suspend": True,
            },
            "textfile": {"directory": "/textfiles", "file": "gpu_sessions.prom"},
            "dialects": ["session"],
        },
        {
            "cronjob": {
                "nodes": NODES,
                "activeDeadlineSeconds": 90,
                "ttlSecondsAfterFinished": 60,
                "suspend": True,
            },
            "collection": {"schedule": "*/5 * * * *"},
            "textfile": {"directory": "/textfiles", "file": "gpu_sessions.prom"},
            "dialect": ["session"],
        },
    ),
    "an affinity": (
        {"affinity": {"podAntiAffinity": {}, "nodeAffinity": {}}, "cronJob": {"nodeCount": 1}},
        {"affinity": {"podAntiAffinity": {}, "nodeAffinity": {}}, "cronjob": {"nodeCount": 1}},
    ),
    "the driver of the node": (
        {"gpuAccess": {"mode": "host"}, "accounting": True, "cronJob": {"nodes": NODES}},
        {"gpuAccess": {"mode": "host"}, "accounting": {"enable": True}, "cronjob": {"nodes": NODES}},
    ),
    "simulated GPUs": (
        {"source": "simulator", "cronJob": {"nodeCount": 1}, "podNames": "logs", "hostPID": False},
        {
            "source": "simulator",
            "cronjob": {"nodeCount": 1},
            "kubernetes": {"names": "logs"},
            "hostPID": False,
        },
    ),
}


@pytest.mark.parametrize(("exporter", "values"), SAME.values(), ids=SAME)
def test_a_resource_renders_the_same_cron_job_as_the_chart(exporter: Json, values: Json) -> None:
    (theirs,) = chart.of_kind("CronJob", {"mode": "cronjob", **values})
    expected, actual = theirs["spec"], cron_job(monitor(**exporter))
    for spec in (expected, actual):
        # Names and labels differ.
        job = spec["jobTemplate"].pop("spec")
        del spec["jobTemplate"]
        template = job.pop("template")
        pod = template["spec"]
        (container,) = pod.pop("containers")
        del pod["serviceAccountName"]
        (term,) = pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        others = term.pop("labelSelector")["matchLabels"]
        assert others.items() <= template["metadata"]["labels"].items()
        assert "job-name-prefix" in others
        volumes = {one["name"]: one for one in pod.pop("volumes")}
        volumes["config"]["configMap"]["name"] = ""
        mounts = {one["name"]: one for one in container["volumeMounts"]}
        for init in pod.get("initContainers", ()):
            del init["image"]
        security = {**container["securityContext"], "runAsNonRoot": False}
        spec |= {"job": job, "pod": pod, "volumes": volumes, "mounts": mounts, "security": security}
        spec |= {"args": container["args"], "env": container["env"]}
        assert {"ports", "startupProbe", "livenessProbe", "readinessProbe"}.isdisjoint(container)
    assert actual == expected


def test_the_files_of_a_job_are_those_of_its_program(tmp_path: Path) -> None:
    resource = monitor(cronJob={"nodes": NODES}, dialects=["process"])
    objects = rendered_objects(resource)
    data = objects[f"ConfigMap/{NAME}"]["data"]
    assert yaml.safe_load(data["gpuledger.yaml"]) == {
        "kubernetes": {"names": "auto"},
        "dialect": ["process"],
    }
    pod = objects[f"CronJob/{NAME}"]["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    settings = load_container_settings(pod["containers"][0], data, tmp_path)
    assert (settings.get("textfile.every"), settings["state_dir"]) == (None, "none")
    assert f"Service/{NAME}" not in objects


@pytest.mark.parametrize(
    ("exporter", "found", "made", "suspended", "note"),
    [
        # The operator lists the nodes of the cluster.
        ({}, ("gpu-a", "gpu-b"), {"CronJob"}, False, ""),
        # It may not list them, or none has a label of GPU nodes.
        ({}, None, {"DaemonSet", "CronJob"}, True, "no GPU nodes are known"),
        ({}, (), {"DaemonSet", "CronJob"}, True, "no GPU nodes are known"),
        ({"cronJob": {"nodeCount": 2}}, (), {"CronJob"}, False, ""),
        ({"cronJob": {"nodes": ["other"]}}, ("gpu-a", "gpu-b"), {"CronJob"}, False, ""),
        # Only the scheduler knows which nodes an affinity selects.
        ({"affinity": {"nodeAffinity": {}}}, ("gpu-a",), {"DaemonSet", "CronJob"}, True, "no GPU nodes"),
        ({"cronJob": {"maxNodes": 1}}, ("gpu-a", "gpu-b"), {"DaemonSet"}, None, "cronJob.maxNodes (1)"),
        (
            {"cronJob": {"nodes": [f"n{n}" for n in range(21)]}, "textfile": {"every": "30s"}},
            None,
            {"DaemonSet"},
            None,
            "a DaemonSet that runs collect --every 30s",
        ),
    ],
)
def test_a_daemon_set_runs_where_a_cron_job_cannot_be_right(
    exporter: Json, found: tuple[str, ...] | None, made: set[str], suspended: bool | None, note: str
) -> None:
    resource = monitor(**exporter)
    objects = workloads(resource, gpu_nodes=found)
    assert objects.keys() == made
    if suspended is not None:
        assert objects["CronJob"]["spec"]["suspend"] is suspended
    assert note in (text := rendered(resource, gpu_nodes=found).note)
    assert bool(note) == bool(text)


def test_the_found_nodes_have_a_pod_each() -> None:
    spec = cron_job(monitor(), gpu_nodes=("gpu-b", "gpu-a"))
    job = spec["jobTemplate"]["spec"]
    assert (job["parallelism"], job["completions"], job["backoffLimit"]) == (2, 2, 12)
    named = {"key": "kubernetes.io/hostname", "operator": "In", "values": NODES}
    assert job_nodes(spec) == {"matchExpressions": [named]}


def test_the_daemon_set_in_place_of_a_cron_job_keeps_a_ledger_and_the_jobs_do_not() -> None:
    objects = workloads(monitor())
    template = objects["DaemonSet"]["spec"]["template"]
    job = objects["CronJob"]["spec"]["jobTemplate"]["spec"]["template"]
    daemon, once = (one["spec"]["containers"][0]["args"] for one in (template, job))
    assert {"--every=60s", "--state-dir=/var/lib/gpuledger"} <= set(daemon)
    assert "--state-dir=none" in once
    assert not [argument for argument in once if argument.startswith("--every")]
    # So the pods of Jobs, which can be created from the suspended CronJob, are not held off by those of the
    # DaemonSet.
    assert "job-name-prefix" not in template["metadata"]["labels"]
    assert job["metadata"]["labels"]["job-name-prefix"] == NAME


@pytest.mark.parametrize("version", ["batch/v1", "batch/v1beta1"])
def test_the_cron_job_has_the_api_version_of_the_server(version: str) -> None:
    found = workloads(monitor(), cron_job_version=version)["CronJob"]
    assert found["apiVersion"] == version


def problems(**exporter: Any) -> list[str]:
    return [str(one) for one in rendered(monitor(**exporter), check_exporter=check_exporter).problems]


@pytest.mark.parametrize(
    ("exporter", "counting"),
    [
        ({"dialects": ["process", "session"]}, ""),
        ({"dialects": ["native", "process", "dcgm"]}, "dcgm, native"),
        # The default of a metrics page is not that of a file: stated, it is refused and not ignored.
        ({"dialects": ["native"]}, "native"),
        ({"config": {"dialect": "process, energy"}}, "energy"),
        ({"config": {"dialect": ["smi"]}}, "smi"),
    ],
)
def test_counters_need_a_program_that_keeps_running(exporter: Json, counting: str) -> None:
    expected = (
        f"spec.exporter.dialects: a CronJob supports only process and session, because the counters of "
        f"{counting} need a program that keeps running; set mode to collect or daemonset"
    )
    assert problems(**exporter) == ([expected] if counting else [])


def test_a_job_serves_no_page() -> None:
    found = problems(webConfig={"secret": "web", "scheme": "http"})
    assert "spec.exporter.mode: cronjob serves no page: leave out extraPorts and webConfig" in found


@pytest.mark.parametrize("key", ["every", "file"])
def test_settings_of_the_file_are_not_overridden_in_silence(key: str) -> None:
    found = problems(config={"textfile": {key: "30s" if key == "every" else "b.prom"}})
    assert found == [
        f"spec.exporter.config.textfile.{key}: has no effect; set spec.exporter.textfile.{key} instead"
    ]


def test_a_policy_closes_the_pods_of_jobs() -> None:
    resource = monitor(cronJob={"nodes": NODES})
    resource["spec"]["networkPolicy"] = {"enabled": True}
    objects = rendered_objects(resource)
    policy = objects[f"NetworkPolicy/{NAME}"]["spec"]
    labels = objects[f"CronJob/{NAME}"]["spec"]["jobTemplate"]["spec"]["template"]["metadata"]["labels"]
    assert policy["podSelector"]["matchLabels"].items() <= labels.items()
    assert policy["ingress"] == []


@pytest.mark.parametrize("tolerations", [None, [], [{"key": "gpu", "operator": "Exists"}]])
def test_jobs_run_on_cordoned_nodes_as_daemon_sets_do(tolerations: list[Json] | None) -> None:
    """Kubernetes adds the toleration to pods of DaemonSets: work goes on on a cordoned node."""
    cordoned = {"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"}
    more = {} if tolerations is None else {"tolerations": tolerations}
    jobs = cron_job(monitor(cronJob={"nodes": NODES}, **more))["jobTemplate"]
    found = jobs["spec"]["template"]["spec"]["tolerations"]
    values = {"mode": "cronjob", "cronjob": {"nodes": NODES}, **more}
    assert found == chart.pod_spec(values)["tolerations"]
    assert found[-1] == cordoned
    assert tolerations is None or found[:-1] == tolerations
