"""Objects of the modes (exporter, CronJob, collecting DaemonSet) and the notes that Helm prints."""

from __future__ import annotations

from typing import Any

import pytest

from chart import MATRIX, NEWEST, files, main_container, notes, of_kind, pod_spec, render, settings
from gpuledger import __version__

PROCESS = "gpu-process-metrics-collector"
SESSION = "gpu-session-metrics-collector"
# Without a cluster, the API server lists no nodes.
CRONJOB = {"mode": "cronjob", "cronjob": {"nodeCount": 1}}


def named(kind: str, values: Any) -> list[str]:
    return [one["metadata"]["name"] for one in of_kind(kind, values)]


@pytest.mark.parametrize(
    ("values", "daemonsets", "cronjobs"),
    [
        ({}, ["gpuledger"], []),
        ({"mode": "daemonset", "gpu-process-exporter": {"enabled": True}}, ["gpuledger"], []),
        # One pod per node takes a DaemonSet if the nodes are not known; the CronJobs are suspended.
        (MATRIX["process exporter"], [PROCESS], [PROCESS]),
        (MATRIX["session monitoring"], [SESSION], [SESSION]),
        (MATRIX["both"], [PROCESS], [PROCESS, SESSION]),
        (CRONJOB, [], [PROCESS]),
        (MATRIX["nodes named"], [], [PROCESS]),
        ({**MATRIX["session monitoring"], "cronjob": {"nodeCount": 2}}, [], [SESSION]),
        ({"mode": "collect"}, [PROCESS], []),
        ({"mode": "collect", **MATRIX["session monitoring"]}, [SESSION], []),
        ({"mode": "collect", **MATRIX["both"]}, [PROCESS], []),
        (MATRIX["too many nodes"], [PROCESS], []),
    ],
)
def test_each_mode_creates_its_workloads(values: Any, daemonsets: list[str], cronjobs: list[str]) -> None:
    assert (named("DaemonSet", values), named("CronJob", values)) == (daemonsets, cronjobs)


def job(values: Any) -> dict[str, Any]:
    (cronjob,) = of_kind("CronJob", values)
    return dict(cronjob["spec"]["jobTemplate"]["spec"])


def test_a_job_runs_one_pod_on_each_named_node() -> None:
    made = job(MATRIX["nodes named"])
    assert (made["parallelism"], made["completions"]) == (3, 3)
    spec = made["template"]["spec"]
    (term,) = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    assert term == {
        "matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["a", "b", "c"]}]
    }
    (apart,) = spec["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert apart["topologyKey"] == "kubernetes.io/hostname"
    labels = made["template"]["metadata"]["labels"]
    assert apart["labelSelector"]["matchLabels"].items() <= labels.items()
    twice = {**MATRIX["nodes named"], "cronjob": {"nodes": ["c", "a", "b", "a"]}}
    assert job(twice) == job(MATRIX["nodes named"])


def test_a_failing_pod_does_not_stop_the_pods_on_other_nodes() -> None:
    # A Job beyond its backoffLimit stops all its pods, so pods restart in place until the deadline.
    made = job(MATRIX["nodes named"])
    assert made["backoffLimit"] == 18
    assert made["template"]["spec"]["restartPolicy"] == "OnFailure"
    assert made["activeDeadlineSeconds"] == 50
    assert made["ttlSecondsAfterFinished"] == 300


def test_jobs_do_not_overlap_and_late_jobs_are_skipped() -> None:
    (cronjob,) = of_kind("CronJob", CRONJOB)
    assert cronjob["spec"]["concurrencyPolicy"] == "Forbid"
    assert cronjob["spec"]["startingDeadlineSeconds"] == 30
    assert (cronjob["spec"]["schedule"], cronjob["spec"]["suspend"]) == ("*/1 * * * *", False)


def test_without_known_nodes_the_configured_number_of_pods_runs_on_labeled_nodes() -> None:
    made = job({"mode": "cronjob", "cronjob": {"nodeCount": 4}})
    assert (made["parallelism"], made["completions"]) == (4, 4)
    affinity = made["template"]["spec"]["affinity"]
    assert affinity["nodeAffinity"] == pod_spec()["affinity"]["nodeAffinity"]
    assert "podAntiAffinity" in affinity


def test_without_known_nodes_a_daemonset_covers_all_and_jobs_can_be_created() -> None:
    values = MATRIX["both"]
    (daemonset,) = of_kind("DaemonSet", values)
    assert daemonset["spec"]["template"]["spec"]["affinity"] == pod_spec()["affinity"]
    process, session = of_kind("CronJob", values)
    assert process["spec"]["suspend"] is session["spec"]["suspend"] is True
    spec = process["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert "--every" not in " ".join(container["args"])
    assert "state" not in {volume["name"] for volume in spec["volumes"]}
    # Pods of the DaemonSet do not keep those of a Job away from their node.
    (apart,) = spec["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    labels = daemonset["spec"]["template"]["metadata"]["labels"]
    assert not apart["labelSelector"]["matchLabels"].items() <= labels.items()
    with pytest.raises(Exception, match="a CronJob supports only process and session"):
        render({**values, "dialect": ["native"]})


def test_twenty_nodes_still_use_a_cronjob() -> None:
    nodes = [f"node-{number}" for number in range(20)]
    assert job({"mode": "cronjob", "cronjob": {"nodes": nodes}})["completions"] == 20


def test_with_both_collectors_enabled_one_writes_and_the_other_is_suspended() -> None:
    process, session = of_kind("CronJob", {**MATRIX["both"], "cronjob": {"nodeCount": 1}})
    assert (process["spec"]["suspend"], session["spec"]["suspend"]) == (False, True)
    files = {
        word
        for one in (process, session)
        for word in one["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"][0]["args"]
        if word.startswith(("--file", "--textfile-dir"))
    }
    # One file, so that node_exporter never reads the same series twice.
    assert files == {"--file=gpu_processes.prom", "--textfile-dir=/var/lib/node_exporter/textfile_collector"}


def test_pods_of_a_cronjob_are_found_by_the_name_prefix_of_its_jobs() -> None:
    values = {**MATRIX["process exporter"], "cronjob": {"nodeCount": 1}}
    made = job(values)
    assert made["template"]["metadata"]["labels"]["job-name-prefix"] == PROCESS
    assert f"logs -l job-name-prefix={PROCESS}" in notes(values)


@pytest.mark.parametrize(
    ("kube", "configured", "version"),
    [
        ("v1.20.15", "", "batch/v1beta1"),
        ("v1.21.0", "", "batch/v1"),
        (NEWEST, "", "batch/v1"),
        (NEWEST, "batch/v1beta1", "batch/v1beta1"),
    ],
)
def test_the_api_version_of_the_cronjob_depends_on_the_server(
    kube: str, configured: str, version: str
) -> None:
    given = {"nodeCount": 1, "apiVersion": configured}
    (cronjob,) = of_kind("CronJob", {"mode": "cronjob", "cronjob": given}, kube=kube)
    assert cronjob["apiVersion"] == version


def test_the_collecting_daemonset_writes_at_the_configured_interval() -> None:
    arguments = main_container(MATRIX["collect"])["args"]
    assert arguments[0] == "collect"
    assert "--every=30s" in arguments
    assert settings(MATRIX["collect"])["dialect"] == ["native", "process"]


@pytest.mark.parametrize("values", [CRONJOB, {"mode": "collect"}], ids=["cronjob", "collect"])
def test_collecting_modes_have_no_ports_probes_or_service(values: Any) -> None:
    values = {**values, "web": {"config": {"rate_limit": {"interval": "1s"}}, "tlsSecret": "x"}}
    container = main_container(values)
    assert {"ports", "livenessProbe", "readinessProbe", "startupProbe"} & set(container) == set()
    assert {one["kind"] for one in render(values)} & {"Service", "Secret"} == set()


@pytest.mark.parametrize(
    ("values", "probe", "scheme"),
    [
        ({}, "httpGet", "HTTP"),
        (MATRIX["TLS"], "httpGet", "HTTPS"),
        ({"web": {"config": {"basic_auth_users": {"a": "$2y$10$x"}}}}, "httpGet", "HTTP"),
        (MATRIX["client certificates"], "tcpSocket", None),
        (MATRIX["web config kept elsewhere"], "tcpSocket", None),
        ({"web": {"existingSecret": "x", "scheme": "https"}}, "httpGet", "HTTPS"),
    ],
    ids=["plain", "TLS", "password", "client certificate", "configured tcp", "configured https"],
)
def test_probes_work_with_tls_passwords_and_client_certificates(
    values: Any, probe: str, scheme: str | None
) -> None:
    container = main_container(values)
    for name, path in (
        ("startupProbe", "/-/healthy"),
        ("livenessProbe", "/-/healthy"),
        ("readinessProbe", "/-/ready"),
    ):
        action = container[name][probe]
        assert action["port"] == "metrics"
        assert scheme is None or (action["scheme"], action["path"]) == (scheme, path)


def test_probes_tolerate_a_busy_node() -> None:
    liveness = main_container()["livenessProbe"]
    assert liveness["timeoutSeconds"] >= 10
    assert liveness["periodSeconds"] * liveness["failureThreshold"] >= 180
    changed = main_container({"probes": {"liveness": {"timeoutSeconds": 30}}})["livenessProbe"]
    assert (changed["timeoutSeconds"], changed["periodSeconds"]) == (30, 30)


WARNINGS: list[tuple[str, Any, str]] = [
    (
        "*/30",
        {**CRONJOB, "collection": {"schedule": "*/30 * * * *"}},
        "'*/30 * * * *' means every 30 minutes: cron has no seconds",
    ),
    ("too many nodes", MATRIX["too many nodes"], "21 GPU nodes exceed cronjob.maxNodes (20)"),
    ("nodes", MATRIX["nodes named"], "run helm upgrade after you add GPU nodes"),
    ("nodes of a number", CRONJOB, "each Job has 1 pod(s), each on a different GPU node"),
    ("no nodes", {"mode": "cronjob"}, "For a CronJob that runs, set cronjob.nodes to the nodes' names"),
    ("devices", MATRIX["devices"], "only the GPUs 0,3,GPU-5c1b8e8e are monitored"),
    (
        "no interval",
        {"podMonitor": {"enabled": True, "interval": ""}},
        "an interval below podMonitor.scrapeTimeout (10s), Prometheus Operator ignores the monitor",
    ),
    ("both", MATRIX["both"], f"{PROCESS} writes one file for both; {SESSION} is suspended"),
    ("simulated", MATRIX["simulator"], "all metrics are simulated or replayed, not measured"),
    ("host", MATRIX["host"], "gpuAccess.mode host: the container is privileged"),
    ("privileged", {"securityContext": {"privileged": True}}, "securityContext.privileged"),
    ("no host PIDs", {"hostPID": False}, "processes are counted but have no owners"),
    (
        "host network",
        {"networkPolicy": {"enabled": True}, "hostNetwork": True},
        "networkPolicy has no effect on pods in the host's network",
    ),
    ("personal data", {"web": {"page": "full"}}, "personal data"),
    ("no permissions", {"rbac": {"create": False}}, "rbac.create is off"),
    (
        "no certificate",
        {"web": {"scheme": "https"}, "podMonitor": {"enabled": True}},
        "podMonitor.tlsConfig is empty",
    ),
    (
        "no password",
        {"web": {"config": {"basic_auth_users": {"a": "b"}}}, "serviceMonitor": {"enabled": True}},
        "serviceMonitor.basicAuth is empty",
    ),
    (
        "unknown alert",
        {"rules": {"enabled": True, "disabled": ["GPUXidFatal", "GPUHeldIdel"]}},
        "no alert has the name GPUHeldIdel,",
    ),
    ("ignored", {"hostAccess": {"devices": True}}, "hostAccess is ignored"),
]


@pytest.mark.parametrize(
    ("values", "warning"), [case[1:] for case in WARNINGS], ids=[case[0] for case in WARNINGS]
)
def test_probable_mistakes_are_warned_about_after_the_install(values: Any, warning: str) -> None:
    (line,) = [line for line in notes(values).splitlines() if warning in line]
    assert line.startswith("WARNING: ")


@pytest.mark.parametrize(
    "schedule", ["*/1 * * * *", "* * * * *", "*/5 * * * *", "0 * * * *", "@hourly", "0-59/2 * * * *"]
)
def test_plausible_schedules_cause_no_warning(schedule: str) -> None:
    values = {**CRONJOB, "collection": {"schedule": schedule}}
    assert "collection.schedule" not in notes(values)
    (cronjob,) = of_kind("CronJob", values)
    assert cronjob["spec"]["schedule"] == schedule


def test_the_defaults_cause_no_warning() -> None:
    assert "WARNING" not in notes()
    assert "No scraper is configured yet" in notes()
    assert "No scraper is configured yet" not in notes(MATRIX["monitoring"])


def test_an_image_without_a_registry_is_named() -> None:
    assert f"No public registry has the image gpuledger:{__version__}:" in notes()
    assert "No public registry" not in notes({"image": {"registry": "mirror:5000"}})


def test_the_notes_print_commands_to_delete_the_remaining_files() -> None:
    assert "rm -rf /host/var/lib/gpuledger" in notes()
    assert "rm -rf /host/books" in notes({"state": {"dir": "/books"}})
    left = "rm -f /host/var/lib/node_exporter/textfile_collector/gpu_sessions.prom"
    assert left in notes({**MATRIX["session monitoring"], "cronjob": {"nodeCount": 1}})
    assert "rm -f " not in notes({"mode": "collect"})
    for values in (CRONJOB, {"state": {"dir": ""}}, MATRIX["simulator"]):
        assert "rm -rf" not in notes(values)


def test_the_notes_describe_the_agent_and_its_remaining_volumes() -> None:
    text = notes(MATRIX["agent"] | {"agent": MATRIX["agent"]["agent"] | {"persistence": {"enabled": True}}})
    assert "port-forward svc/gpuledger-agent 9401" in text
    assert "No scraper is configured yet" not in text
    assert "delete pvc -l app=gpuledger-agent" in text
    assert "delete pvc" not in notes(MATRIX["agent"])


def test_exporter_and_collector_on_a_node_have_separate_ledgers() -> None:
    kept = {
        mode: [
            volume["hostPath"]["path"]
            for volume in pod_spec({**CRONJOB, "mode": mode})["volumes"]
            if volume["name"] == "state"
        ]
        for mode in ("daemonset", "collect", "cronjob")
    }
    assert kept == {
        "daemonset": ["/var/lib/gpuledger"],
        "collect": ["/var/lib/gpuledger/collector"],
        "cronjob": [],
    }


def test_helm_test_checks_the_service_or_collects_once() -> None:
    (pod,) = of_kind("Pod", MATRIX["TLS"])
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
    assert pod["spec"]["containers"][0]["args"][1:] == ["gpuledger.gpus.svc", "9400", "https"]
    (pod,) = of_kind("Pod", CRONJOB)
    assert "--stdout=true" in pod["spec"]["containers"][0]["args"]
    assert of_kind("Pod", {"helmTest": {"enabled": False}}) == []


def test_agent_and_operator_create_nothing_by_default() -> None:
    texts = [text for name, text in files().items() if name.startswith(("agent/", "operator/"))]
    assert len(texts) == 7
    assert [text.strip() for text in texts] == [""] * 7


def test_all_objects_have_the_labels_of_their_selectors() -> None:
    for one in render(MATRIX["everything else"]):
        labels = one["metadata"]["labels"]
        assert {"app", "app.kubernetes.io/name", "app.kubernetes.io/instance", "team"} <= set(labels)
    spec = of_kind("DaemonSet")[0]["spec"]
    assert spec["selector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()
    (service,) = of_kind("Service")
    assert service["spec"]["selector"] == spec["selector"]["matchLabels"]


@pytest.mark.parametrize(
    ("release", "values", "name"),
    [
        ("gpuledger", {}, "gpuledger"),
        ("gpu-monitoring", {}, "gpu-monitoring-gpuledger"),
        ("my-gpuledger", {}, "my-gpuledger"),
        ("x", {"nameOverride": "gpus"}, "x-gpus"),
        ("x", {"fullnameOverride": "my-gpu-exporter"}, "my-gpu-exporter"),
        ("a" * 53, {}, "a" * 52),
        # Helm accepts dots, the API server not in the name of a Service.
        ("team.gpus", {}, "team-gpus-gpuledger"),
    ],
)
def test_object_names_come_from_release_and_overrides(release: str, values: Any, name: str) -> None:
    (daemonset,) = of_kind("DaemonSet", values, name=release)
    assert daemonset["metadata"]["name"] == name


# Longest names of workloads: that of a Job is also the value of a label of its pods; a StatefulSet and a
# CronJob append up to 11 characters to theirs.
LONGEST_NAMES = {"Job": 63, "Deployment": 63, "DaemonSet": 63, "StatefulSet": 52, "CronJob": 52}


@pytest.mark.parametrize("values", [MATRIX["agent"], MATRIX["operator"]], ids=["agent", "operator"])
@pytest.mark.parametrize("release", ["a" * 53, "a" * 45 + ".b", "a.b" * 17])
def test_names_and_labels_of_a_long_release_are_valid(release: str, values: Any) -> None:
    for one in render(values, name=release):
        assert len(one["metadata"]["name"]) <= LONGEST_NAMES.get(one["kind"], 63), one["metadata"]["name"]
        labels = one["metadata"].get("labels", {})
        template = one.get("spec", {}).get("template", {})
        for value in (labels | template.get("metadata", {}).get("labels", {})).values():
            assert len(value) <= 63
            assert value[-1:].isalnum()


def test_a_priority_class_is_created_or_referenced() -> None:
    (made,) = of_kind("PriorityClass", {"priorityClass": {"create": True}})
    assert made["value"] == 1_000_000
    assert pod_spec({"priorityClass": {"create": True}})["priorityClassName"] == made["metadata"]["name"]
    assert (
        pod_spec({"priorityClassName": "system-node-critical"})["priorityClassName"] == "system-node-critical"
    )
    assert "priorityClassName" not in pod_spec()


def test_the_network_policy_allows_scrapes_in_and_dns_and_api_requests_out() -> None:
    values = {
        "networkPolicy": {"enabled": True, "from": [{"namespaceSelector": {}}]},
        "extraPorts": [{"name": "smi", "port": 9835, "dialects": ["smi"]}],
    }
    (policy,) = of_kind("NetworkPolicy", values)
    (ingress,) = policy["spec"]["ingress"]
    assert [port["port"] for port in ingress["ports"]] == ["metrics", "smi"]
    assert ingress["from"][0] == {"namespaceSelector": {}}
    (egress,) = policy["spec"]["egress"]
    assert [port["port"] for port in egress["ports"]] == [53, 53, 443, 6443]
    labels = of_kind("DaemonSet", values)[0]["spec"]["template"]["metadata"]["labels"]
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
    (closed,) = of_kind("NetworkPolicy", {**CRONJOB, "networkPolicy": {"enabled": True}})
    assert closed["spec"]["ingress"] == []


def test_the_network_policy_admits_the_agent_and_the_test_of_the_chart() -> None:
    peers = [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}]
    values = {**MATRIX["agent"], "networkPolicy": {"enabled": True, "from": peers}}
    policies = {one["metadata"]["name"]: one["spec"] for one in of_kind("NetworkPolicy", values)}
    (ingress,) = policies["gpuledger"]["ingress"]
    assert ingress["from"][:1] == peers
    (agent,), (test,) = of_kind("StatefulSet", values), of_kind("Pod", values)
    for admitted, pod in zip(ingress["from"][1:], [agent["spec"]["template"], test], strict=True):
        assert admitted["podSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    (ingress,) = policies["gpuledger-agent"]["ingress"]
    assert ingress["from"] == peers


def test_on_openshift_the_network_policy_allows_the_port_of_its_dns() -> None:
    values = {"networkPolicy": {"enabled": True}, "openshift": {"enabled": True}}
    (policy,) = of_kind("NetworkPolicy", values)
    (egress,) = policy["spec"]["egress"]
    ports = {(port["port"], port["protocol"]) for port in egress["ports"]}
    assert {(5353, "UDP"), (5353, "TCP"), (53, "UDP"), (53, "TCP")} <= ports
