"""What Kubernetes says of a pod, and how it is read out of the API's JSON: pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from gpuledger.kubernetes import fields
from gpuledger.kubernetes.fields import elements, mapping
from gpuledger.workloads.pods.labels import LabelAllowlist

# A static pod's mirror in the API has a UID of its own; its cgroup and its log directory show this instead.
_HASHES: Final = ("kubernetes.io/config.hash", "kubernetes.io/config.mirror")
_STATUSES: Final = ("initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses")
_FINISHED: Final = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod. Unknown text is empty.

    `containers` gives the name of each container by its id without the runtime's prefix, init and ephemeral
    ones and the last terminated self of a restarted one among them. `labels` are the allowed ones, sorted.
    `controller_kind` and `controller` are the owner that the API calls its controller: for a pod of a
    Deployment that is the ReplicaSet between them, since to know more would take a permission more. `hash` is
    the UID that the cgroup of a static pod shows. `finished` pods run nothing any more and hold nothing.
    `created` is in unix seconds, None where it is not told.
    """

    uid: str
    namespace: str
    name: str
    phase: str = ""
    containers: Mapping[str, str] = field(default_factory=dict, hash=False)
    labels: tuple[tuple[str, str], ...] = ()
    controller_kind: str = ""
    controller: str = ""
    hash: str = ""
    finished: bool = False
    created: float | None = None

    def container(self, container_id: str) -> str:
        """The name of the container with this id; empty where it is not known."""
        return self.containers.get(container_id, "")


def read_pod(told: object, allowed: LabelAllowlist) -> Pod | None:
    """A Pod out of one object of the API (core/v1 Pod); None when it has no UID or name.

    A field that is not of its documented type is lost alone.
    """
    meta, status = mapping(told, "metadata"), mapping(told, "status")
    uid, name = fields.name(meta, "uid"), fields.name(meta, "name")
    if not uid or not name:
        return None
    annotations = mapping(meta, "annotations")
    phase = fields.name(status, "phase")
    controller = next((one for one in elements(meta, "ownerReferences") if one.get("controller") is True), {})
    return Pod(
        uid=uid,
        namespace=fields.name(meta, "namespace"),
        name=name,
        phase=phase,
        containers=dict(_containers(status)),
        labels=allowed.of(mapping(meta, "labels")),
        controller_kind=fields.name(controller, "kind"),
        controller=fields.name(controller, "name"),
        hash=next(filter(None, (fields.name(annotations, key) for key in _HASHES)), ""),
        finished=phase in _FINISHED,
        created=_unix(meta.get("creationTimestamp")),
    )


def _containers(status: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for kind in _STATUSES:
        for one in elements(status, kind):
            name = fields.name(one, "name")
            last = mapping(mapping(one, "lastState"), "terminated")
            for told in (fields.name(last, "containerID"), fields.name(one, "containerID")):
                # `containerd://ID`; empty before the container was made.
                container_id = told.rpartition("://")[2]
                if name and container_id:
                    yield container_id, name


def _unix(value: object) -> float | None:
    if not isinstance(value, str):
        return None
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        return None
    return moment.timestamp() if moment.tzinfo else None


class Pods:
    """An immutable set of pods. `len` is the number of pods, not of the names under which they are found.

    Of two pods under one name, or one hash, the one created later is found; where that is not told, the one
    given later. Each is still found by its own UID.
    """

    __slots__ = ("_by_container", "_by_name", "_by_uid", "_others", "_pods")

    def __init__(self, pods: Iterable[Pod] = ()) -> None:
        self._pods = tuple(sorted(pods, key=lambda pod: pod.created or 0.0))
        self._others: Pods | None = None
        self._by_uid: dict[str, Pod] = {pod.hash: pod for pod in self._pods if pod.hash}
        self._by_uid |= {pod.uid: pod for pod in self._pods}
        self._by_name: dict[tuple[str, str], Pod] = {(pod.namespace, pod.name): pod for pod in self._pods}
        self._by_container: dict[str, Pod] = {}
        for pod in self._pods:
            for container_id in pod.containers:
                self._by_container[container_id] = pod

    def backed_by(self, others: Pods) -> Pods:
        """These pods, and for what is not found among them the `others`. Copies nothing."""
        backed = Pods.__new__(Pods)
        backed._pods, backed._others = self._pods, others
        backed._by_uid, backed._by_name = self._by_uid, self._by_name
        backed._by_container = self._by_container
        return backed

    def uid(self, uid: str) -> Pod | None:
        """The pod with this UID, or the static pod with this hash."""
        found = self._by_uid.get(uid)
        return found if found or self._others is None else self._others.uid(uid)

    def named(self, namespace: str, name: str) -> Pod | None:
        """The newest pod of this name."""
        found = self._by_name.get((namespace, name))
        return found if found or self._others is None else self._others.named(namespace, name)

    def container(self, container_id: str) -> Pod | None:
        """The pod that this container belongs to."""
        found = self._by_container.get(container_id)
        return found if found or self._others is None else self._others.container(container_id)

    def __len__(self) -> int:
        return len(self._pods) if self._others is None else sum(1 for _ in self)

    def __iter__(self) -> Iterator[Pod]:
        yield from self._pods
        for pod in self._others or ():
            if pod.uid not in self._by_uid:
                yield pod


NO_PODS = Pods()
