"""What the operator may do, and what it leaves alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from cluster.control_plane import Client, ControlPlane, may
from cluster.document_002 import EXAMPLES
from cluster.operators import NAMESPACE, PATHS, WHATAP, Installed, installed
from gpuledger.operator.crd_definitions import whatap_agent_crd
from running import wait_until

DEFINITIONS = "apis/apiextensions.k8s.io/v1/customresourcedefinitions"
WHATAP_AGENTS = "whatapagents.monitoring.whatap.com"


@pytest.fixture(scope="module")
def release(control_plane: ControlPlane, folder: Path) -> Iterator[Installed]:
    with installed(control_plane, folder / "limits") as made:
        yield made


WRITE = ("create", "patch", "delete")


@pytest.mark.parametrize(
    ("group", "resource", "namespace", "name", "allowed"),
    [
        ("", "configmaps", NAMESPACE, "", True),
        ("", "configmaps", WHATAP, "", True),
        ("", "configmaps", "team-a", "", False),
        ("apps", "daemonsets", NAMESPACE, "", True),
        ("apps", "daemonsets", "team-a", "", False),
        ("", "secrets", NAMESPACE, "", False),
        ("", "pods", NAMESPACE, "", False),
        ("", "nodes", "", "", False),
        ("", "namespaces", "", "", False),
        ("rbac.authorization.k8s.io", "roles", NAMESPACE, "", False),
        ("rbac.authorization.k8s.io", "clusterroles", "", "", False),
    ],
)
def test_it_may_write_what_it_makes_and_nothing_else(
    group: str,
    resource: str,
    namespace: str,
    name: str,
    allowed: bool,
    release: Installed,
    control_plane: ControlPlane,
) -> None:
    for verb in WRITE:
        found = may(
            control_plane, group, resource, verb, account=release.user, namespace=namespace, name=name
        )
        assert found is allowed, verb
    # What it makes it applies, and never replaces.
    assert not may(control_plane, group, resource, "update", account=release.user, namespace=namespace)


def test_it_reads_no_secret_and_no_node(release: Installed, control_plane: ControlPlane) -> None:
    for verb in ("get", "list", "watch"):
        for resource in ("secrets", "nodes"):
            assert not may(control_plane, "", resource, verb, account=release.user, namespace=NAMESPACE)
    # Where an agent answers it asks pod by pod.
    assert may(control_plane, "", "pods", "get", account=release.user, namespace=NAMESPACE)
    assert not may(control_plane, "", "pods", "list", account=release.user, namespace=NAMESPACE)


def test_it_gives_no_role_but_those_of_the_chart(release: Installed, control_plane: ControlPlane) -> None:
    token = control_plane.token_of(NAMESPACE, release.name)
    account = Client(control_plane.url, control_plane.ca_file, token)
    path = "apis/rbac.authorization.k8s.io/v1/clusterrolebindings"

    def bind(role: str) -> int:
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role}
        body = {"metadata": {"name": "tried"}, "roleRef": reference, "subjects": []}
        return account.ask("POST", path, body, dryRun="All").status_code

    roles = control_plane.admin.call("GET", "apis/rbac.authorization.k8s.io/v1/clusterroles")["items"]
    names = [one["metadata"]["name"] for one in roles]
    try:
        allowed = {name for name in names if bind(name) == 201}
    finally:
        account.close()
    bindings = control_plane.admin.call("GET", path)["items"]
    everybodys = {
        one["roleRef"]["name"]
        for one in bindings
        for subject in one.get("subjects") or ()
        if subject["name"].startswith(("system:authenticated", "system:serviceaccounts"))
    }
    # What it may do itself it may let others do; so may everybody. A role that grants nothing is no matter.
    own = {release.name, *everybodys, *(one["metadata"]["name"] for one in roles if not one.get("rules"))}
    assert allowed - own == {"operated-gpuledger", "operated-gpuledger-agent", "operated-gpuledger-agent-own"}


def test_another_products_definition_is_left_alone_and_its_resources_too(
    release: Installed, control_plane: ControlPlane
) -> None:
    api = control_plane.admin
    api.call("PATCH", f"{DEFINITIONS}/{WHATAP_AGENTS}", {"metadata": {"labels": {_PART_OF: None}}})
    before = api.call("GET", f"{DEFINITIONS}/{WHATAP_AGENTS}")
    # Others' operators have used this server's log before.
    already = len(release.asked())
    with release.operators() as start:
        operator = start().wait_leads()
        operator.program.wait_line("another operator's, and left alone")
        release.apply("WhatapAgent", "whatap", EXAMPLES["simple"])
        release.apply("GpuMonitor", "main", {"agent": {"enabled": False}})
        release.wait_made("GpuMonitor", "main")
        assert operator.value('gpuledger_operator_served{kind="WhatapAgent"}') == 0
        assert operator.value('gpuledger_operator_served{kind="GpuMonitor"}') == 1
        theirs = api.call("GET", f"{PATHS['WhatapAgent']}/whatap")
        assert "finalizers" not in theirs["metadata"]
        assert "status" not in theirs
        assert [one for one in release.made() if "whatap" in one] == []
        assert api.call("GET", f"{DEFINITIONS}/{WHATAP_AGENTS}") == before
        asked = [one for one in release.asked()[already:] if one["objectRef"]["resource"] == "whatapagents"]
        assert asked == []
        api.call("DELETE", f"{PATHS['WhatapAgent']}/whatap")
        release.delete("GpuMonitor", "main")


_PART_OF = "app.kubernetes.io/part-of"


def test_the_definition_that_is_shipped_is_the_one_that_resources_are_read_by(
    release: Installed, control_plane: ControlPlane
) -> None:
    found = control_plane.admin.call("GET", f"{DEFINITIONS}/{WHATAP_AGENTS}")
    shipped = found["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    ours = whatap_agent_crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    assert shipped == ours


def test_a_definition_may_go_and_come_back(release: Installed, control_plane: ControlPlane) -> None:
    api, path = control_plane.admin, f"{DEFINITIONS}/gpumonitors.gpuledger.dev"
    with release.operators() as start:
        operator = start().wait_leads()
        release.apply("GpuMonitor", "main", {"agent": {"enabled": False}})
        release.wait_made("GpuMonitor", "main")
        found = api.call("GET", path)
        api.call("DELETE", path)
        # Its resources go with it, and what was made for them.
        wait_until(lambda: release.made() == [], "what was made to go")
        wait_until(lambda: api.ask("GET", path).status_code == 404, "the definition to go")
        metadata = {key: found["metadata"][key] for key in ("name", "labels", "annotations")}
        api.call("POST", DEFINITIONS, {**found, "metadata": metadata, "status": None})
        wait_until(lambda: api.ask("GET", PATHS["GpuMonitor"]).is_success, "the definition to be served")
        release.apply("GpuMonitor", "main", {"agent": {"enabled": False}})
        release.wait_condition("GpuMonitor", "main", "Available", "False", "Starting", 120)
        assert operator.program.process.poll() is None
        release.delete("GpuMonitor", "main")


def test_without_a_receiver_exporters_run_and_the_status_says_what_is_missing(
    release: Installed,
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
            assert [one for one in release.made() if one.startswith(("DaemonSet", "StatefulSet"))] == [
                f"DaemonSet {NAMESPACE}/gpumonitor-main-exporter"
            ]
            release.delete_all()
    finally:
        release.config.write_text(written)
