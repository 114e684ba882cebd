"""Permissions of the operator, and objects that it does not touch."""

from __future__ import annotations

import pytest
import yaml

from cluster.control_plane import Client, ControlPlane, is_allowed
from cluster.document_002 import EXAMPLES
from cluster.operators import NAMESPACE, PATHS, WHATAP, OperatorRelease
from gpuledger.operator.crd_definitions import whatap_agent_crd
from running import wait_until
from unit.operator.schemas import without_cel_rules

CRDS = "apis/apiextensions.k8s.io/v1/customresourcedefinitions"
WHATAP_AGENTS = "whatapagents.monitoring.whatap.com"


WRITE = ("create", "patch", "delete")


@pytest.mark.parametrize(
    ("group", "resource", "namespace", "name", "allowed"),
    [
        ("", "configmaps", NAMESPACE, "", True),
        ("", "configmaps", WHATAP, "", True),
        ("", "configmaps", "team-a", "", False),
        ("apps", "daemonsets", NAMESPACE, "", True),
        ("apps", "daemonsets", "team-a", "", False),
        ("batch", "cronjobs", NAMESPACE, "", True),
        ("batch", "cronjobs", "team-a", "", False),
        ("batch", "jobs", NAMESPACE, "", False),
        ("", "secrets", NAMESPACE, "", False),
        ("", "pods", NAMESPACE, "", False),
        ("", "nodes", "", "", False),
        ("", "namespaces", "", "", False),
        ("rbac.authorization.k8s.io", "roles", NAMESPACE, "", False),
        ("rbac.authorization.k8s.io", "clusterroles", "", "", False),
    ],
)
def test_it_may_write_only_the_objects_that_it_creates(
    group: str,
    resource: str,
    namespace: str,
    name: str,
    allowed: bool,
    release: OperatorRelease,
    control_plane: ControlPlane,
) -> None:
    for verb in WRITE:
        found = is_allowed(
            control_plane, group, resource, verb, account=release.user, namespace=namespace, name=name
        )
        assert found is allowed, verb
    # The operator applies objects and never replaces them.
    assert not is_allowed(control_plane, group, resource, "update", account=release.user, namespace=namespace)


def test_it_may_not_read_secrets_and_only_list_nodes(
    release: OperatorRelease, control_plane: ControlPlane
) -> None:
    def may(verb: str, resource: str) -> bool:
        return is_allowed(control_plane, "", resource, verb, account=release.user, namespace=NAMESPACE)

    verbs = ("get", "list", "watch")
    assert [verb for verb in verbs if may(verb, "secrets")] == []
    # The nodes for Jobs are counted.
    assert [verb for verb in verbs if may(verb, "nodes")] == ["list"]
    # It reads the pods of its agents and exporters, only where it creates them, and watches none.
    for verb, namespace, allowed in (
        ("get", NAMESPACE, True),
        ("list", NAMESPACE, True),
        ("watch", NAMESPACE, False),
        ("get", "kube-system", False),
        ("list", "kube-system", False),
    ):
        assert (
            is_allowed(control_plane, "", "pods", verb, account=release.user, namespace=namespace) is allowed
        )


def test_it_may_bind_only_the_roles_of_the_chart(
    release: OperatorRelease, control_plane: ControlPlane
) -> None:
    token = control_plane.create_token(NAMESPACE, release.name)
    account = Client(control_plane.url, control_plane.ca_file, token)
    path = "apis/rbac.authorization.k8s.io/v1/clusterrolebindings"

    def bind(role: str) -> int:
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role}
        body = {"metadata": {"name": "tried"}, "roleRef": reference, "subjects": []}
        return account.request("POST", path, body, dryRun="All").status_code

    roles = control_plane.admin.call("GET", "apis/rbac.authorization.k8s.io/v1/clusterroles")["items"]
    names = [one["metadata"]["name"] for one in roles]
    try:
        allowed = {name for name in names if bind(name) == 201}
    finally:
        account.close()
    bindings = control_plane.admin.call("GET", path)["items"]
    public = {
        one["roleRef"]["name"]
        for one in bindings
        for subject in one.get("subjects") or ()
        if subject["name"].startswith(("system:authenticated", "system:serviceaccounts"))
    }
    # Kubernetes allows everyone to bind their own permissions, public roles, and roles without rules.
    empty = {one["metadata"]["name"] for one in roles if not one.get("rules")}
    assert allowed - {release.name, *public, *empty} == {
        "operated-gpuledger",
        "operated-gpuledger-agent",
        "operated-gpuledger-agent-own",
    }


def test_a_crd_of_another_product_and_its_resources_are_left_unchanged(
    release: OperatorRelease, control_plane: ControlPlane
) -> None:
    api = control_plane.admin
    api.call("PATCH", f"{CRDS}/{WHATAP_AGENTS}", {"metadata": {"labels": {_PART_OF: None}}})
    before = api.call("GET", f"{CRDS}/{WHATAP_AGENTS}")
    # Other tests' operators have written to this audit log before.
    already = len(release.audited_requests())
    with release.operators() as start:
        operator = start().wait_leads()
        operator.program.wait_line("belongs to another operator and is left unchanged")
        release.apply("WhatapAgent", "whatap", EXAMPLES["simple"])
        release.apply("GpuMonitor", "main", {"agent": {"enabled": False}})
        release.wait_applied("GpuMonitor", "main")
        assert operator.value('gpuledger_operator_served{kind="WhatapAgent"}') == 0
        assert operator.value('gpuledger_operator_served{kind="GpuMonitor"}') == 1
        theirs = api.call("GET", f"{PATHS['WhatapAgent']}/whatap")
        assert "finalizers" not in theirs["metadata"]
        assert "status" not in theirs
        assert [one for one in release.managed_objects() if "whatap" in one] == []
        assert api.call("GET", f"{CRDS}/{WHATAP_AGENTS}") == before
        events = release.audited_requests()[already:]
        assert [event for event in events if event["objectRef"]["resource"] == "whatapagents"] == []
        api.call("DELETE", f"{PATHS['WhatapAgent']}/whatap")
        release.delete("GpuMonitor", "main")


_PART_OF = "app.kubernetes.io/part-of"


def test_the_installed_crd_matches_the_schema_of_the_program(
    release: OperatorRelease, control_plane: ControlPlane
) -> None:
    found = control_plane.admin.call("GET", f"{CRDS}/{WHATAP_AGENTS}")
    shipped = found["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    ours = whatap_agent_crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    assert shipped == without_cel_rules(ours)


def test_the_operator_survives_deletion_and_recreation_of_its_crd(
    release: OperatorRelease, control_plane: ControlPlane
) -> None:
    api, path = control_plane.admin, f"{CRDS}/gpumonitors.gpuledger.dev"
    with release.operators() as start:
        operator = start().wait_leads()
        release.apply("GpuMonitor", "main", {"agent": {"enabled": False}})
        release.wait_applied("GpuMonitor", "main")
        found = api.call("GET", path)
        api.call("DELETE", path)
        # Deletes the CRD's resources and their objects too.
        wait_until(lambda: release.managed_objects() == [], "the objects to be deleted")
        wait_until(lambda: api.request("GET", path).status_code == 404, "the CRD to be deleted")
        metadata = {key: found["metadata"][key] for key in ("name", "labels", "annotations")}
        api.call("POST", CRDS, {**found, "metadata": metadata, "status": None})
        wait_until(lambda: api.request("GET", PATHS["GpuMonitor"]).is_success, "the CRD to be served")
        release.apply("GpuMonitor", "main", {"agent": {"enabled": False}})
        release.wait_condition("GpuMonitor", "main", "Available", "False", "Starting")
        assert operator.program.process.poll() is None
        release.delete("GpuMonitor", "main")


def test_without_a_receiver_exporters_run_and_the_status_reports_it(
    release: OperatorRelease,
) -> None:
    written = release.config.read_text()
    config = yaml.safe_load(written)
    config["defaultRemoteWrite"] = []
    try:
        with release.operators() as start:
            release.config.write_text(yaml.safe_dump(config))
            start().wait_leads()
            release.apply("GpuMonitor", "main", {})
            release.wait_condition("GpuMonitor", "main", "ReceiverMissing", "True", "NoRemoteWrite")
            assert [
                one for one in release.managed_objects() if one.startswith(("DaemonSet", "StatefulSet"))
            ] == [f"DaemonSet {NAMESPACE}/gpumonitor-main-exporter"]
            release.delete_all()
    finally:
        release.config.write_text(written)
