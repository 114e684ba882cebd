"""Write kubernetes/ and deploy/rbac.yaml from the chart: `python deploy/helm/make/manifests.py [ROOT]`.

They are for `kubectl apply -f` without Helm: what Helm alone needs is left out; the namespace stands first.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import yaml
from helm_python import Chart

ROOT = Path(__file__).resolve().parents[3]
NAME = "my-gpu-exporter"
NAMESPACE = "gpu-monitoring"

# In this order the API server wants them: each needs only what stands before it.
KINDS = (
    "Namespace",
    "SecurityContextConstraints",
    "ServiceAccount",
    "ClusterRole",
    "ClusterRoleBinding",
    "RoleBinding",
    "ConfigMap",
    "Service",
    "DaemonSet",
    "CronJob",
    "ServiceMonitor",
    "PrometheusRule",
)
_MONITORING = ("ServiceMonitor", "PrometheusRule")
_SCC = "SecurityContextConstraints"

Manifest = dict[str, Any]
Values = dict[str, Any]


@dataclass(frozen=True)
class File:
    """One file: what it is for, the chart's values, and which objects of them it has."""

    about: str
    values: Values
    kinds: tuple[str, ...] = KINDS
    # Of the objects that are there for the SCC: whether they stand in this file, or all others do.
    scc: bool = False


_COMMON: Values = {"fullnameOverride": NAME, "namespace": {"create": True}, "helmTest": {"enabled": False}}
# Names of its own: it may stand beside daemonset.yaml, whose settings are others.
_COLLECTOR: Values = {**_COMMON, "fullnameOverride": "gpu-process-metrics-collector"}
_ALL_DIALECTS = ["process", "session", "energy", "native"]
_OPENSHIFT: Values = {
    **_COMMON,
    "dialect": _ALL_DIALECTS,
    "openshift": {"enabled": True},
    "followGpuOperator": {"enabled": True},
}

FILES: Mapping[str, File] = {
    "daemonset.yaml": File(
        "An exporter on each GPU node, at port 9400; an init container turns accounting mode on.",
        {**_COMMON, "dialect": _ALL_DIALECTS, "accounting": {"enable": True}},
    ),
    "cronjob.yaml": File(
        "Once a minute a look at the GPUs of each node, into node_exporter's textfile directory.\n"
        "Set parallelism and completions to the number of GPU nodes, and backoffLimit to six times that.\n"
        "With more than 20 nodes take collect-daemonset.yaml.",
        {**_COLLECTOR, "gpu-process-exporter": {"enabled": True}},
    ),
    "collect-daemonset.yaml": File(
        "Each minute a look at the GPUs of each node, into node_exporter's textfile directory, by a program\n"
        "that keeps running and therefore keeps books.",
        {**_COLLECTOR, "mode": "collect"},
    ),
    "openshift-scc.yaml": File(
        "OpenShift, first: what the pods of openshift-daemonset.yaml may do.",
        _OPENSHIFT,
        ("Namespace", _SCC, "ClusterRole", "RoleBinding"),
        scc=True,
    ),
    "openshift-daemonset.yaml": File(
        "OpenShift with NVIDIA's GPU Operator, after openshift-scc.yaml: an exporter on each GPU node.",
        _OPENSHIFT,
        tuple(kind for kind in KINDS if kind not in (_SCC, "RoleBinding")),
    ),
    "servicemonitor.yaml": File(
        "For Prometheus Operator, beside daemonset.yaml or openshift-daemonset.yaml. Add the label by which\n"
        "your Prometheus chooses.",
        {**_COMMON, "serviceMonitor": {"enabled": True}},
        ("ServiceMonitor",),
    ),
    "prometheusrule.yaml": File(
        "For Prometheus Operator: rules and alerts. Add the label by which your Prometheus chooses.",
        {**_COMMON, "rules": {"enabled": True}},
        ("PrometheusRule",),
    ),
}
_DELETES = f"\n`kubectl delete -f` on this file takes the namespace {NAMESPACE} away with all that is in it."
_BY_CHART = "\nWritten by `make manifests` from deploy/helm/gpuledger, which can do more."

_HELMS_LABELS = ("helm.sh/chart", "app.kubernetes.io/managed-by")


class _Dumper(yaml.SafeDumper):
    """Text of several lines as such, lists indented and, of words alone, in one line; no anchors."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002  (PyYAML's)
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002  (PyYAML's)
        return True


def _text(dumper: yaml.SafeDumper, data: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", data, style="|" if "\n" in data else None)


def _list(dumper: yaml.SafeDumper, data: list[object]) -> yaml.SequenceNode:
    words = all(isinstance(one, str) for one in data) and sum(len(str(one)) for one in data) < 80
    return dumper.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=words)


_Dumper.add_representer(str, _text)
_Dumper.add_representer(list, _list)


def main(root: Path) -> None:
    """Write every file below this root."""
    with Chart.load(ROOT / "deploy/helm/gpuledger") as chart:
        folder = root / "kubernetes"
        folder.mkdir(parents=True, exist_ok=True)
        for name, file in FILES.items():
            release = file.values["fullnameOverride"]
            found = [one for one in _render(chart, file.values, release, NAMESPACE) if _belongs(one, file)]
            about = file.about + (_DELETES if found[0]["kind"] == "Namespace" else "") + _BY_CHART
            lines = "".join(f"# {line}\n" for line in about.splitlines())
            (folder / name).write_text(lines + _written(found), encoding="utf-8")
        (root / "deploy").mkdir(exist_ok=True)
        rbac = [
            one
            for one in _render(chart, {}, "gpuledger", "gpuledger")
            if one["kind"] in ("ServiceAccount", "ClusterRole", "ClusterRoleBinding")
        ]
        for one in rbac:
            del one["metadata"]["labels"]
        (root / "deploy/rbac.yaml").write_text(
            _head(ROOT / "deploy/rbac.yaml") + _written(rbac), encoding="utf-8"
        )


def _head(file: Path) -> str:
    """The comment that a file begins with."""
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    return "".join(takewhile(lambda line: line.startswith("#"), lines))


def _belongs(one: Manifest, file: File) -> bool:
    for_scc = one["metadata"]["name"].endswith("-scc")
    return one["kind"] in file.kinds and (one["kind"] == "Namespace" or for_scc == file.scc)


def _render(chart: Chart, values: Values, name: str, namespace: str) -> list[Manifest]:
    files = chart.render(values, name=name, namespace=namespace)
    found = [
        one
        for path, text in files.items()
        if not path.endswith("NOTES.txt")
        for one in yaml.safe_load_all(text)
        if one
    ]
    for one in found:
        _plain(one)
    return sorted(found, key=lambda one: KINDS.index(one["kind"]) if one["kind"] in KINDS else len(KINDS))


def _plain(node: object) -> None:
    """Without what only Helm puts there and reads."""
    if isinstance(node, list):
        for item in node:
            _plain(item)
    if not isinstance(node, dict):
        return
    for value in node.values():
        _plain(value)
    for label in _HELMS_LABELS:
        node.pop(label, None)
    if isinstance(node.get("annotations"), dict):
        node["annotations"].pop("gpuledger/restart-on", None)
        if not node["annotations"]:
            del node["annotations"]


def _written(found: list[Manifest]) -> str:
    texts = [yaml.dump(one, Dumper=_Dumper, sort_keys=False, width=110, allow_unicode=True) for one in found]
    return "---\n".join(texts)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else ROOT)
