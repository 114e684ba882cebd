"""Watches of the API server: pass every change of a resource or object to a handler."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from gpuledger.kubernetes.access import ApiServerAccess
from gpuledger.kubernetes.api_client import ApiClient
from gpuledger.kubernetes.list_watch import ListWatch
from gpuledger.kubernetes.object_client import Json
from gpuledger.model.source import Clock
from gpuledger.operator.kinds import KINDS, MANAGED_SELECTOR, RESOURCE_KINDS, ObjectKind

# Handles a changed object; the second argument is True if it was deleted.
ObjectHandler = Callable[[Json, bool], object]


class KindWatch(ListWatch[Json]):
    """A watch of one kind in one namespace or in all. `handle` is called in the thread of the watch.

    A deletion during a gap of the watch is not reported; the periodic listing of the term finds it.
    """

    max_pause: ClassVar[float] = 10.0

    def __init__(
        self, access: ApiServerAccess, kind: ObjectKind, namespace: str, handle: ObjectHandler, clock: Clock
    ) -> None:
        self.kind = kind
        self._handle = handle
        # Only objects of the operator have its label; resources of users do not.
        query = {} if kind in RESOURCE_KINDS else {"labelSelector": MANAGED_SELECTOR}
        where = f" of {namespace}" if namespace else ""
        super().__init__(
            ApiClient(access),
            kind.path(namespace),
            query,
            clock=clock,
            jitter=0.0,
            name=f"{kind.plural}{where}",
        )

    def _parse_object(self, data: object) -> Json | None:
        if not isinstance(data, dict) or not isinstance(data.get("metadata"), dict):
            return None
        return self.kind.typed(data)

    def _object_key(self, item: Json) -> str:
        metadata = item["metadata"]
        return f"{metadata.get('namespace', '')}/{metadata.get('name', '')}"

    def _apply_change(self, kind: str, item: Json) -> bool:
        super()._apply_change(kind, item)
        self._handle(item, kind == "DELETED")
        return False

    def _publish(self) -> None:
        """Pass on all objects; called after a listing."""
        for body in self._objects.values():
            self._handle(body, False)


@dataclass(eq=False, slots=True)
class ClusterWatch:
    """All watches of one term. Both handlers are called in the event loop of `run`: `on_monitor` for the
    `resources` of users in the whole cluster, `on_object` for objects that the operator created in
    `namespaces`, of the kinds `managed`.
    """

    access: ApiServerAccess
    resources: Sequence[ObjectKind]
    namespaces: Sequence[str]
    on_monitor: ObjectHandler
    on_object: ObjectHandler
    clock: Clock
    managed: Sequence[ObjectKind] = KINDS
    _watches: list[KindWatch] = field(default_factory=list, init=False)

    @property
    def refused_kinds(self) -> set[str]:
        """The kinds that the API server does not serve now: the CRD or a permission is missing."""
        return {watch.kind.kind for watch in self._watches if watch.refused}

    async def run(self) -> None:
        """Watch until cancelled."""
        loop = asyncio.get_running_loop()

        def in_loop(handle: ObjectHandler) -> ObjectHandler:
            return lambda body, deleted: loop.call_soon_threadsafe(handle, body, deleted)

        watched = [(kind, "", in_loop(self.on_monitor)) for kind in self.resources]
        on_object = in_loop(self.on_object)
        for kind in self.managed:
            namespaces = sorted(set(self.namespaces)) if kind.namespaced else [""]
            watched += [(kind, namespace, on_object) for namespace in namespaces]
        for kind, namespace, handle in watched:
            self._watches.append(KindWatch(self.access, kind, namespace, handle, self.clock))
        try:
            for watch in self._watches:
                watch.start()
            await asyncio.Event().wait()
        finally:
            # Stop them concurrently: a thread that waits for the API server must not delay the others.
            await asyncio.gather(*(asyncio.to_thread(watch.stop) for watch in self._watches))
