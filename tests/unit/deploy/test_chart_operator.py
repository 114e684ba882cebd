"""The chart's operator: its objects, its configuration, and its minimal permissions."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chart import CHART, MATRIX, Manifest, notes, of_kind, render
from gpuledger import __version__
from gpuledger.model.errors import UsageError
from gpuledger.operator.crd_definitions import gpu_monitor_crd, whatap_agent_crd
from gpuledger.operator.kinds import kind_of, managed_kinds
from gpuledger.operator.monitor_parser import parse_monitor
from gpuledger.operator.render.objects import render_objects as objects_of
from gpuledger.operator.render_context import MonitorReference, RenderContext, read_operator_file
from unit.operator.schemas import without_cel_rules
from yaml_files import load_yaml

OPERATOR = {"operator": {"enabled": True, "defaultRemoteWrite": [{"url": "http://store/write"}]}}
WHATAP = {**OPERATOR, "whatapCompat": {"enabled": True}}


def render_context(values: Any, folder: Path) -> RenderContext:
    """The context that the operator reads from its configuration file, for these values."""
    (config,) = [one for one in of_kind("ConfigMap", values) if "operator.yaml" in one["data"]]
    file = folder / "operator.yaml"
    file.write_text(config["data"]["operator.yaml"])
    return read_operator_file(file)


def rules(values: Any) -> Iterator[tuple[str | None, Manifest]]:
    """Namespace (None for the whole cluster) and rule of the operator's permissions."""
    for kind in ("ClusterRole", "Role"):
        for one in of_kind(kind, values):
            if one["metadata"]["name"] == "gpuledger-operator":
                for rule in one["rules"]:
                    yield one["metadata"].get("namespace"), rule


@pytest.mark.parametrize(
    ("values", "command"),
    [
        ({}, None),
        ({"image": {"variant": "smi"}}, ["gpuledger"]),
        ({"command": ["python3", "-m", "gpuledger"]}, ["python3", "-m", "gpuledger"]),
    ],
    ids=["default", "smi", "command"],
)
def test_the_operator_runs_in_every_image(values: Any, command: list[str] | None) -> None:
    (deployment,) = of_kind("Deployment", {"operator": {"enabled": True}, **values})
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container.get("command") == command


def test_with_the_operator_the_chart_creates_no_exporters_by_default() -> None:
    kinds = {one["kind"] for one in render(OPERATOR)}
    assert "Deployment" in kinds
    assert kinds.isdisjoint({"DaemonSet", "CronJob", "StatefulSet"})
    with_mode = {one["kind"] for one in render({**OPERATOR, "mode": "daemonset"})}
    assert {"Deployment", "DaemonSet"} <= with_mode


@pytest.mark.parametrize(
    ("values", "names"),
    [
        (OPERATOR, ["gpumonitors.gpuledger.dev"]),
        (WHATAP, ["gpumonitors.gpuledger.dev", "whatapagents.monitoring.whatap.com"]),
    ],
)
def test_crds_are_installed_with_the_release_and_kept_after_it(values: Any, names: list[str]) -> None:
    found = of_kind("CustomResourceDefinition", values)
    assert [one["metadata"]["name"] for one in found] == names
    for one in found:
        assert one["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
        # The operator recognizes its CRDs by this label.
        assert one["metadata"]["labels"]["app.kubernetes.io/part-of"] == "gpuledger"


def test_crds_are_those_of_the_program() -> None:
    of_program = [gpu_monitor_crd(), whatap_agent_crd()]
    assert [one["spec"] for one in of_kind("CustomResourceDefinition", WHATAP)] == [
        one["spec"] for one in of_program
    ]
    for one in of_program:
        kept = CHART / "files/crds" / f"{one['metadata']['name']}.yaml"
        assert load_yaml(kept.read_text(encoding="utf-8")) == one


@pytest.mark.parametrize("kube", ["1.20.15", "1.29.14"])
def test_crds_for_older_servers_have_no_cel_rules(kube: str) -> None:
    """Helm refuses a key that the server does not know, and before 1.30 a new rule also judges old values."""
    found = [one["spec"] for one in of_kind("CustomResourceDefinition", WHATAP, kube=kube)]
    assert found == [without_cel_rules(one["spec"]) for one in (gpu_monitor_crd(), whatap_agent_crd())]


def test_the_operator_reads_the_configuration_of_the_chart(tmp_path: Path) -> None:
    values = {
        **WHATAP,
        "image": {"registry": "mirror.example", "tag": "1.2.3", "pullPolicy": "Always"},
        "imagePullSecrets": [{"name": "registry"}],
        "openshift": {"enabled": True},
        "operator": {
            **OPERATOR["operator"],
            "externalLabels": {"cluster": "a"},
            "prometheusImage": "prometheus:v3",
        },
        "whatapCompat": {"enabled": True, "namespace": "whatap"},
    }
    assert render_context(values, tmp_path) == RenderContext(
        MonitorReference("", "", "", ""),
        namespace="gpus",
        whatap_namespace="whatap",
        image="mirror.example/gpuledger:1.2.3",
        image_pull_policy="Always",
        image_pull_secrets=({"name": "registry"},),
        prometheus_image="prometheus:v3",
        exporter_role="gpuledger",
        agent_role="gpuledger-agent",
        agent_own_role="gpuledger-agent-own",
        scc_role="gpuledger-scc",
        default_remote_write=({"url": "http://store/write"},),
        external_labels={"cluster": "a"},
    )


def test_the_operator_deploys_the_plain_image_for_every_variant_of_the_chart(tmp_path: Path) -> None:
    values = {**OPERATOR, "image": {"variant": "smi", "tag": "1"}}
    assert render_context(values, tmp_path).image == "gpuledger:1"
    digest = "sha256:" + "0" * 64
    values = {**OPERATOR, "image": {"variant": "smi", "digest": digest}}
    assert render_context(values, tmp_path).image == f"gpuledger@{digest}"


def test_the_default_configuration_equals_the_defaults_of_the_operator(tmp_path: Path) -> None:
    context = render_context({"operator": {"enabled": True}}, tmp_path)
    defaults = RenderContext(MonitorReference("", "", "", ""))
    assert context == replace(defaults, namespace="gpus", image=f"gpuledger:{__version__}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("namespace: Gpus", "operator.yaml.namespace: expected a name, not 'Gpus'"),
        ("namespaces: gpus", "operator.yaml.namespaces: is unknown; known keys are namespace,"),
        ("defaultRemoteWrite: [{name: a}]", "operator.yaml.defaultRemoteWrite[0].url: is missing"),
        (
            "defaultRemoteWrite: [{name: a}, {url: store}]",
            "operator.yaml.defaultRemoteWrite[0].url: is missing; defaultRemoteWrite[1].url: expected a URL",
        ),
        ("a: [", "operator.yaml is not YAML"),
        ("- a", "operator.yaml: expected a mapping"),
        (None, "operator.yaml: No such file or directory"),
    ],
)
def test_an_invalid_configuration_is_rejected_in_one_line(
    text: str | None, message: str, tmp_path: Path
) -> None:
    file = tmp_path / "operator.yaml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(UsageError) as caught:
        read_operator_file(file)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def rendered_of_each_kind(values: Any, folder: Path) -> Iterator[Any]:
    """Objects that the operator renders for a minimal resource of each kind."""
    features = {"openAgent": {"enabled": True}, "k8sAgent": {"gpuMonitoring": {"enabled": True}}}
    policies = {"networkPolicy": {"enabled": True}}
    for kind, name, spec in (
        ("GpuMonitor", "gpus", policies),
        ("GpuMonitor", "jobs", {"exporter": {"mode": "cronjob"}}),
        ("WhatapAgent", "whatap", {"features": features}),
    ):
        monitor = parse_monitor({"kind": kind, "metadata": {"name": name}, "spec": spec}).monitor
        assert monitor is not None
        owner = MonitorReference("v1", kind, name, "1")
        yield objects_of(monitor, replace(render_context(values, folder), owner=owner))


@pytest.mark.parametrize("values", [WHATAP, {**WHATAP, "openshift": {"enabled": True}}])
def test_every_bound_role_is_from_the_chart_and_may_be_bound(values: Any, tmp_path: Path) -> None:
    roles = {one["metadata"]["name"] for one in of_kind("ClusterRole", values)}
    (bindable,) = [rule["resourceNames"] for _, rule in rules(values) if "bind" in rule["verbs"]]
    bound = set()
    for made in rendered_of_each_kind(values, tmp_path):
        bound |= {one["roleRef"]["name"] for one in made.objects if "roleRef" in one}
    assert bound == set(bindable) <= roles


def test_it_creates_only_kinds_and_namespaces_that_it_may(tmp_path: Path) -> None:
    allowed = {
        (namespace, resource)
        for namespace, rule in rules(WHATAP)
        for resource in rule["resources"]
        if {"create", "patch", "delete", "list", "watch"} <= set(rule["verbs"])
    }
    for made in rendered_of_each_kind(WHATAP, tmp_path):
        for one in (*made.objects, *made.seeds):
            assert (one["metadata"].get("namespace"), kind_of(one).plural) in allowed, one["kind"]


@pytest.mark.parametrize("version", ["batch/v1", "batch/v1beta1"])
def test_it_may_create_cron_jobs_of_every_server(version: str) -> None:
    (kind,) = (one for one in managed_kinds(version) if one.kind == "CronJob")
    assert kind.api_version == version
    written = [
        rule["verbs"]
        for namespace, rule in rules(OPERATOR)
        if namespace and "batch" in rule["apiGroups"] and kind.plural in rule["resources"]
    ]
    assert written == [["get", "list", "watch", "create", "patch", "delete"]]
    # To count the nodes for Jobs.
    assert [rule["verbs"] for _, rule in rules(OPERATOR) if "nodes" in rule["resources"]] == [["list"]]


def test_it_may_not_read_secrets_or_escalate_permissions() -> None:
    for namespace, rule in rules(WHATAP):
        assert "secrets" not in rule["resources"]
        assert "*" not in (*rule["resources"], *rule["verbs"], *rule["apiGroups"])
        assert set(rule["verbs"]).isdisjoint({"escalate", "impersonate", "deletecollection"})
        if "bind" in rule["verbs"]:
            assert rule["verbs"] == ["bind"]
            assert rule["resourceNames"]
        if namespace is None:
            # Cluster-wide, it writes only its resources, events, and bindings of the roles above.
            writes = set(rule["verbs"]) - {"get", "list", "watch", "bind"}
            assert not writes or set(rule["resources"]) <= {
                *("gpumonitors", "gpumonitors/status", "gpumonitors/finalizers"),
                *("whatapagents", "whatapagents/status", "whatapagents/finalizers"),
                *("events", "clusterrolebindings"),
            }


def test_it_may_update_only_its_lease_and_finalizers() -> None:
    """It applies objects instead of updating them; owner references need the permission for finalizers."""
    updated = {name for _, rule in rules(WHATAP) if "update" in rule["verbs"] for name in rule["resources"]}
    assert updated == {"leases", "gpumonitors/finalizers", "whatapagents/finalizers"}


def test_the_namespace_of_a_whatap_agent_is_created_with_the_pod_security_label() -> None:
    (namespace,) = of_kind("Namespace", WHATAP)
    assert namespace["metadata"]["name"] == "whatap-monitoring"
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "privileged"
    assert of_kind("Namespace", WHATAP, namespace="whatap-monitoring") == []
    assert of_kind("Namespace", OPERATOR) == []


def test_the_roles_of_agents_exist_without_the_charts_agent() -> None:
    names = {one["metadata"]["name"] for one in of_kind("ClusterRole", OPERATOR)}
    assert {"gpuledger", "gpuledger-agent", "gpuledger-agent-own"} <= names
    assert [one["metadata"]["name"] for one in of_kind("ClusterRoleBinding", OPERATOR)] == [
        "gpuledger-operator",
        "gpuledger-operator-uninstall",
    ]


def test_a_changed_configuration_rolls_out_the_operator() -> None:
    def restarting(values: Any) -> str:
        (one,) = of_kind("Deployment", values)
        return str(one["spec"]["template"]["metadata"]["annotations"]["gpuledger/restart-on"])

    assert restarting(OPERATOR) == restarting(OPERATOR)
    assert restarting(OPERATOR) != restarting({"operator": {"enabled": True}})


def test_the_notes_print_a_valid_resource() -> None:
    for values in (OPERATOR, {"operator": {"enabled": True}}, MATRIX["operator"]):
        text = notes(values)
        # One line, because an indented here-document would not end.
        match = re.search(r"^ *echo '([^']*)' \| kubectl apply -f -$", text, re.MULTILINE)
        assert match is not None
        found = parse_monitor(json.loads(match[1]))
        assert found.problems == ()
        assert "kubectl delete crd gpumonitors.gpuledger.dev" in text


class FakeApiServer:
    """An API server with a CRD and its resources. With an operator, each GET deletes one resource."""

    def __init__(self, ours: bool, resources: list[str], *, operator: bool) -> None:
        labels = {"app.kubernetes.io/part-of": "gpuledger"} if ours else {}
        self.crd: Manifest | None = {"metadata": {"labels": labels}}
        self.resources = resources
        self.operator = operator
        self.writes: list[tuple[str, str]] = []

    def request(self, method: str, path: str, body: Manifest | None = None) -> Manifest | None:
        if method != "GET":
            self.writes.append((method, path.rpartition("/")[2]))
        if "whatap" in path:
            return None
        if "customresourcedefinitions" in path:
            return self.crd
        if method == "PATCH":
            # Finalizers of other programs are kept.
            assert body == {"metadata": {"finalizers": ["theirs"]}}
            self.resources.remove(path.rpartition("/")[2])
        finalizers = ["theirs", "gpuledger.dev/operator"]
        found = {"items": [{"metadata": {"name": name, "finalizers": finalizers}} for name in self.resources]}
        if method == "GET" and self.operator and self.writes:
            del self.resources[:1]
        return found


@pytest.mark.parametrize(
    ("server", "writes"),
    [
        (
            FakeApiServer(True, ["a", "b"], operator=True),
            [("DELETE", "a"), ("DELETE", "b"), ("DELETE", "gpumonitors.gpuledger.dev")],
        ),
        (
            FakeApiServer(True, ["a"], operator=False),
            [("DELETE", "a"), ("PATCH", "a"), ("DELETE", "gpumonitors.gpuledger.dev")],
        ),
        (FakeApiServer(False, ["a"], operator=True), []),
    ],
    ids=["operator running", "operator gone", "CRD of another operator"],
)
def test_uninstalling_deletes_resources_before_their_crd(
    server: FakeApiServer, writes: list[tuple[str, str]]
) -> None:
    place = importlib.util.spec_from_file_location("uninstall", CHART / "files/uninstall.py")
    assert place is not None
    assert place.loader is not None
    script = importlib.util.module_from_spec(place)
    place.loader.exec_module(script)
    script.uninstall(server, patience=30.0 if server.operator else 0.0, pause=0.0)
    assert server.writes == writes


@pytest.mark.parametrize(
    "values", [{}, {"rbac": {"create": False}}, {"operator": {"uninstall": {"enabled": False}}}]
)
def test_the_notes_name_the_job_of_the_uninstall_only_if_there_is_one(values: Any) -> None:
    operator = {"enabled": True, **values.get("operator", {})}
    merged = {**values, "operator": operator}
    has_job = bool(of_kind("Job", merged))
    text = notes(merged)
    assert ("Before uninstalling, Helm runs a Job" in text) is has_job
    assert ("Uninstalling leaves the operator's CRDs" in text) is not has_job
