"""Pods of this node, parsed from the JSON of the API server, and the UUIDs of its DRA devices. Pure."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from copy import copy
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from gpuledger.kubernetes import fields
from gpuledger.kubernetes.fields import mapping_at, mappings_at
from gpuledger.model.text import clean_name, matches_any
from gpuledger.model.workload import POD_FACTS, Workload
from gpuledger.workloads.pods.capacities import Capacities
from gpuledger.workloads.pods.controller import find_origin
from gpuledger.workloads.pods.gpu_shares import NO_SHARES, PodContainers, PodShares, parse_pod_shares

# The API's mirror of a static pod has a different UID; cgroup and log directory of the pod show this hash.
_HASHES: Final = ("kubernetes.io/config.hash", "kubernetes.io/config.mirror")
_STATUSES: Final = ("initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses")
_FINISHED: Final = ("Succeeded", "Failed")
# The name of a label: a DNS name of 253, a slash, and 63.
_LONGEST_LABEL: Final = 317


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod. Unknown text is empty.

    `containers` maps container ids without the runtime prefix to names, including init and ephemeral
    containers and the previous id of a restarted container. `labels` are the allowed ones, sorted.
    `controller_kind`, `controller` and `queue` are those of PodOrigin. `hash` is the UID
    in the cgroup of a static pod. `finished` pods run and hold nothing. `created` is in Unix seconds, None if
    unknown. `shares` are the parts of GPUs that its annotations state. `named` caches the owners of its
    processes, with the names of the pod, by what their cgroups say.
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
    shares: PodShares = NO_SHARES
    queue: str = ""
    named: dict[Workload, Workload] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def facts(self) -> dict[str, Any]:
        """The pod's facts by field of Workload."""
        return {fact: getattr(self, fact) for fact in POD_FACTS}


def parse_pod(data: object, allowed_labels: tuple[str, ...] = ()) -> Pod | None:
    """Parse one core/v1 Pod; None if it has no UID or name. Fields of an undocumented type are ignored.

    `allowed_labels` are the names of the labels that are kept, because each becomes a label of series: exact
    names, and prefixes with a trailing `*`.
    """
    meta, status = mapping_at(data, "metadata"), mapping_at(data, "status")
    uid, name = fields.name_at(meta, "uid"), fields.name_at(meta, "name")
    if not uid or not name:
        return None
    annotations = mapping_at(meta, "annotations")
    phase = fields.name_at(status, "phase")
    return Pod(
        uid=uid,
        namespace=fields.name_at(meta, "namespace"),
        name=name,
        phase=phase,
        containers=dict(_containers(status)),
        labels=tuple(
            sorted(
                (clean_name(name, _LONGEST_LABEL), clean_name(value))
                for name, value in mapping_at(meta, "labels").items()
                if isinstance(value, str) and matches_any(name, allowed_labels)
            )
        ),
        **find_origin(meta)._asdict(),
        hash=next(filter(None, (fields.name_at(annotations, key) for key in _HASHES)), ""),
        finished=phase in _FINISHED,
        created=_unix(meta.get("creationTimestamp")),
        shares=parse_pod_shares(annotations, mapping_at(meta, "labels"), _pod_containers(data)),
    )


def _pod_containers(data: object) -> PodContainers:
    spec, status = mapping_at(data, "spec"), mapping_at(data, "status")
    names = [fields.name_at(one, "name") for one in mappings_at(spec, "containers")]
    ended = {
        fields.name_at(one, "name")
        for one in mappings_at(status, "initContainerStatuses")
        if "terminated" in mapping_at(one, "state")
    }
    init = tuple(fields.name_at(one, "name") in ended for one in mappings_at(spec, "initContainers"))
    return PodContainers(len(names), next(iter(names), ""), init)


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

    def __init__(self, pods: Iterable[Pod] = ()) -> None:
        self._pods = tuple(sorted(pods, key=lambda pod: pod.created or 0.0))
        self._by_uid: MutableMapping[str, Pod] = {pod.hash: pod for pod in self._pods if pod.hash}
        self._by_uid |= {pod.uid: pod for pod in self._pods}
        self._by_name: MutableMapping[tuple[str, str], Pod]
        self._by_name = {(pod.namespace, pod.name): pod for pod in self._pods}
        self._by_container: MutableMapping[str, Pod]
        self._by_container = {container_id: pod for pod in self._pods for container_id in pod.containers}

    def with_fallback(self, others: Pods) -> Pods:
        """These pods, with `others` for all lookups that find nothing here."""
        backed = copy(self)
        backed._pods += tuple(pod for pod in others if pod.uid not in self._by_uid)
        backed._by_uid = ChainMap(self._by_uid, others._by_uid)
        backed._by_name = ChainMap(self._by_name, others._by_name)
        backed._by_container = ChainMap(self._by_container, others._by_container)
        return backed

    def by_uid(self, uid: str) -> Pod | None:
        """The pod with this UID, or the static pod with this hash."""
        return self._by_uid.get(uid)

    def by_name(self, namespace: str, name: str) -> Pod | None:
        """The newest pod with this name."""
        return self._by_name.get((namespace, name))

    def by_container(self, container_id: str) -> Pod | None:
        """The pod of the container with this id."""
        return self._by_container.get(container_id)

    def __len__(self) -> int:
        return len(self._pods)

    def __iter__(self) -> Iterator[Pod]:
        return iter(self._pods)


NO_PODS = Pods()

# Driver, pool and device, which together identify a device of a node.
DraDevice = tuple[str, str, str]


@dataclass(frozen=True)
class ResourceSlices:
    """UUIDs by (driver, pool, device); `len` is the number of devices with a UUID or with a parent's UUID.

    `uuids` has whole GPUs and existing MIG instances. `parents` has the UUID of the Gpu of a MIG instance; an
    instance that the driver has not created yet has only this. `capacities` has the capacity of a device by
    name, of which claims consume parts.
    """

    uuids: Mapping[DraDevice, str] = field(default_factory=dict, hash=False)
    parents: Mapping[DraDevice, str] = field(default_factory=dict, hash=False)
    capacities: Mapping[DraDevice, Capacities] = field(default_factory=dict, hash=False)

    def __len__(self) -> int:
        return len(self.uuids.keys() | self.parents.keys())


NO_SLICES = ResourceSlices()
