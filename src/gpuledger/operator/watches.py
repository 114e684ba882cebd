"""Watches of the API server: pass every change of a resource or object to a handler."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from gpuledger.kubernetes.access import ApiServerAccess
from gpuledger.kubernetes.api_client import ApiClient
from gpuledger.kubernetes.list_watch import ListWatch
from gpuledger.kubernetes.object_client import Json
from gpuledger.model.source import Clock
from gpuledger.operator.kinds import KINDS, MANAGED_SELECTOR, ObjectKind

# Handles a changed object; the second argument is True if it was deleted.
ObjectHandler = Callable[[Json, bool], None]


@dataclass(frozen=True, slots=True)
class WatchedKinds:
    """The watched kinds: resources of users in the whole cluster, and created objects in some namespaces."""

    resources: Sequence[ObjectKind]
    namespaces: Sequence[str]


class KindWatch(ListWatch[Json]):
    """A watch of one kind in one namespace or in all. `handle` is called in the thread of the watch.

    A deletion during a gap of the watch is not reported; the periodic listing of the term finds it.
    """

    max_pause: ClassVar[float] = 10.0

    def __init__(
        self,
        access: ApiServerAccess,
        kind: ObjectKind,
        namespace: str,
        selector: str,
        handle: ObjectHandler,
        clock: Clock,
    ) -> None:
        self._kind = kind
        self._handle = handle
        query = {"labelSelector": selector} if selector else {}
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
        return self._kind.typed(data)

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


class ClusterWatch:
    """All watches of one term. Both handlers are called in the event loop of `run`: `on_monitor` for
    resources of users, `on_object` for objects that the operator created.
    """

    def __init__(
        self,
        access: ApiServerAccess,
        watched: WatchedKinds,
        on_monitor: ObjectHandler,
        on_object: ObjectHandler,
        clock: Clock,
    ) -> None:
        self._access = access
        self._watched = watched
        self._on_monitor = on_monitor
        self._on_object = on_object
        self._clock = clock

    async def run(self) -> None:
        """Watch until cancelled."""
        watches = list(self._watches(asyncio.get_running_loop()))
        try:
            for watch in watches:
                watch.start()
            await asyncio.Event().wait()
        finally:
            # Stop them concurrently: a thread that waits for the API server must not delay the others.
            await asyncio.gather(*(asyncio.to_thread(watch.stop) for watch in watches))

    def _watches(self, loop: asyncio.AbstractEventLoop) -> Iterator[KindWatch]:
        def in_loop(handle: ObjectHandler) -> ObjectHandler:
            def schedule(body: Json, deleted: bool) -> None:
                loop.call_soon_threadsafe(handle, body, deleted)

            return schedule

        for kind in self._watched.resources:
            yield KindWatch(self._access, kind, "", "", in_loop(self._on_monitor), self._clock)
        for kind in KINDS:
            for namespace in sorted(set(self._watched.namespaces)) if kind.namespaced else [""]:
                yield KindWatch(
                    self._access, kind, namespace, MANAGED_SELECTOR, in_loop(self._on_object), self._clock
                )
