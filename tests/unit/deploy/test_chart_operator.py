"""The operator in the chart: what it is made of, and that it may do no more than it must."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from chart import CHART, MATRIX, Manifest, notes, of_kind, render
from gpuledger import __version__
from gpuledger.model.errors import UsageError
from gpuledger.operator.crd_definitions import gpu_monitor_crd, whatap_agent_crd
from gpuledger.operator.facts import Facts, Owner, read_facts
from gpuledger.operator.reading import read
from gpuledger.operator.render.objects import render as objects_of

OPERATOR = {"operator": {"enabled": True, "defaultRemoteWrite": [{"url": "http://store/write"}]}}
WHATAP = {**OPERATOR, "whatapCompat": {"enabled": True}}


def facts(values: Any, folder: Path) -> Facts:
    """As the operator of these values reads them."""
    (config,) = [one for one in of_kind("ConfigMap", values) if "operator.yaml" in one["data"]]
    file = folder / "operator.yaml"
    file.write_text(config["data"]["operator.yaml"])
    return read_facts(file)


def rules(values: Any) -> Iterator[tuple[str | None, Manifest]]:
    """Namespace and rule of everything that the operator may do."""
    for kind in ("ClusterRole", "Role"):
        for one in of_kind(kind, values):
            if one["metadata"]["name"] == "gpuledger-operator":
                for rule in one["rules"]:
                    yield one["metadata"].get("namespace"), rule


def test_with_the_operator_exporters_are_its_own_affair() -> None:
    kinds = {one["kind"] for one in render(OPERATOR)}
    assert "Deployment" in kinds
    assert kinds.isdisjoint({"DaemonSet", "CronJob", "StatefulSet"})
    beside = {one["kind"] for one in render({**OPERATOR, "mode": "daemonset"})}
    assert {"Deployment", "DaemonSet"} <= beside


@pytest.mark.parametrize(
    ("values", "names"),
    [
        (OPERATOR, ["gpumonitors.gpuledger.dev"]),
        (WHATAP, ["gpumonitors.gpuledger.dev", "whatapagents.monitoring.whatap.com"]),
    ],
)
def test_definitions_come_with_the_release_and_outlast_it(values: Any, names: list[str]) -> None:
    found = of_kind("CustomResourceDefinition", values)
    assert [one["metadata"]["name"] for one in found] == names
    for one in found:
        assert one["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
        # By this the operator tells them from another's.
        assert one["metadata"]["labels"]["app.kubernetes.io/part-of"] == "gpuledger"


def test_definitions_are_those_of_the_program() -> None:
    of_program = [gpu_monitor_crd(), whatap_agent_crd()]
    assert [one["spec"] for one in of_kind("CustomResourceDefinition", WHATAP)] == [
        one["spec"] for one in of_program
    ]
    for one in of_program:
        kept = CHART / "files/crds" / f"{one['metadata']['name']}.yaml"
        assert yaml.safe_load(kept.read_text(encoding="utf-8")) == one


def test_the_operator_reads_what_the_chart_tells_it(tmp_path: Path) -> None:
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
    assert facts(values, tmp_path) == Facts(
        Owner("", "", "", ""),
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


def test_what_the_operator_runs_is_the_program_whichever_tag_the_chart_has(tmp_path: Path) -> None:
    values = {**OPERATOR, "image": {"variant": "smi", "tag": "1"}}
    assert facts(values, tmp_path).image == "gpuledger:1"
    digest = "sha256:" + "0" * 64
    values = {**OPERATOR, "image": {"variant": "smi", "digest": digest}}
    assert facts(values, tmp_path).image == f"gpuledger@{digest}"


def test_without_a_word_it_is_what_the_operator_takes_itself(tmp_path: Path) -> None:
    read, own = facts({"operator": {"enabled": True}}, tmp_path), Facts(Owner("", "", "", ""))
    assert read == replace(own, namespace="gpus", image=f"gpuledger:{__version__}")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("namespace: Gpus", "operator.yaml.namespace: a name is wanted, not 'Gpus'"),
        ("namespaces: gpus", "operator.yaml.namespaces: is not known here"),
        ("defaultRemoteWrite: [{name: a}]", "operator.yaml.defaultRemoteWrite[0].url: is missing"),
        ("a: [", "operator.yaml is not YAML"),
        ("- a", "operator.yaml: a mapping is wanted"),
        (None, "operator.yaml: No such file or directory"),
    ],
)
def test_a_configuration_that_cannot_be_is_refused_in_one_line(
    text: str | None, said: str, tmp_path: Path
) -> None:
    file = tmp_path / "operator.yaml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(UsageError) as caught:
        read_facts(file)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def made_of_each_kind(values: Any, folder: Path) -> Iterator[Any]:
    """What the operator makes of the least of each of its resources."""
    features = {"openAgent": {"enabled": True}, "k8sAgent": {"gpuMonitoring": {"enabled": True}}}
    for kind, name, spec in (("GpuMonitor", "gpus", {}), ("WhatapAgent", "whatap", {"features": features})):
        monitor = read({"kind": kind, "metadata": {"name": name}, "spec": spec}).monitor
        assert monitor is not None
        yield objects_of(monitor, facts(values, folder).of(Owner("v1", kind, name, "1")))


@pytest.mark.parametrize("values", [WHATAP, {**WHATAP, "openshift": {"enabled": True}}])
def test_every_role_that_is_bound_is_the_charts_and_may_be_bound(values: Any, tmp_path: Path) -> None:
    roles = {one["metadata"]["name"] for one in of_kind("ClusterRole", values)}
    (bindable,) = [rule["resourceNames"] for _, rule in rules(values) if "bind" in rule["verbs"]]
    bound = set()
    for made in made_of_each_kind(values, tmp_path):
        bound |= {one["roleRef"]["name"] for one in made.objects if "roleRef" in one}
    assert bound == set(bindable) <= roles


def test_it_makes_no_kind_and_in_no_namespace_that_it_may_not(tmp_path: Path) -> None:
    allowed = {
        (namespace, resource)
        for namespace, rule in rules(WHATAP)
        for resource in rule["resources"]
        if {"create", "patch", "delete", "list", "watch"} <= set(rule["verbs"])
    }
    for made in made_of_each_kind(WHATAP, tmp_path):
        for one in (*made.objects, *made.seeds):
            assert (one["metadata"].get("namespace"), f"{one['kind'].lower()}s") in allowed, one["kind"]


def test_it_reads_no_secret_escalates_nothing_and_is_no_administrator() -> None:
    for namespace, rule in rules(WHATAP):
        assert "secrets" not in rule["resources"]
        assert "*" not in (*rule["resources"], *rule["verbs"], *rule["apiGroups"])
        assert set(rule["verbs"]).isdisjoint({"escalate", "impersonate", "deletecollection"})
        if "bind" in rule["verbs"]:
            assert rule["verbs"] == ["bind"]
            assert rule["resourceNames"]
        if namespace is None:
            # Across the cluster it writes its own resources, events, and bindings of the roles above.
            writes = set(rule["verbs"]) - {"get", "list", "watch", "bind"}
            assert not writes or set(rule["resources"]) <= {
                *("gpumonitors", "gpumonitors/status", "gpumonitors/finalizers"),
                *("whatapagents", "whatapagents/status", "whatapagents/finalizers"),
                *("events", "clusterrolebindings"),
            }


def test_it_may_replace_nothing_but_its_lease() -> None:
    """What it makes it applies; finalizers are asked for where somebody names an owner that waits."""
    updated = {name for _, rule in rules(WHATAP) if "update" in rule["verbs"] for name in rule["resources"]}
    assert updated == {"leases", "gpumonitors/finalizers", "whatapagents/finalizers"}


def test_the_namespace_of_a_whatap_agent_admits_its_pods_and_is_not_the_releases_own() -> None:
    (namespace,) = of_kind("Namespace", WHATAP)
    assert namespace["metadata"]["name"] == "whatap-monitoring"
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "privileged"
    assert of_kind("Namespace", WHATAP, namespace="whatap-monitoring") == []
    assert of_kind("Namespace", OPERATOR) == []


def test_the_agents_roles_are_there_without_an_agent_of_the_chart() -> None:
    names = {one["metadata"]["name"] for one in of_kind("ClusterRole", OPERATOR)}
    assert {"gpuledger", "gpuledger-agent", "gpuledger-agent-own"} <= names
    assert [one["metadata"]["name"] for one in of_kind("ClusterRoleBinding", OPERATOR)] == [
        "gpuledger-operator",
        "gpuledger-operator-uninstall",
    ]


def test_a_change_of_its_configuration_exchanges_the_operator() -> None:
    def restarting(values: Any) -> str:
        (one,) = of_kind("Deployment", values)
        return str(one["spec"]["template"]["metadata"]["annotations"]["gpuledger/restart-on"])

    assert restarting(OPERATOR) == restarting(OPERATOR)
    assert restarting(OPERATOR) != restarting({"operator": {"enabled": True}})


def test_what_is_printed_is_a_resource_that_can_be_applied() -> None:
    for values in (OPERATOR, {"operator": {"enabled": True}}, MATRIX["operator"]):
        said = notes(values)
        # On one line: of an indented here-document the end is not found.
        match = re.search(r"^ *echo '([^']*)' \| kubectl apply -f -$", said, re.MULTILINE)
        assert match is not None
        found = read(json.loads(match[1]))
        assert found.problems == ()
        assert "kubectl delete crd gpumonitors.gpuledger.dev" in said


class Server:
    """An API server that has definitions and resources, of which it lets one go at each look."""

    def __init__(self, ours: bool, resources: list[str], *, operator: bool) -> None:
        labels = {"app.kubernetes.io/part-of": "gpuledger"} if ours else {}
        self.definition: Manifest | None = {"metadata": {"labels": labels}}
        self.resources = resources
        self.operator = operator
        self.asked: list[tuple[str, str]] = []

    def ask(self, method: str, path: str, body: Manifest | None = None) -> Manifest | None:
        if method != "GET":
            self.asked.append((method, path.rpartition("/")[2]))
        if "whatap" in path:
            return None
        if "customresourcedefinitions" in path:
            return self.definition
        if method == "PATCH":
            # What somebody else waits for is theirs to let go.
            assert body == {"metadata": {"finalizers": ["theirs"]}}
            self.resources.remove(path.rpartition("/")[2])
        held = ["theirs", "gpuledger.dev/operator"]
        found = {"items": [{"metadata": {"name": name, "finalizers": held}} for name in self.resources]}
        if method == "GET" and self.operator and self.asked:
            del self.resources[:1]
        return found


@pytest.mark.parametrize(
    ("server", "asked"),
    [
        (
            Server(True, ["a", "b"], operator=True),
            [("DELETE", "a"), ("DELETE", "b"), ("DELETE", "gpumonitors.gpuledger.dev")],
        ),
        (
            Server(True, ["a"], operator=False),
            [("DELETE", "a"), ("PATCH", "a"), ("DELETE", "gpumonitors.gpuledger.dev")],
        ),
        (Server(False, ["a"], operator=True), []),
    ],
    ids=["with an operator", "whose operator is gone", "another's definition"],
)
def test_uninstalling_takes_resources_apart_before_their_definition(
    server: Server, asked: list[tuple[str, str]]
) -> None:
    place = importlib.util.spec_from_file_location("uninstall", CHART / "files/uninstall.py")
    assert place is not None
    assert place.loader is not None
    script = importlib.util.module_from_spec(place)
    place.loader.exec_module(script)
    script.uninstall(server, patience=30.0 if server.operator else 0.0, pause=0.0)
    assert server.asked == asked
