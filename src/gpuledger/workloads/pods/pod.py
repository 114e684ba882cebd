"""Pods of this node, parsed from the JSON of the API server. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from gpuledger.kubernetes import fields
from gpuledger.kubernetes.fields import mapping_at, mappings_at
from gpuledger.workloads.pods.label_allowlist import LabelAllowlist

# The API's mirror of a static pod has a different UID; cgroup and log directory of the pod show this hash.
_HASHES: Final = ("kubernetes.io/config.hash", "kubernetes.io/config.mirror")
_STATUSES: Final = ("initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses")
_FINISHED: Final = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod. Unknown text is empty.

    `containers` maps container ids without the runtime prefix to names, including init and ephemeral
    containers and the previous id of a restarted container. `labels` are the allowed ones, sorted.
    `controller_kind` and `controller` are the owner reference with `controller: true`: for a pod of a
    Deployment the ReplicaSet, because reading the Deployment would take another permission. `hash` is the UID
    in the cgroup of a static pod. `finished` pods run and hold nothing. `created` is in Unix seconds, None if
    unknown.
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

    def container_name(self, container_id: str) -> str:
        """The name of the container with this id; empty if not known."""
        return self.containers.get(container_id, "")


def parse_pod(data: object, allowed: LabelAllowlist) -> Pod | None:
    """Parse one core/v1 Pod; None if it has no UID or name. Fields of an undocumented type are ignored."""
    meta, status = mapping_at(data, "metadata"), mapping_at(data, "status")
    uid, name = fields.name_at(meta, "uid"), fields.name_at(meta, "name")
    if not uid or not name:
        return None
    annotations = mapping_at(meta, "annotations")
    phase = fields.name_at(status, "phase")
    controller = next(
        (owner for owner in mappings_at(meta, "ownerReferences") if owner.get("controller") is True), {}
    )
    return Pod(
        uid=uid,
        namespace=fields.name_at(meta, "namespace"),
        name=name,
        phase=phase,
        containers=dict(_containers(status)),
        labels=allowed.select(mapping_at(meta, "labels")),
        controller_kind=fields.name_at(controller, "kind"),
        controller=fields.name_at(controller, "name"),
        hash=next(filter(None, (fields.name_at(annotations, key) for key in _HASHES)), ""),
        finished=phase in _FINISHED,
        created=_unix(meta.get("creationTimestamp")),
    )


def _containers(status: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for kind in _STATUSES:
        for container in mappings_at(status, kind):
            name = fields.name_at(container, "name")
            last = mapping_at(mapping_at(container, "lastState"), "terminated")
            for uri in (fields.name_at(last, "containerID"), fields.name_at(container, "containerID")):
                # `containerd://ID`; empty before the container is created.
                container_id = uri.rpartition("://")[2]
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
    """An immutable set of pods, by UID, by name and by container id. `len` is the number of pods.

    Of two pods with the same name or hash, the one created later is found; without creation times, the one
    passed later. Each is still found by its UID.
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

    def with_fallback(self, others: Pods) -> Pods:
        """These pods, with `others` for all lookups that find nothing here. Copies nothing."""
        backed = Pods.__new__(Pods)
        backed._pods, backed._others = self._pods, others
        backed._by_uid, backed._by_name = self._by_uid, self._by_name
        backed._by_container = self._by_container
        return backed

    def by_uid(self, uid: str) -> Pod | None:
        """The pod with this UID, or the static pod with this hash."""
        found = self._by_uid.get(uid)
        return found if found or self._others is None else self._others.by_uid(uid)

    def by_name(self, namespace: str, name: str) -> Pod | None:
        """The newest pod with this name."""
        found = self._by_name.get((namespace, name))
        return found if found or self._others is None else self._others.by_name(namespace, name)

    def by_container(self, container_id: str) -> Pod | None:
        """The pod of the container with this id."""
        found = self._by_container.get(container_id)
        return found if found or self._others is None else self._others.by_container(container_id)

    def __len__(self) -> int:
        return len(self._pods) if self._others is None else sum(1 for _ in self)

    def __iter__(self) -> Iterator[Pod]:
        yield from self._pods
        for pod in self._others or ():
            if pod.uid not in self._by_uid:
                yield pod


NO_PODS = Pods()
