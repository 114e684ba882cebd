"""Keys and variables of the chart are unique: kustomize, Flux and server-side apply refuse duplicates."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import yaml

from chart import containers, files, of_kind, pod_specs, problems, render
from yaml_files import Loader

AGENT = {"enabled": True, "config": {"remote_write": [{"url": "http://store/write"}]}}
EVERYTHING = {
    "mode": "daemonset",
    "serviceMonitor": {"enabled": True},
    "rules": {"enabled": True},
    "dashboards": {"enabled": True},
    "agent": AGENT,
    "operator": {"enabled": True},
}
VERSION = "app.kubernetes.io/version"
PART_OF = "app.kubernetes.io/part-of"
REPLACED: dict[str, dict[str, Any]] = {
    "the chart's labels": {"commonLabels": {VERSION: "1", PART_OF: "platform", "helm.sh/chart": "x"}},
    "labels of pods": {"podLabels": {VERSION: "1", "team": "a"}, "commonLabels": {"team": "b"}},
    "annotations of pods": {"podAnnotations": {"gpuledger/restart-on": "never"}},
    "labels of the monitor": {"serviceMonitor": {"enabled": True, "labels": {"app": "prometheus"}}},
    "labels of rules": {"rules": {"enabled": True, "labels": {"app": "kube-prometheus-stack"}}},
    "labels of the Service": {"service": {"labels": {"team": "a"}}, "commonLabels": {"team": "b"}},
    "labels of dashboards": {"dashboards": {"enabled": True, "label": "app", "labelValue": "grafana"}},
}


class UniqueKeyLoader(Loader):
    """Refuses a mapping that has a key twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        counts = Counter(self.construct_object(key, deep=True) for key, _ in node.value)
        assert set(counts.values()) <= {1}, f"{counts.most_common(1)} at line {node.start_mark.line}"
        return super().construct_mapping(node, deep)


@pytest.mark.parametrize("values", REPLACED.values(), ids=REPLACED)
def test_a_label_of_the_values_replaces_that_of_the_chart(values: dict[str, Any]) -> None:
    for path, text in files({**EVERYTHING, **values}).items():
        if path != "NOTES.txt":
            list(yaml.load_all(text, UniqueKeyLoader))


def test_the_label_of_the_values_wins() -> None:
    values = {**EVERYTHING, **REPLACED["labels of rules"]}
    (rules,) = of_kind("PrometheusRule", values)
    assert rules["metadata"]["labels"]["app"] == "kube-prometheus-stack"


def test_the_operator_still_recognizes_its_crd() -> None:
    (crd,) = of_kind("CustomResourceDefinition", {**EVERYTHING, **REPLACED["the chart's labels"]})
    assert crd["metadata"]["labels"][PART_OF] == "gpuledger"


@pytest.mark.parametrize(("monitored", "is_refused"), [(True, True), (False, False)])
def test_a_label_that_the_service_monitor_selects_is_not_replaced(monitored: bool, is_refused: bool) -> None:
    values = {"serviceMonitor": {"enabled": monitored}, "service": {"labels": {"app": "x"}}}
    assert ("service.labels: the chart's selectors use the label app" in problems(values)) is is_refused


def test_a_variable_of_the_values_replaces_that_of_the_chart() -> None:
    more = [{"name": name, "value": "mine"} for name in ("NODE_NAME", "POD_NAME", "NVIDIA_VISIBLE_DEVICES")]
    values = {
        **EVERYTHING,
        "extraEnv": more,
        "agent": {**AGENT, "extraEnv": more},
        "operator": {"enabled": True, "extraEnv": more},
    }
    made = [one for one in render(values) if one["kind"] in ("DaemonSet", "StatefulSet", "Deployment")]
    assert len(made) == 3
    for spec in pod_specs(made):
        for container in containers(spec):
            names = [variable["name"] for variable in container["env"]]
            assert len(names) == len(set(names))
            assert more[2] in container["env"]
