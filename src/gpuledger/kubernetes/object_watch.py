"""One kind of object, in one namespace or in all of them, as an API server has it now."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from random import Random
from typing import ClassVar, Final, Protocol

from gpuledger.kubernetes.access import Access
from gpuledger.kubernetes.client import ApiClient, Refused
from gpuledger.kubernetes.listing import ListWatch
from gpuledger.kubernetes.objects import (
    Meta,
    Selector,
    Unselected,
    read_endpoints,
    read_meta,
    read_plain,
    read_pod,
    read_scale,
    read_secret,
    read_service,
    read_slice,
)
from gpuledger.model.source import Clock


class Object(Protocol):
    """What all objects have."""

    @property
    def meta(self) -> Meta:
        """Which it is."""


Reader = Callable[[object, Meta], Object]

# By resource: where it is in the API, in the order in which that is tried, and how it is read. EndpointSlices
# are v1 from Kubernetes 1.21 on, v1beta1 from 1.17 on; before there are only Endpoints.
_PLACES: Final[Mapping[str, tuple[tuple[str, str, Reader], ...]]] = {
    "pods": (("/api/v1", "pods", read_pod),),
    "services": (("/api/v1", "services", read_service),),
    "endpointslices": (
        ("/apis/discovery.k8s.io/v1", "endpointslices", read_slice),
        ("/apis/discovery.k8s.io/v1beta1", "endpointslices", read_slice),
        ("/api/v1", "endpoints", read_endpoints),
    ),
    "nodes": (("/api/v1", "nodes", read_plain),),
    "namespaces": (("/api/v1", "namespaces", read_plain),),
    "secrets": (("/api/v1", "secrets", read_secret),),
    "statefulsets": (("/apis/apps/v1", "statefulsets", read_scale),),
}


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is watched. An empty `namespace` is all of them, an empty `name` every object.

    Of objects that none of `selectors` means only the name is kept; None keeps all.
    """

    resource: str
    namespace: str = ""
    name: str = ""
    selectors: frozenset[Selector] | None = None
    annotations: bool = False


class ObjectWatch(ListWatch[Object]):
    """`objects` are the last known ones by key; None until they were listed for the first time.

    `told` is called from the watch's thread whenever they have changed or the watch's health has.
    """

    # Targets that came while the server was away are to be found soon after: agents are few.
    longest_pause: ClassVar[float] = 10.0

    def __init__(
        self,
        access: Access,
        wanted: Wanted,
        told: Callable[[], None],
        *,
        clock: Clock,
        random: Random | None = None,
        jitter: float = 0.0,
        watch_seconds: float = 300.0,
    ) -> None:
        self.wanted = wanted
        self.objects: Mapping[str, Object] | None = None
        self._told = told
        self._place = 0
        one = f" {wanted.name}" if wanted.name else ""
        where = f"{one} of {wanted.namespace}" if wanted.namespace else ""
        super().__init__(
            ApiClient(access),
            self._path_now(),
            {"fieldSelector": f"metadata.name={wanted.name}"} if wanted.name else {},
            clock=clock,
            random=random,
            jitter=jitter,
            watch_seconds=watch_seconds,
            name=f"{wanted.resource}{where}",
        )
        # Until then they are not forbidden.
        self.forbidden = False

    def _path_now(self) -> str:
        root, plural, _ = _PLACES[self.wanted.resource][self._place]
        below = f"/namespaces/{self.wanted.namespace}" if self.wanted.namespace else ""
        return f"{root}{below}/{plural}"

    def _list(self) -> None:
        places = len(_PLACES[self.wanted.resource])
        for left in reversed(range(places)):
            try:
                super()._list()
            except Refused as error:
                if error.status == 403 and not self.forbidden:
                    self.forbidden = True
                    self._told()
                if error.status != 404 or not left:
                    raise
                self._place = (self._place + 1) % places
                self._path = self._path_now()
            else:
                self.forbidden = False
                return

    def _read(self, told: object) -> Object | None:
        meta = read_meta(told, annotations=self.wanted.annotations)
        if meta is None:
            return None
        selectors = self.wanted.selectors
        if selectors is not None:
            labels = dict(meta.labels)
            if not any(selector.matches(labels) for selector in selectors):
                return Unselected(Meta(meta.namespace, meta.name))
        return _PLACES[self.wanted.resource][self._place][2](told, meta)

    def _key(self, about: Object) -> str:
        return about.meta.key

    def _publish(self) -> None:
        self.objects = self._objects.copy()
        self._told()

    def _failed(self, error: str) -> None:
        before = self._health.error
        super()._failed(error)
        if self._health.error != before:
            self._told()


def all_of(watches: Iterable[ObjectWatch]) -> list[Object] | None:
    """The objects of several watches; None while one of them was not listed yet."""
    found: dict[str, Object] = {}
    for watch in watches:
        if watch.objects is None:
            return None
        found.update(watch.objects)
    return list(found.values())
