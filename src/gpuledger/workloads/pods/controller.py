"""The controller and the queue of a pod, from its owner reference, labels and annotations. Pure.

The owner reference names the object that created the pod. Often that object was created by the one that users
know: the Deployment behind a ReplicaSet, the JobSet behind a Job. Reading it would take a permission for each
kind. Labels name it without one, but users can set labels: one counts only if the owner reference is of the
kind that its software creates and its name is the label's, or begins with it and a dash.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from gpuledger.kubernetes import fields
from gpuledger.kubernetes.fields import mapping_at, mappings_at


class _Creator(NamedTuple):
    """`kind` created the owner of kind `owner`, and `label` has its name. `where` documents the software."""

    owner: str
    label: str
    kind: str
    where: str


# Of several the first counts.
CREATORS: Final = (
    _Creator("RayCluster", "ray.io/originated-from-cr-name", "", "KubeRay: the kind is in another label"),
    _Creator("Job", "ray.io/originated-from-cr-name", "", "KubeRay: the submitter of a RayJob"),
    _Creator("Job", "jobset.sigs.k8s.io/jobset-name", "JobSet", "JobSet, Kubeflow Trainer 2"),
    _Creator("StatefulSet", "leaderworkerset.sigs.k8s.io/name", "LeaderWorkerSet", "LeaderWorkerSet"),
    _Creator("Pod", "sparkoperator.k8s.io/app-name", "SparkApplication", "Spark operator: executors"),
    _Creator("Job", "training.kubeflow.org/job-name", "MPIJob", "Kubeflow MPI operator: the launcher"),
    _Creator("ReplicaSet", "serving.kserve.io/inferenceservice", "InferenceService", "KServe"),
)
_RAY_KIND: Final = "ray.io/originated-from-crd"
# By the label with the hash at the end of the ReplicaSet's name.
_REPLICA_SETS: Final = {"pod-template-hash": "Deployment", "rollouts-pod-template-hash": "Rollout"}

# Labels and annotations with the name of a queue. Of several the first counts.
QUEUES: Final = (
    "kueue.x-k8s.io/local-queue-name",
    "kueue.x-k8s.io/queue-name",
    "kai.scheduler/queue",
    "runai/queue",
    "scheduling.volcano.sh/queue-name",
    "volcano.sh/queue-name",
    "yunikorn.apache.org/queue",
)


class PodOrigin(NamedTuple):
    """What created the pod, and the queue from which it was admitted; empty if not known."""

    controller_kind: str = ""
    controller: str = ""
    queue: str = ""


def find_origin(metadata: Mapping[str, Any]) -> PodOrigin:
    """The controller and queue in the `metadata` of a pod."""
    labels = mapping_at(metadata, "labels")
    annotations = mapping_at(metadata, "annotations")
    owner = next(
        (one for one in mappings_at(metadata, "ownerReferences") if one.get("controller") is True), {}
    )
    kind, name = fields.name_at(owner, "kind"), fields.name_at(owner, "name")
    queues = (fields.name_at(where, key) for key in QUEUES for where in (labels, annotations))
    return PodOrigin(*_creator(kind, name, labels), next(filter(None, queues), ""))


def _creator(kind: str, name: str, labels: Mapping[str, Any]) -> tuple[str, str]:
    for one in CREATORS:
        creator = fields.name_at(labels, one.label)
        made = one.kind or fields.name_at(labels, _RAY_KIND)
        if kind == one.owner and creator and made and f"{name}-".startswith(f"{creator}-"):
            return made, creator
    if kind == "ReplicaSet":
        for label, made in _REPLICA_SETS.items():
            digest = fields.name_at(labels, label)
            before = name.removesuffix(f"-{digest}")
            if digest and before and before != name:
                return made, before
    return kind, name
