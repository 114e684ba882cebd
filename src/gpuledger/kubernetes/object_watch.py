"""ObjectWatch: the objects of one kind, in one namespace or in all, kept up to date from an API server."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Final, Protocol

from gpuledger.host.owner_index import Jitter
from gpuledger.kubernetes.access import ApiServerAccess
from gpuledger.kubernetes.api_client import ApiClient, ApiServerRefused
from gpuledger.kubernetes.list_watch import ListWatch
from gpuledger.kubernetes.objects import (
    LabeledObject,
    LabelSelector,
    ObjectMeta,
    parse_endpoint_slice,
    parse_endpoints,
    parse_labeled,
    parse_meta,
    parse_pod_object,
    parse_secret,
    parse_service,
    parse_stateful_set,
)
from gpuledger.model.source import Clock


class KubernetesObject(Protocol):
    """The common part of all object classes."""

    @property
    def meta(self) -> ObjectMeta:
        """Namespace, name, labels and annotations."""


ObjectParser = Callable[[object, ObjectMeta], KubernetesObject]

# By resource: API group, plural and parser, in the order in which they are tried. EndpointSlices are v1 from
# Kubernetes 1.21 on and v1beta1 from 1.17 on; older servers have only Endpoints.
_API_PATHS: Final[Mapping[str, tuple[tuple[str, str, ObjectParser], ...]]] = {
    "pods": (("/api/v1", "pods", parse_pod_object),),
    "services": (("/api/v1", "services", parse_service),),
    "endpointslices": (
        ("/apis/discovery.k8s.io/v1", "endpointslices", parse_endpoint_slice),
        ("/apis/discovery.k8s.io/v1beta1", "endpointslices", parse_endpoint_slice),
        ("/api/v1", "endpoints", parse_endpoints),
    ),
    "nodes": (("/api/v1", "nodes", parse_labeled),),
    "namespaces": (("/api/v1", "namespaces", parse_labeled),),
    "secrets": (("/api/v1", "secrets", parse_secret),),
    "statefulsets": (("/apis/apps/v1", "statefulsets", parse_stateful_set),),
}


@dataclass(frozen=True, slots=True)
class WatchScope:
    """The objects to watch. An empty `namespace` means all namespaces, an empty `name` all objects.

    Objects that match none of `selectors` are kept with their name only; None keeps all objects completely.
    """

    resource: str
    namespace: str = ""
    name: str = ""
    selectors: frozenset[LabelSelector] | None = None
    annotations: bool = False


class ObjectWatch(ListWatch[KubernetesObject]):
    """Watches the objects of a WatchScope. `objects` maps keys to objects; None before the first list.

    `on_change` is called in the thread of the watch when the objects or the health of the watch change.
    """

    # Short, to find new targets soon after an outage: there are few agents, so the load is low.
    max_pause: ClassVar[float] = 10.0

    def __init__(
        self,
        access: ApiServerAccess,
        scope: WatchScope,
        on_change: Callable[[], None],
        *,
        clock: Clock,
        random: Jitter | None = None,
        jitter: float = 0.0,
        watch_seconds: float = 300.0,
    ) -> None:
        self.scope = scope
        self.objects: Mapping[str, KubernetesObject] | None = None
        self._on_change = on_change
        self._path_index = 0
        name = f" {scope.name}" if scope.name else ""
        where = f"{name} of {scope.namespace}" if scope.namespace else ""
        super().__init__(
            ApiClient(access),
            self._current_path(),
            {"fieldSelector": f"metadata.name={scope.name}"} if scope.name else {},
            clock=clock,
            random=random,
            jitter=jitter,
            watch_seconds=watch_seconds,
            name=f"{scope.resource}{where}",
        )
        # Set by the first 403 on a list, cleared by the next successful one.
        self.forbidden = False

    def _current_path(self) -> str:
        root, plural, _ = _API_PATHS[self.scope.resource][self._path_index]
        below = f"/namespaces/{self.scope.namespace}" if self.scope.namespace else ""
        return f"{root}{below}/{plural}"

    def _list(self) -> None:
        path_count = len(_API_PATHS[self.scope.resource])
        for left in reversed(range(path_count)):
            try:
                super()._list()
            except ApiServerRefused as error:
                if error.status == 403 and not self.forbidden:
                    self.forbidden = True
                    self._on_change()
                if error.status != 404 or not left:
                    raise
                self._path_index = (self._path_index + 1) % path_count
                self._path = self._current_path()
            else:
                self.forbidden = False
                return

    def _parse_object(self, data: object) -> KubernetesObject | None:
        meta = parse_meta(data, annotations=self.scope.annotations)
        if meta is None:
            return None
        selectors = self.scope.selectors
        if selectors is not None:
            labels = dict(meta.labels)
            if not any(selector.matches(labels) for selector in selectors):
                return LabeledObject(ObjectMeta(meta.namespace, meta.name))
        return _API_PATHS[self.scope.resource][self._path_index][2](data, meta)

    def _object_key(self, item: KubernetesObject) -> str:
        return item.meta.key

    def _publish(self) -> None:
        self.objects = self._objects.copy()
        self._on_change()

    def _failed(self, error: str) -> None:
        before = self._health.error
        super()._failed(error)
        if self._health.error != before:
            self._on_change()
