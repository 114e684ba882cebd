"""The operator against a real API server, with the rights that the chart gives it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cluster.control_plane import ControlPlane, Json
from cluster.document_002 import EXAMPLES, HYBRID
from cluster.operators import NAMESPACE, PATHS, WHATAP, Installed, RunningOperator, installed
from running import wait_until
from sockets import listening, named_sockets

Start = Callable[..., RunningOperator]
EXPORTER = "gpumonitor-main-exporter"
AGENT = "gpumonitor-main-agent"


@pytest.fixture(scope="module")
def release(control_plane: ControlPlane, folder: Path) -> Iterator[Installed]:
    with installed(control_plane, folder / "operator") as made:
        yield made


@pytest.fixture(scope="module")
def shared(release: Installed) -> Iterator[RunningOperator]:
    """One operator for all tests that need no other."""
    with release.operators() as start:
        yield start("--status-interval=100ms").wait_leads()


@pytest.fixture
def cluster(release: Installed, shared: RunningOperator) -> Iterator[Installed]:
    """With an operator; no resource is left after a test, and nothing that was made for one."""
    yield release
    release.delete_all()
    assert release.made() == []


def daemon_set(cluster: Installed) -> Json:
    return cluster.get("DaemonSet", "whatap-node-agent", WHATAP)


WHATAP_EXPORTER = [
    "ClusterRoleBinding -/whatap-node-agent",
    f"ConfigMap {WHATAP}/dcgm-exporter-csv",
    f"DaemonSet {WHATAP}/whatap-node-agent",
    f"ServiceAccount {WHATAP}/whatap-node-agent",
]
WHATAP_AGENT = [
    "ClusterRoleBinding -/whatap-open-agent-role-binding",
    f"ConfigMap {WHATAP}/whatap-open-agent-config",
    f"RoleBinding {WHATAP}/whatap-open-agent-role-binding",
    f"Service {WHATAP}/whatap-open-agent",
    f"ServiceAccount {WHATAP}/whatap-open-agent-sa",
    f"StatefulSet {WHATAP}/whatap-open-agent",
]


@pytest.mark.parametrize(
    ("example", "made"),
    [
        ("scraped by name", [*WHATAP_EXPORTER, *WHATAP_AGENT]),
        ("simple", [*WHATAP_EXPORTER, *WHATAP_AGENT]),
        ("a customer's own exporters", WHATAP_AGENT),
        (HYBRID, [*WHATAP_EXPORTER, *WHATAP_AGENT]),
        ("tolerations", WHATAP_EXPORTER),
    ],
)
def test_each_example_of_the_document_gives_what_it_promises(
    example: str, made: list[str], cluster: Installed
) -> None:
    cluster.apply("WhatapAgent", "whatap", EXAMPLES[example])
    assert cluster.wait_made("WhatapAgent", "whatap") == sorted(made)
    conditions = cluster.conditions("WhatapAgent", "whatap")
    assert conditions["Degraded"] == ("False", "AsWanted")
    assert conditions["ReceiverMissing"] == ("False", "ReceiverNamed")
    told = cluster.wait_condition("WhatapAgent", "whatap", "FieldsIgnored", "True", "NotServed")
    assert "spec.features.k8sAgent.nodeAgent.enabled" in told["message"]


def test_the_exporter_is_made_as_the_document_has_it(cluster: Installed) -> None:
    cluster.apply("WhatapAgent", "whatap", EXAMPLES["tolerations"])
    cluster.wait_made("WhatapAgent", "whatap")
    template = daemon_set(cluster)["spec"]["template"]
    (container,) = template["spec"]["containers"]
    assert template["metadata"]["labels"]["name"] == "whatap-node-agent"
    assert container["name"] == "dcgm-exporter"
    (port,) = container["ports"]
    assert (port["name"], port["containerPort"]) == ("metrics", 9400)
    environment = {one["name"]: one.get("value") for one in container["env"]}
    assert environment["DCGM_EXPORTER_LISTEN"] == ":9400"
    assert environment["DCGM_EXPORTER_KUBERNETES"] == "true"
    assert environment["DCGM_EXPORTER_COLLECTORS"] == "/etc/dcgm-exporter/whatap-dcgm-exporter.csv"
    mounts = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
    assert mounts["pod-gpu-resources"] == "/var/lib/kubelet/pod-resources"
    assert {"key": "gpu", "operator": "Exists", "effect": "NoSchedule"} in template["spec"]["tolerations"]


MONITORS: dict[str, tuple[Json, list[str]]] = {
    "all defaults": ({}, ["exporter", "agent"]),
    "a customer's own exporters": ({"exporter": {"enabled": False}}, ["agent"]),
    "exporters alone": ({"agent": {"enabled": False}}, ["exporter"]),
    "Prometheus as the engine": ({"agent": {"engine": "prometheus"}}, ["exporter", "agent"]),
    "several agents with volumes": (
        {"agent": {"replicas": 3, "persistence": {"size": "1Gi"}}},
        ["exporter", "agent"],
    ),
}
PARTS = {
    "exporter": [
        f"ClusterRoleBinding -/{EXPORTER}",
        f"ConfigMap {NAMESPACE}/{EXPORTER}",
        f"DaemonSet {NAMESPACE}/{EXPORTER}",
        f"Service {NAMESPACE}/{EXPORTER}",
        f"ServiceAccount {NAMESPACE}/{EXPORTER}",
    ],
    "agent": [
        f"ClusterRoleBinding -/{AGENT}",
        f"ConfigMap {NAMESPACE}/{AGENT}",
        f"RoleBinding {NAMESPACE}/{AGENT}",
        f"Service {NAMESPACE}/{AGENT}",
        f"ServiceAccount {NAMESPACE}/{AGENT}",
        f"StatefulSet {NAMESPACE}/{AGENT}",
    ],
}


@pytest.mark.parametrize("kind", MONITORS)
def test_a_gpu_monitor_of_each_kind_is_made(kind: str, cluster: Installed) -> None:
    spec, parts = MONITORS[kind]
    cluster.apply("GpuMonitor", "main", spec)
    assert cluster.wait_made("GpuMonitor", "main") == sorted(one for part in parts for one in PARTS[part])
    assert cluster.conditions("GpuMonitor", "main")["Degraded"] == ("False", "AsWanted")


def test_everything_names_its_monitor_as_its_owner(cluster: Installed) -> None:
    uid = cluster.apply("GpuMonitor", "main", {})["metadata"]["uid"]
    for line in cluster.wait_made("GpuMonitor", "main"):
        kind, _, place = line.partition(" ")
        namespace, _, name = place.partition("/")
        (reference,) = cluster.get(kind, name, namespace.strip("-"))["metadata"]["ownerReferences"]
        assert reference["uid"] == uid


def test_the_status_counts_nodes_and_exporters(cluster: Installed) -> None:
    cluster.apply("GpuMonitor", "main", {"agent": {"enabled": False}})
    cluster.wait_made("GpuMonitor", "main")
    cluster.daemon_set_status(EXPORTER, desiredNumberScheduled=8, updatedNumberScheduled=8, numberReady=3)
    cluster.wait_condition("GpuMonitor", "main", "Progressing", "True", "RollingOut")
    cluster.wait_condition("GpuMonitor", "main", "Available", "True", "Running")
    cluster.ready("DaemonSet", EXPORTER, 8)
    told = cluster.wait_condition("GpuMonitor", "main", "Progressing", "False", "Complete")
    assert told["message"] == "8 of 8 exporters are ready"
    status = (cluster.read("GpuMonitor", "main") or {})["status"]
    assert (status["gpuNodes"], status["exportersReady"]) == (8, 8)
    # Nobody was asked: absent, not 0.
    assert not {"targetsFound", "targetsUp", "lastError"} & status.keys()


def _image(body: Json) -> None:
    body["spec"]["template"]["spec"]["containers"][0]["image"] = "other:1"


def _argument(body: Json) -> None:
    body["spec"]["template"]["spec"]["containers"][0]["args"] = ["serve", "--source=simulator"]


def _data(body: Json) -> None:
    body["data"] = dict.fromkeys(body["data"], "edited: by hand")


def _label(body: Json) -> None:
    del body["metadata"]["labels"]["app.kubernetes.io/managed-by"]


def _owner(body: Json) -> None:
    body["metadata"]["ownerReferences"] = []


def _selector(body: Json) -> None:
    body["spec"]["selector"] = {"nobody": "at-all"}


def _subjects(body: Json) -> None:
    body["subjects"] = [{"kind": "Group", "name": "everybody", "apiGroup": "rbac.authorization.k8s.io"}]


EDITS: dict[str, tuple[str, str, Callable[[Json], None]]] = {
    "an image": ("DaemonSet", EXPORTER, _image),
    "arguments": ("DaemonSet", EXPORTER, _argument),
    "the configuration": ("ConfigMap", AGENT, _data),
    "the operator's label": ("Service", AGENT, _label),
    "the owner": ("ServiceAccount", AGENT, _owner),
    "whom a service chooses": ("Service", EXPORTER, _selector),
    "who has a role": ("ClusterRoleBinding", AGENT, _subjects),
}


@pytest.mark.parametrize("edit", EDITS)
def test_a_hand_edit_is_repaired(edit: str, cluster: Installed) -> None:
    kind, name, change = EDITS[edit]
    cluster.apply("GpuMonitor", "main", {})
    cluster.wait_made("GpuMonitor", "main")
    before = cluster.get(kind, name, NAMESPACE)
    edited = cluster.get(kind, name, NAMESPACE)
    change(edited)
    cluster.api.call("PUT", cluster.path(kind, name, NAMESPACE), edited)

    def repaired() -> bool:
        return _content(cluster.get(kind, name, NAMESPACE)) == _content(before)

    wait_until(repaired, f"{kind} {name} to be repaired", 30)


def _content(body: Json) -> Json:
    counted = ("resourceVersion", "generation", "managedFields")
    metadata = {key: value for key, value in body["metadata"].items() if key not in counted}
    # The API server counts templates there.
    metadata.get("annotations", {}).pop("deprecated.daemonset.template.generation", None)
    return {**body, "metadata": metadata, "status": None}


@pytest.mark.parametrize("line", [one for part in PARTS.values() for one in part])
def test_what_is_deleted_by_hand_comes_back(line: str, cluster: Installed) -> None:
    kind, _, place = line.partition(" ")
    namespace, _, name = place.partition("/")
    cluster.apply("GpuMonitor", "main", {})
    cluster.wait_made("GpuMonitor", "main")
    path = cluster.path(kind, name, namespace.strip("-"))
    uid = cluster.api.call("GET", path)["metadata"]["uid"]
    cluster.api.call("DELETE", path)

    def is_back() -> bool:
        answer = cluster.api.ask("GET", path)
        return answer.is_success and answer.json()["metadata"]["uid"] != uid

    wait_until(is_back, f"{line} to come back", 30)


def test_what_is_not_ours_on_an_object_is_left_to_others(cluster: Installed, shared: RunningOperator) -> None:
    cluster.apply("GpuMonitor", "main", {})
    cluster.wait_made("GpuMonitor", "main")
    note = {"metadata": {"annotations": {"example.com/note": "kept"}}}
    cluster.api.call("PATCH", cluster.path("DaemonSet", EXPORTER), note)
    # A repair after it shows that it was seen.
    cluster.api.call("DELETE", cluster.path("Service", EXPORTER))
    wait_until(lambda: cluster.api.ask("GET", cluster.path("Service", EXPORTER)).is_success, "the Service")
    assert (
        cluster.get("DaemonSet", EXPORTER)["metadata"]["annotations"]["example.com/note"]
        == note["metadata"]["annotations"]["example.com/note"]
    )


def test_who_goes_on_changing_it_is_let_wait(cluster: Installed, shared: RunningOperator) -> None:
    cluster.apply("GpuMonitor", "main", {})
    cluster.wait_made("GpuMonitor", "main")
    path = cluster.path("ConfigMap", AGENT)
    began = shared.value("gpuledger_operator_objects_repaired_total")
    for _ in range(5):
        cluster.api.call("PATCH", path, {"data": {"agent.yaml": "mine"}})
        wait_until(lambda: cluster.api.call("GET", path)["data"]["agent.yaml"] != "mine", "a repair", 30)
    cluster.api.call("PATCH", path, {"data": {"agent.yaml": "mine"}})
    note = {"metadata": {"labels": {"seen": "yes"}}}
    cluster.api.call("PATCH", f"{PATHS['GpuMonitor']}/main", note)
    wait_until(
        lambda: shared.value("gpuledger_operator_objects_repaired_total") >= began + 6, "the sixth repair", 30
    )
    repairs = cluster.api.call("GET", "api/v1/namespaces/default/events", fieldSelector="reason=Repaired")
    mine = [one for one in repairs["items"] if one["involvedObject"]["uid"] == _uid(cluster)]
    assert len(mine) == 1, "six repairs of one object are one event"


def _uid(cluster: Installed) -> str:
    return str((cluster.read("GpuMonitor", "main") or {})["metadata"]["uid"])


REFUSED: dict[str, Json] = {
    "an engine that there is not": {"agent": {"engine": "other"}},
    "a port that is none": {"exporter": {"port": 70000}},
    "a word for a number": {"agent": {"replicas": "three"}},
}


@pytest.mark.parametrize("wrong", REFUSED)
def test_the_schema_refuses_what_is_wrong_at_once(wrong: str, cluster: Installed) -> None:
    body = {"apiVersion": "gpuledger.dev/v1alpha1", "kind": "GpuMonitor", "metadata": {"name": "main"}}
    answer = cluster.api.ask("POST", PATHS["GpuMonitor"], {**body, "spec": REFUSED[wrong]})
    assert answer.status_code == 422
    assert "spec." in answer.json()["message"]


# What a schema cannot say, and only the API server knows.
BEYOND: dict[str, tuple[Json, str, str]] = {
    "more asked for than allowed": (
        {"exporter": {"resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}}},
        "Rejected",
        "must be less than or equal to cpu limit",
    ),
    "a flag that there is not": (
        {"exporter": {"args": ["--intervall=5s"]}},
        "InvalidSpec",
        "spec.exporter.args: unknown flag '--intervall'",
    ),
    "a GPU for the exporter": (
        {"exporter": {"resources": {"limits": {"nvidia.com/gpu": 1}}}},
        "InvalidSpec",
        "spec.exporter.resources.limits.nvidia.com/gpu",
    ),
    "a password in a URL": (
        {"agent": {"remoteWrite": [{"url": "https://ann:hunter2@store/write"}]}},
        "InvalidSpec",
        "spec.agent.remoteWrite[0].url",
    ),
    "a relabelling that is none": (
        {
            "agent": {
                "targets": [
                    {
                        "targetName": "t",
                        "type": "StaticEndpoints",
                        "endpoints": [{"address": "a:1", "metricRelabelConfigs": [{"regex": "("}]}],
                    }
                ]
            }
        },
        "InvalidSpec",
        "spec.agent.targets[0].endpoints[0].metricRelabelConfigs[0].regex",
    ),
}


@pytest.mark.parametrize("wrong", BEYOND)
def test_a_spec_that_cannot_be_is_told_and_the_last_good_goes_on(wrong: str, cluster: Installed) -> None:
    cluster.apply("GpuMonitor", "main", {})
    made = cluster.wait_made("GpuMonitor", "main")
    versions = _versions(cluster, made)
    spec, reason, message = BEYOND[wrong]
    cluster.apply("GpuMonitor", "main", spec)
    told = cluster.wait_condition("GpuMonitor", "main", "Degraded", "True", reason)
    assert message in told["message"]
    assert message in (cluster.read("GpuMonitor", "main") or {})["status"]["lastError"]
    assert _versions(cluster, cluster.made()) == versions
    cluster.apply("GpuMonitor", "main", {"agent": {"enabled": False}})
    cluster.wait_condition("GpuMonitor", "main", "Degraded", "False", "AsWanted")
    assert cluster.made() == PARTS["exporter"]
    assert "lastError" not in (cluster.read("GpuMonitor", "main") or {})["status"]


def _versions(cluster: Installed, made: list[str]) -> dict[str, str]:
    found = {}
    for line in made:
        kind, _, place = line.partition(" ")
        namespace, _, name = place.partition("/")
        found[line] = cluster.get(kind, name, namespace.strip("-"))["metadata"]["resourceVersion"]
    return found


def test_of_two_that_choose_the_same_nodes_the_later_is_refused(cluster: Installed) -> None:
    first: Json = {"exporter": {"nodeSelector": {"pool": "a"}}, "agent": {"enabled": False}}
    cluster.apply("GpuMonitor", "main", first)
    made = cluster.wait_made("GpuMonitor", "main")
    cluster.apply("GpuMonitor", "other", first)
    told = cluster.wait_condition("GpuMonitor", "other", "Degraded", "True", "Overlap")
    assert "GpuMonitor main" in told["message"]
    assert cluster.made() == made
    cluster.apply("GpuMonitor", "other", {**first, "exporter": {"nodeSelector": {"pool": "b"}}})
    cluster.wait_condition("GpuMonitor", "other", "Degraded", "False", "AsWanted")
    assert len(cluster.made()) == 2 * len(made)


def test_the_earlier_that_comes_to_the_nodes_of_the_later_has_them_alone(cluster: Installed) -> None:
    cluster.apply(
        "GpuMonitor", "main", {"exporter": {"nodeSelector": {"pool": "a"}}, "agent": {"enabled": False}}
    )
    cluster.wait_made("GpuMonitor", "main")
    cluster.apply("GpuMonitor", "other", {"exporter": {"nodeSelector": {"pool": "b"}}})
    cluster.wait_made("GpuMonitor", "other")
    cluster.apply("GpuMonitor", "main", {"agent": {"enabled": False}})
    cluster.wait_condition("GpuMonitor", "other", "Degraded", "True", "Overlap")
    theirs = f"DaemonSet {NAMESPACE}/gpumonitor-other-exporter"
    wait_until(lambda: theirs not in cluster.made(), "the later one's exporters to be gone")
    wait_until(lambda: "taken away" in _last_error(cluster, "other"), "that to be told")
    assert f"DaemonSet {NAMESPACE}/{EXPORTER}" in cluster.made()
    assert f"StatefulSet {NAMESPACE}/gpumonitor-other-agent" in cluster.made()
    cluster.apply(
        "GpuMonitor", "main", {"exporter": {"nodeSelector": {"pool": "a"}}, "agent": {"enabled": False}}
    )
    wait_until(lambda: theirs in cluster.made(), "the later one's exporters to come back")
    cluster.wait_condition("GpuMonitor", "other", "Degraded", "False", "AsWanted")


def _last_error(cluster: Installed, name: str) -> str:
    return str((cluster.read("GpuMonitor", name) or {})["status"].get("lastError"))


def test_the_later_gets_its_nodes_when_the_first_is_gone(cluster: Installed) -> None:
    spec: Json = {"agent": {"enabled": False}}
    cluster.apply("GpuMonitor", "main", spec)
    cluster.wait_made("GpuMonitor", "main")
    cluster.apply("GpuMonitor", "other", spec)
    cluster.wait_condition("GpuMonitor", "other", "Degraded", "True", "Overlap")
    cluster.delete("GpuMonitor", "main")
    cluster.wait_condition("GpuMonitor", "other", "Available", "False", "Starting")
    assert f"DaemonSet {NAMESPACE}/gpumonitor-other-exporter" in cluster.made()


def test_an_object_of_somebody_else_is_not_taken(cluster: Installed) -> None:
    theirs = {"metadata": {"name": EXPORTER}, "data": {"theirs": "kept"}}
    path = f"api/v1/namespaces/{NAMESPACE}/configmaps"
    cluster.api.call("POST", path, theirs)
    cluster.apply("GpuMonitor", "main", {})
    told = cluster.wait_condition("GpuMonitor", "main", "Degraded", "True", "Rejected")
    assert f"ConfigMap {NAMESPACE}/{EXPORTER} is there already" in told["message"]
    assert cluster.made() == []
    assert cluster.get("ConfigMap", EXPORTER)["data"] == {"theirs": "kept"}
    cluster.api.call("DELETE", f"{path}/{EXPORTER}")
    cluster.wait_condition("GpuMonitor", "main", "Degraded", "False", "AsWanted")


def test_a_field_that_cannot_be_changed_makes_the_object_anew_and_keeps_its_pods(cluster: Installed) -> None:
    cluster.apply("GpuMonitor", "main", {})
    cluster.wait_made("GpuMonitor", "main")
    before = cluster.get("StatefulSet", AGENT)
    cluster.apply("GpuMonitor", "main", {"agent": {"persistence": {"size": "1Gi"}}})

    def going() -> list[str]:
        metadata = cluster.get("StatefulSet", AGENT)["metadata"]
        return list(metadata.get("finalizers") or ()) if "deletionTimestamp" in metadata else []

    # Its pods are let go, not deleted: the garbage collector does so, which does not run here.
    assert wait_until(going, "the old one to go", 30) == ["orphan"]
    cluster.api.call("PATCH", cluster.path("StatefulSet", AGENT), {"metadata": {"finalizers": None}})

    def anew() -> Json | None:
        answer = cluster.api.ask("GET", cluster.path("StatefulSet", AGENT))
        found: Json = answer.json()
        return found if answer.is_success and found["metadata"]["uid"] != before["metadata"]["uid"] else None

    after = wait_until(anew, "the new one", 30)
    assert after["spec"]["selector"] == before["spec"]["selector"]
    assert [one["metadata"]["name"] for one in after["spec"]["volumeClaimTemplates"]] == ["queue"]
    cluster.wait_condition("GpuMonitor", "main", "Degraded", "False", "AsWanted")


def test_the_list_of_metrics_is_edited_by_its_users(cluster: Installed) -> None:
    cluster.apply("WhatapAgent", "whatap", EXAMPLES["tolerations"])
    cluster.wait_made("WhatapAgent", "whatap")
    edited = {"data": {"whatap-gpu.csv": "DCGM_FI_DEV_GPU_TEMP, gauge, edited"}}
    cluster.api.call("PATCH", cluster.path("ConfigMap", "dcgm-exporter-csv", WHATAP), edited)
    cluster.api.call("DELETE", cluster.path("DaemonSet", "whatap-node-agent", WHATAP))
    wait_until(
        lambda: cluster.api.ask("GET", cluster.path("DaemonSet", "whatap-node-agent", WHATAP)).is_success,
        "the DaemonSet to come back",
    )
    assert cluster.get("ConfigMap", "dcgm-exporter-csv", WHATAP)["data"] == edited["data"]


def test_nothing_is_written_where_nothing_changes(cluster: Installed, shared: RunningOperator) -> None:
    cluster.apply("GpuMonitor", "main", {})
    cluster.wait_made("GpuMonitor", "main")
    looked = shared.value('gpuledger_operator_reconciles_total{result="success"}')
    before = len(cluster.asked())
    for number in range(20):
        cluster.api.call(
            "PATCH", f"{PATHS['GpuMonitor']}/main", {"metadata": {"annotations": {"n": f"{number}"}}}
        )
    wait_until(
        lambda: shared.value('gpuledger_operator_reconciles_total{result="success"}') > looked, "another look"
    )
    asked = [one for one in cluster.asked()[before:] if one["verb"] != "watch"]
    assert asked == []


def test_events_tell_what_was_made_and_what_is_wrong(cluster: Installed) -> None:
    cluster.apply("GpuMonitor", "main", {})
    cluster.wait_made("GpuMonitor", "main")
    cluster.apply("GpuMonitor", "main", BEYOND["more asked for than allowed"][0])
    cluster.wait_condition("GpuMonitor", "main", "Degraded", "True", "Rejected")

    def told() -> list[tuple[str, str]]:
        events = cluster.api.call("GET", "api/v1/namespaces/default/events")["items"]
        mine = [one for one in events if one["involvedObject"].get("uid") == _uid(cluster)]
        return sorted((one["type"], one["reason"]) for one in mine)

    wait_until(
        lambda: told() == [("Normal", "Applied"), ("Warning", "Rejected")], f"two events, not {told()}"
    )


def test_probes_and_metrics_are_served(shared: RunningOperator) -> None:
    assert shared.get("/-/healthy").status_code == 200
    assert shared.get("/-/ready").status_code == 200
    assert shared.value('gpuledger_operator_served{kind="WhatapAgent"}') == 1
    assert shared.value('gpuledger_operator_api_requests_total{method="GET",code="403"}') == 0
    assert listening(shared.pid) == {f"tcp {shared.url.removeprefix('http://')}"}
    assert named_sockets(shared.pid) == set()
