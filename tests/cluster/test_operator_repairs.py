"""A running operator reverts manual edits of its objects, and creates deleted ones again."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cluster.control_plane import Json
from cluster.operators import (
    AGENT,
    CRON_JOB,
    EXPORTER,
    NAMESPACE,
    PARTS,
    PATHS,
    OperatorRelease,
    RunningOperator,
)
from running import wait_until


def _image(body: Json) -> None:
    body["spec"]["template"]["spec"]["containers"][0]["image"] = "other:1"


def _argument(body: Json) -> None:
    body["spec"]["template"]["spec"]["containers"][0]["args"] = ["serve", "--source=simulator"]


def _data(body: Json) -> None:
    body["data"] = dict.fromkeys(body["data"], "edited: manually")


def _label(body: Json) -> None:
    del body["metadata"]["labels"]["app.kubernetes.io/managed-by"]


def _owner(body: Json) -> None:
    body["metadata"]["ownerReferences"] = []


def _selector(body: Json) -> None:
    body["spec"]["selector"] = {"matches": "nothing"}


def _subjects(body: Json) -> None:
    body["subjects"] = [{"kind": "Group", "name": "everybody", "apiGroup": "rbac.authorization.k8s.io"}]


EDITS: dict[str, tuple[str, str, Callable[[Json], None]]] = {
    "an image": ("DaemonSet", EXPORTER, _image),
    "arguments": ("DaemonSet", EXPORTER, _argument),
    "the configuration": ("ConfigMap", AGENT, _data),
    "the operator's label": ("Service", AGENT, _label),
    "the owner": ("ServiceAccount", AGENT, _owner),
    "the selector of a service": ("Service", EXPORTER, _selector),
    "the subjects of a role binding": ("ClusterRoleBinding", AGENT, _subjects),
}


@pytest.mark.parametrize("edit", EDITS)
def test_a_manual_edit_is_reverted(edit: str, cluster: OperatorRelease) -> None:
    kind, name, change = EDITS[edit]
    cluster.apply("GpuMonitor", "main", {})
    cluster.wait_applied("GpuMonitor", "main")
    before = cluster.get(kind, name, NAMESPACE)
    edited = cluster.get(kind, name, NAMESPACE)
    change(edited)
    cluster.api.call("PUT", cluster.path(kind, name, NAMESPACE), edited)

    def repaired() -> bool:
        return _content(cluster.get(kind, name, NAMESPACE)) == _content(before)

    wait_until(repaired, f"{kind} {name} to be repaired")


def _content(body: Json) -> Json:
    counted = ("resourceVersion", "generation", "managedFields")
    metadata = {key: value for key, value in body["metadata"].items() if key not in counted}
    # The API server counts the changes of a template there.
    metadata.get("annotations", {}).pop("deprecated.daemonset.template.generation", None)
    return {**body, "metadata": metadata, "status": None}


@pytest.mark.parametrize("line", dict.fromkeys(one for part in PARTS.values() for one in part))
def test_a_manually_deleted_object_is_recreated(line: str, cluster: OperatorRelease) -> None:
    kind, _, place = line.partition(" ")
    namespace, _, name = place.partition("/")
    cluster.apply("GpuMonitor", "main", CRON_JOB if kind == "CronJob" else {})
    cluster.wait_applied("GpuMonitor", "main")
    path = cluster.path(kind, name, namespace.strip("-"))
    uid = cluster.api.call("GET", path)["metadata"]["uid"]
    # By default, a CronJob first waits for a controller that orphans its Jobs.
    cluster.api.call("DELETE", path, propagationPolicy="Background")

    def is_back() -> bool:
        answer = cluster.api.request("GET", path)
        return answer.is_success and answer.json()["metadata"]["uid"] != uid

    wait_until(is_back, f"{line} to come back")


def test_fields_of_other_managers_are_kept(cluster: OperatorRelease, shared: RunningOperator) -> None:
    cluster.apply("GpuMonitor", "main", {})
    cluster.wait_applied("GpuMonitor", "main")
    note = {"metadata": {"annotations": {"example.com/note": "kept"}}}
    cluster.api.call("PATCH", cluster.path("DaemonSet", EXPORTER), note)
    # A later repair shows that the operator has seen the change.
    cluster.api.call("DELETE", cluster.path("Service", EXPORTER))
    wait_until(
        lambda: cluster.api.request("GET", cluster.path("Service", EXPORTER)).is_success, "the Service"
    )
    assert (
        cluster.get("DaemonSet", EXPORTER)["metadata"]["annotations"]["example.com/note"]
        == note["metadata"]["annotations"]["example.com/note"]
    )


def test_repairs_of_repeated_edits_cause_one_event(cluster: OperatorRelease, shared: RunningOperator) -> None:
    cluster.apply("GpuMonitor", "main", {})
    cluster.wait_applied("GpuMonitor", "main")
    path = cluster.path("ConfigMap", AGENT)
    began = shared.value("gpuledger_operator_objects_repaired_total")
    for _ in range(5):
        cluster.api.call("PATCH", path, {"data": {"agent.yaml": "mine"}})
        wait_until(lambda: cluster.api.call("GET", path)["data"]["agent.yaml"] != "mine", "a repair")
    cluster.api.call("PATCH", path, {"data": {"agent.yaml": "mine"}})
    note = {"metadata": {"labels": {"seen": "yes"}}}
    cluster.api.call("PATCH", f"{PATHS['GpuMonitor']}/main", note)
    wait_until(
        lambda: shared.value("gpuledger_operator_objects_repaired_total") >= began + 6, "the sixth repair", 30
    )
    repairs = cluster.api.call("GET", "api/v1/namespaces/default/events", fieldSelector="reason=Repaired")
    mine = [
        one for one in repairs["items"] if one["involvedObject"]["uid"] == cluster.uid("GpuMonitor", "main")
    ]
    assert len(mine) == 1, "six repairs of one object are one event"
