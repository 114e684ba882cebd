"""What the chart makes of the cluster's nodes; copies of the chart have them in place of `lookup`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from chart import CHART, notes, of_kind

LOOKUP = '(lookup "v1" "Node" "" "")'


@pytest.fixture(scope="module")
def charts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Charts with other nodes, by name."""

    def node(name: str, **labels: str) -> dict[str, Any]:
        return {"metadata": {"name": name, "labels": labels}}

    gke = {"cloud.google.com/gke-accelerator": "nvidia-l4", "kubernetes.io/hostname": "host-c"}
    clusters = {
        "gpus": [node("a", pool="one"), {"metadata": {"name": "b"}}, node("c", **gke)],
        "followed": [node("e", **gke, **{"nvidia.com/gpu.deploy.dcgm-exporter": "true"}), node("c", **gke)],
        "none": [node("a", pool="one"), node("d", **{"nvidia.com/gpu.present": "false"})],
        "many": [node(f"n{number}", accelerator="nvidia") for number in range(21)],
    }
    found = {}
    for name, nodes in clusters.items():
        folder = found[name] = tmp_path_factory.mktemp(name) / "gpuledger"
        shutil.copytree(CHART, folder)
        listed = json.dumps({"items": nodes})
        for file in ("_init.tpl", "_warnings.tpl"):
            path = folder / "templates" / file
            text = path.read_text(encoding="utf-8")
            assert LOOKUP in text
            path.write_text(text.replace(LOOKUP, f"(fromJson {json.dumps(listed)})"), encoding="utf-8")
    return found


@pytest.mark.parametrize(
    ("cluster", "values", "warning"),
    [
        ("gpus", {}, ""),
        ("gpus", {"nodeSelector": {"pool": "one"}}, ""),
        (
            "gpus",
            {"nodeSelector": {"pool": "two"}},
            'none of the 3 nodes has all labels of nodeSelector ({"pool":"two"}).',
        ),
        ("none", {}, "none of the 2 nodes has a label of GPU nodes"),
        (
            "gpus",
            {"followGpuOperator": {"enabled": True}},
            "a node also needs the label nvidia.com/gpu.deploy.dcgm-exporter=true",
        ),
        ("followed", {"followGpuOperator": {"enabled": True}}, ""),
        ("none", {"source": "simulator"}, ""),
        ("none", {"affinity": {"nodeAffinity": {}}}, ""),
        ("none", {"mode": "collect"}, "none of the 2 nodes has a label of GPU nodes"),
        ("none", {"operator": {"enabled": True}}, ""),
    ],
)
def test_the_notes_say_if_no_node_gets_a_pod(
    charts: dict[str, Path], cluster: str, values: dict[str, Any], warning: str
) -> None:
    found = [
        line for line in notes(values, folder=charts[cluster]).splitlines() if "no node gets a pod" in line
    ]
    assert len(found) == bool(warning)
    assert warning in "".join(found)


def test_a_cronjob_covers_the_listed_gpu_nodes(charts: dict[str, Path]) -> None:
    values = {"mode": "cronjob"}
    (cronjob,) = of_kind("CronJob", values, folder=charts["gpus"])
    job = cronjob["spec"]["jobTemplate"]["spec"]
    assert (cronjob["spec"]["suspend"], job["parallelism"]) == (False, 1)
    affinity = job["template"]["spec"]["affinity"]["nodeAffinity"]
    (term,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term["matchExpressions"][0]["values"] == ["host-c"]
    assert of_kind("DaemonSet", values, folder=charts["gpus"]) == []


def test_a_cronjob_covers_only_the_nodes_of_the_gpu_operator(charts: dict[str, Path]) -> None:
    """Pods on the others would wait until the deadline."""
    values = {"mode": "cronjob", "followGpuOperator": {"enabled": True}}
    (cronjob,) = of_kind("CronJob", values, folder=charts["followed"])
    assert cronjob["spec"]["jobTemplate"]["spec"]["completions"] == 1


def test_on_too_many_nodes_a_daemonset_runs_without_a_cronjob(charts: dict[str, Path]) -> None:
    values = {"gpu-process-exporter": {"enabled": True}}
    assert len(of_kind("DaemonSet", values, folder=charts["many"])) == 1
    assert of_kind("CronJob", values, folder=charts["many"]) == []
