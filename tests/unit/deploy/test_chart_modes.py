"""What is made for a way of running: exporter, CronJob, collecting DaemonSet; and what Helm says about it."""

from __future__ import annotations

from typing import Any

import pytest

from chart import MATRIX, NEWEST, files, notes, of_kind, program, render, settings, workload

PROCESS = "gpu-process-metrics-collector"
SESSION = "gpu-session-metrics-collector"
CRONJOB = {"mode": "cronjob"}


def named(kind: str, values: Any) -> list[str]:
    return [one["metadata"]["name"] for one in of_kind(kind, values)]


@pytest.mark.parametrize(
    ("values", "daemonsets", "cronjobs"),
    [
        ({}, ["gpuledger"], []),
        ({"mode": "daemonset", "gpu-process-exporter": {"enabled": True}}, ["gpuledger"], []),
        (MATRIX["process exporter"], [], [PROCESS]),
        (MATRIX["session monitoring"], [], [SESSION]),
        (MATRIX["both"], [], [PROCESS, SESSION]),
        (CRONJOB, [], [PROCESS]),
        ({"mode": "collect"}, [PROCESS], []),
        ({"mode": "collect", **MATRIX["session monitoring"]}, [SESSION], []),
        ({"mode": "collect", **MATRIX["both"]}, [PROCESS], []),
        (MATRIX["too many nodes"], [PROCESS], []),
    ],
)
def test_what_runs_on_the_nodes(values: Any, daemonsets: list[str], cronjobs: list[str]) -> None:
    assert (named("DaemonSet", values), named("CronJob", values)) == (daemonsets, cronjobs)


def job(values: Any) -> dict[str, Any]:
    (cronjob,) = of_kind("CronJob", values)
    return dict(cronjob["spec"]["jobTemplate"]["spec"])


def test_a_tick_has_one_pod_on_each_named_node() -> None:
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


def test_a_node_that_fails_ends_nobody_elses_look() -> None:
    # A Job beyond its backoffLimit ends all its pods: they try again in place, until the deadline.
    made = job(MATRIX["nodes named"])
    assert made["backoffLimit"] == 18
    assert made["template"]["spec"]["restartPolicy"] == "OnFailure"
    assert made["activeDeadlineSeconds"] == 50
    assert made["ttlSecondsAfterFinished"] == 300


def test_ticks_do_not_overlap_and_late_ones_are_left_out() -> None:
    (cronjob,) = of_kind("CronJob", CRONJOB)
    assert cronjob["spec"]["concurrencyPolicy"] == "Forbid"
    assert cronjob["spec"]["startingDeadlineSeconds"] == 30
    assert (cronjob["spec"]["schedule"], cronjob["spec"]["suspend"]) == ("*/1 * * * *", False)


def test_without_known_nodes_their_number_counts_and_labels_choose() -> None:
    made = job({"mode": "cronjob", "cronjob": {"nodeCount": 4}})
    assert (made["parallelism"], made["completions"]) == (4, 4)
    affinity = made["template"]["spec"]["affinity"]
    assert (
        len(affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"])
        == 3
    )
    assert "podAntiAffinity" in affinity


def test_twenty_nodes_are_still_a_cronjobs() -> None:
    nodes = [f"node-{number}" for number in range(20)]
    assert job({"mode": "cronjob", "cronjob": {"nodes": nodes}})["completions"] == 20


def test_with_both_on_one_writes_and_of_the_other_jobs_can_be_made() -> None:
    process, session = of_kind("CronJob", MATRIX["both"])
    assert (process["spec"]["suspend"], session["spec"]["suspend"]) == (False, True)
    files = {
        word
        for one in (process, session)
        for word in one["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"][0]["args"]
        if word.startswith(("--file", "--textfile-dir"))
    }
    # One file, so that node_exporter never reads the same series from two.
    assert files == {"--file=gpu_processes.prom", "--textfile-dir=/var/lib/node_exporter/textfile_collector"}


def test_pods_of_a_cronjob_are_found_by_the_name_that_its_jobs_begin_with() -> None:
    made = job(MATRIX["process exporter"])
    assert made["template"]["metadata"]["labels"]["job-name-prefix"] == PROCESS
    assert f"logs -l job-name-prefix={PROCESS}" in notes(MATRIX["process exporter"])


@pytest.mark.parametrize(
    ("kube", "said", "version"),
    [
        ("v1.20.15", "", "batch/v1beta1"),
        ("v1.21.0", "", "batch/v1"),
        (NEWEST, "", "batch/v1"),
        (NEWEST, "batch/v1beta1", "batch/v1beta1"),
    ],
)
def test_the_cronjobs_version_is_the_servers(kube: str, said: str, version: str) -> None:
    (cronjob,) = of_kind("CronJob", {**CRONJOB, "cronjob": {"apiVersion": said}}, kube=kube)
    assert cronjob["apiVersion"] == version


def test_the_collecting_daemonset_writes_as_often_as_it_is_told() -> None:
    arguments = program(MATRIX["collect"])["args"]
    assert arguments[0] == "collect"
    assert "--every=30s" in arguments
    assert settings(MATRIX["collect"])["dialect"] == ["native", "process"]


@pytest.mark.parametrize("mode", ["cronjob", "collect"])
def test_where_nothing_is_served_there_is_no_port_probe_nor_service(mode: str) -> None:
    values = {"mode": mode, "web": {"config": {"rate_limit": {"interval": "1s"}}, "tlsSecret": "x"}}
    container = program(values)
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
    ids=["plain", "TLS", "password", "client certificate", "said tcp", "said https"],
)
def test_probes_get_by_with_tls_passwords_and_client_certificates(
    values: Any, probe: str, scheme: str | None
) -> None:
    container = program(values)
    for name, path in (
        ("startupProbe", "/-/healthy"),
        ("livenessProbe", "/-/healthy"),
        ("readinessProbe", "/-/ready"),
    ):
        asked = container[name][probe]
        assert asked["port"] == "metrics"
        assert scheme is None or (asked["scheme"], asked["path"]) == (scheme, path)


def test_a_busy_node_is_not_a_dead_exporter() -> None:
    liveness = program()["livenessProbe"]
    assert liveness["timeoutSeconds"] >= 10
    assert liveness["periodSeconds"] * liveness["failureThreshold"] >= 180
    changed = program({"probes": {"liveness": {"timeoutSeconds": 30}}})["livenessProbe"]
    assert (changed["timeoutSeconds"], changed["periodSeconds"]) == (30, 30)


WARNINGS: list[tuple[str, Any, str]] = [
    (
        "*/30",
        {**CRONJOB, "collection": {"schedule": "*/30 * * * *"}},
        "'*/30 * * * *' is every 30 minutes, not seconds",
    ),
    ("too many nodes", MATRIX["too many nodes"], "21 GPU nodes are more than cronjob.maxNodes (20)"),
    ("nodes", MATRIX["nodes named"], "after adding GPU nodes run helm upgrade again"),
    ("no nodes", CRONJOB, "Name the nodes in cronjob.nodes"),
    ("both", MATRIX["both"], f"{PROCESS} writes one file for both, {SESSION} is suspended"),
    ("made up", MATRIX["simulator"], "what is told is made up"),
    ("host", MATRIX["host"], "gpuAccess.mode host: the container is privileged"),
    ("privileged", {"securityContext": {"privileged": True}}, "securityContext.privileged"),
    ("no host pids", {"hostPID": False}, "nobody is named"),
    (
        "host network",
        {"networkPolicy": {"enabled": True}, "hostNetwork": True},
        "networkPolicy does not hold",
    ),
    ("personal data", {"web": {"page": "full"}}, "personal data"),
    ("no rights", {"rbac": {"create": False}}, "rbac.create is off"),
    (
        "no certificate",
        {"web": {"scheme": "https"}, "podMonitor": {"enabled": True}},
        "podMonitor.tlsConfig is empty",
    ),
    ("not used", {"hostAccess": {"devices": True}}, "hostAccess is not used"),
]


@pytest.mark.parametrize(
    ("values", "said"), [case[1:] for case in WARNINGS], ids=[case[0] for case in WARNINGS]
)
def test_what_is_seldom_meant_is_said_after_the_install(values: Any, said: str) -> None:
    (line,) = [line for line in notes(values).splitlines() if said in line]
    assert line.startswith("WARNING: ")


@pytest.mark.parametrize(
    "schedule", ["*/1 * * * *", "* * * * *", "*/5 * * * *", "0 * * * *", "@hourly", "0-59/2 * * * *"]
)
def test_other_schedules_pass_without_a_warning(schedule: str) -> None:
    values = {**CRONJOB, "collection": {"schedule": schedule}}
    assert "collection.schedule" not in notes(values)
    (cronjob,) = of_kind("CronJob", values)
    assert cronjob["spec"]["schedule"] == schedule


def test_nothing_is_warned_of_by_default() -> None:
    assert "WARNING" not in notes()
    assert "Nothing scrapes it yet" in notes()
    assert "Nothing scrapes it yet" not in notes(MATRIX["monitoring"])


def test_the_commands_that_delete_what_stays_on_the_nodes_are_printed() -> None:
    assert "rm -rf /host/var/lib/gpuledger" in notes()
    assert "rm -rf /host/books" in notes({"state": {"dir": "/books"}})
    left = "rm -f /host/var/lib/node_exporter/textfile_collector/gpu_sessions.prom"
    assert left in notes(MATRIX["session monitoring"])
    assert "rm -f " not in notes({"mode": "collect"})
    for values in (CRONJOB, {"state": {"dir": ""}}, MATRIX["simulator"]):
        assert "rm -rf" not in notes(values)


def test_an_agent_is_told_of_after_the_install_and_so_are_the_volumes_that_it_leaves() -> None:
    said = notes(MATRIX["agent"] | {"agent": MATRIX["agent"]["agent"] | {"persistence": {"enabled": True}}})
    assert "port-forward svc/gpuledger-agent 9401" in said
    assert "Nothing scrapes it yet" not in said
    assert "delete pvc -l app=gpuledger-agent" in said
    assert "delete pvc" not in notes(MATRIX["agent"])


def test_exporter_and_collector_on_a_node_keep_books_of_their_own() -> None:
    kept = {
        mode: [
            volume["hostPath"]["path"]
            for volume in workload({"mode": mode})["volumes"]
            if volume["name"] == "state"
        ]
        for mode in ("daemonset", "collect", "cronjob")
    }
    assert kept == {
        "daemonset": ["/var/lib/gpuledger"],
        "collect": ["/var/lib/gpuledger/collector"],
        "cronjob": [],
    }


def test_helms_test_asks_the_service_or_looks_once() -> None:
    (pod,) = of_kind("Pod", MATRIX["TLS"])
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
    assert pod["spec"]["containers"][0]["args"][1:] == ["gpuledger.gpus.svc", "9400", "https"]
    (pod,) = of_kind("Pod", CRONJOB)
    assert "--stdout=true" in pod["spec"]["containers"][0]["args"]
    assert of_kind("Pod", {"helmTest": {"enabled": False}}) == []


def test_agent_and_operator_make_nothing_unless_asked_for() -> None:
    made = files()
    of_theirs = [text for name, text in made.items() if name.startswith(("agent/", "operator/"))]
    assert len(of_theirs) == 7
    assert [text.strip() for text in of_theirs] == [""] * 7


def test_everything_bears_the_labels_by_which_it_is_found() -> None:
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
    ],
)
def test_the_name_of_the_objects(release: str, values: Any, name: str) -> None:
    (daemonset,) = of_kind("DaemonSet", values, name=release)
    assert daemonset["metadata"]["name"] == name


def test_a_priority_class_is_made_or_named() -> None:
    (made,) = of_kind("PriorityClass", {"priorityClass": {"create": True}})
    assert made["value"] == 1_000_000
    assert workload({"priorityClass": {"create": True}})["priorityClassName"] == made["metadata"]["name"]
    assert (
        workload({"priorityClassName": "system-node-critical"})["priorityClassName"] == "system-node-critical"
    )
    assert "priorityClassName" not in workload()


def test_the_network_policy_lets_scrapers_in_and_only_questions_out() -> None:
    values = {
        "networkPolicy": {"enabled": True, "from": [{"namespaceSelector": {}}]},
        "extraPorts": [{"name": "smi", "port": 9835, "dialects": ["smi"]}],
    }
    (policy,) = of_kind("NetworkPolicy", values)
    (way_in,) = policy["spec"]["ingress"]
    assert [port["port"] for port in way_in["ports"]] == ["metrics", "smi"]
    assert way_in["from"] == [{"namespaceSelector": {}}]
    (way_out,) = policy["spec"]["egress"]
    assert [port["port"] for port in way_out["ports"]] == [53, 53, 443, 6443]
    labels = of_kind("DaemonSet", values)[0]["spec"]["template"]["metadata"]["labels"]
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
    (shut,) = of_kind("NetworkPolicy", {**CRONJOB, "networkPolicy": {"enabled": True}})
    assert shut["spec"]["ingress"] == []


def test_on_openshift_names_are_asked_for_where_its_dns_listens() -> None:
    values = {"networkPolicy": {"enabled": True}, "openshift": {"enabled": True}}
    (policy,) = of_kind("NetworkPolicy", values)
    (way_out,) = policy["spec"]["egress"]
    asked = {(port["port"], port["protocol"]) for port in way_out["ports"]}
    assert {(5353, "UDP"), (5353, "TCP"), (53, "UDP"), (53, "TCP")} <= asked
