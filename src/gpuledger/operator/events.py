"""Kubernetes events: posts those about resources, and reads why the pods of their sets are not created."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from re import sub

from gpuledger.kubernetes.access import FIELD_MANAGER
from gpuledger.kubernetes.object_client import Json, ObjectClient, WriteRefused
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.source import Clock
from gpuledger.operator.counts import OperatorCounts
from gpuledger.operator.kinds import EVENT_KIND, uid_of
from gpuledger.operator.managed_objects import content_digest
from gpuledger.operator.object_lists import list_objects

log = logging.getLogger("gpuledger.operator")

# Kubernetes stores events about cluster-scoped objects in this namespace.
_EVENT_NAMESPACE = "default"


@dataclass(eq=False, slots=True)
class EventRecorder:
    """Posts events; the name of an event is a digest of its content.

    The API server refuses an event with the same content while it stores the first one (an hour). So neither
    a restart nor a lasting problem repeats an event. A failed post is logged and otherwise ignored.
    """

    api: ObjectClient
    identity: str
    clock: Clock
    counts: OperatorCounts
    _last: dict[tuple[str, str], str] = field(default_factory=dict, init=False)

    async def post_event(self, about: Json, kind: str, reason: str, message: str) -> None:
        """Post an event of type `kind` (Normal or Warning), unless it repeats the last one of its reason."""
        metadata = about["metadata"]
        if self._last.get((metadata["uid"], reason)) == message:
            return
        self._last[metadata["uid"], reason] = message
        now = datetime.fromtimestamp(self.clock.unix(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        name = content_digest([metadata["uid"], metadata.get("generation"), reason, message])[:16]
        body = {
            "metadata": {"name": f"{metadata['name']}.{name}", "namespace": _EVENT_NAMESPACE},
            "involvedObject": {
                "apiVersion": about["apiVersion"],
                "kind": about["kind"],
                "name": metadata["name"],
                "uid": metadata["uid"],
                "resourceVersion": metadata.get("resourceVersion"),
            },
            "type": kind,
            "reason": reason,
            "message": message,
            "source": {"component": FIELD_MANAGER, "host": self.identity},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        try:
            await self.api.create(EVENT_KIND.path(_EVENT_NAMESPACE), EVENT_KIND.typed(body))
        except WriteRefused as error:
            if error.status != 409:
                log.warning("%s", error)
        except GpuledgerError as error:
            log.debug("%s", error)
        else:
            self.counts.events += 1

    def forget_monitor(self, uid: str) -> None:
        """Forget the events of a resource that was deleted."""
        self._last = {key: message for key, message in self._last.items() if key[0] != uid}


async def find_creation_failure(api: ObjectClient, sets: Iterable[Json]) -> str:
    """Why the pods of these sets are not created, such as a policy or a quota; empty if it is not known."""
    for body in sets:
        selector = f"involvedObject.uid={uid_of(body)},reason=FailedCreate"
        try:
            events, _ = await list_objects(
                api, EVENT_KIND, body["metadata"]["namespace"], fieldSelector=selector
            )
        except GpuledgerError as error:
            log.debug("%s", error)
            continue
        if events:
            newest = max(events, key=_last_time)
            # Each attempt has another pod name.
            message = sub(r'\bpods "[^"]*" is ', "pods are ", str(newest.get("message") or ""))
            return f"the pods of {body['kind']} {body['metadata']['name']} are not created: {message}"
    return ""


def _last_time(event: Json) -> str:
    series = event.get("series") or {}
    times = (event.get("lastTimestamp"), series.get("lastObservedTime"), event.get("eventTime"))
    return max(str(time or "") for time in times)
