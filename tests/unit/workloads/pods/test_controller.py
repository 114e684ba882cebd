"""What created a pod, and its queue."""

from __future__ import annotations

from typing import Any

import pytest

from gpuledger.workloads.pods.controller import QUEUES, find_origin

JOBSET = "jobset.sigs.k8s.io/jobset-name"
RAY = "ray.io/originated-from-cr-name"


def origin(kind: str, name: str, labels: dict[str, Any] | None = None, **more: Any) -> tuple[str, str]:
    """Controller kind and name of a pod with this owner reference."""
    owner = {"kind": kind, "name": name, "controller": True}
    found = find_origin({"ownerReferences": [owner], "labels": labels or {}, **more})
    return found.controller_kind, found.controller


@pytest.mark.parametrize(
    ("owner", "labels", "expected"),
    [
        (("ReplicaSet", "web-5d9c"), {"pod-template-hash": "5d9c"}, ("Deployment", "web")),
        (("ReplicaSet", "my-web-5d9c"), {"pod-template-hash": "5d9c"}, ("Deployment", "my-web")),
        (("ReplicaSet", "web-5d9c"), {"rollouts-pod-template-hash": "5d9c"}, ("Rollout", "web")),
        # A ReplicaSet without a Deployment.
        (("ReplicaSet", "web-5d9c"), {}, ("ReplicaSet", "web-5d9c")),
        (("ReplicaSet", "web"), {"pod-template-hash": "5d9c"}, ("ReplicaSet", "web")),
        (("ReplicaSet", "-5d9c"), {"pod-template-hash": "5d9c"}, ("ReplicaSet", "-5d9c")),
        (("ReplicaSet", "web-5d9c"), {"pod-template-hash": ""}, ("ReplicaSet", "web-5d9c")),
        (("Job", "train-workers-0"), {JOBSET: "train"}, ("JobSet", "train")),
        # A label that somebody set: the Job is not one of that JobSet.
        (("Job", "train-workers-0"), {JOBSET: "other"}, ("Job", "train-workers-0")),
        (("Job", "training-0"), {JOBSET: "train"}, ("Job", "training-0")),
        (("ReplicaSet", "train-workers-0"), {JOBSET: "train"}, ("ReplicaSet", "train-workers-0")),
        (("Job", "train"), {JOBSET: 7}, ("Job", "train")),
        (
            ("RayCluster", "tune-raycluster-x7k2p"),
            {RAY: "tune", "ray.io/originated-from-crd": "RayJob"},
            ("RayJob", "tune"),
        ),
        (
            ("RayCluster", "lab"),
            {RAY: "lab", "ray.io/originated-from-crd": "RayCluster"},
            ("RayCluster", "lab"),
        ),
        (("RayCluster", "lab-head"), {RAY: "lab"}, ("RayCluster", "lab-head")),
        (("StatefulSet", "llm-0"), {"leaderworkerset.sigs.k8s.io/name": "llm"}, ("LeaderWorkerSet", "llm")),
        (("Pod", "etl-driver"), {"sparkoperator.k8s.io/app-name": "etl"}, ("SparkApplication", "etl")),
        (("Job", "bert-launcher"), {"training.kubeflow.org/job-name": "bert"}, ("MPIJob", "bert")),
        (("PyTorchJob", "bert"), {"training.kubeflow.org/job-name": "bert"}, ("PyTorchJob", "bert")),
        (
            ("Workflow", "nightly-x7k2p"),
            {"workflows.argoproj.io/workflow": "nightly-x7k2p"},
            ("Workflow", "nightly-x7k2p"),
        ),
        (
            ("ReplicaSet", "chat-predictor-6f5b"),
            {"serving.kserve.io/inferenceservice": "chat", "pod-template-hash": "6f5b"},
            ("InferenceService", "chat"),
        ),
        (("DaemonSet", "dcgm"), {"pod-template-generation": "1"}, ("DaemonSet", "dcgm")),
    ],
)
def test_the_controller_is_the_object_that_a_user_created(
    owner: tuple[str, str], labels: dict[str, Any], expected: tuple[str, str]
) -> None:
    assert origin(*owner, labels) == expected


@pytest.mark.parametrize("key", QUEUES)
@pytest.mark.parametrize("where", ["labels", "annotations"])
def test_a_label_or_annotation_names_the_queue(key: str, where: str) -> None:
    assert find_origin({where: {key: "team-a"}}).queue == "team-a"


def test_the_queue_that_kueue_assigned_comes_first() -> None:
    labels = {"kueue.x-k8s.io/queue-name": "requested", "kueue.x-k8s.io/local-queue-name": "admitted"}
    assert find_origin({"labels": labels}).queue == "admitted"


@pytest.mark.parametrize(
    "metadata",
    [{}, {"ownerReferences": "x", "labels": [], "annotations": 5}, {"ownerReferences": [None, {}]}],
)
def test_metadata_without_an_origin_has_none(metadata: dict[str, Any]) -> None:
    assert find_origin(metadata) == ("", "", "")
