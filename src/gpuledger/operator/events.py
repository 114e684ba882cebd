"""Events about a resource (`kubectl describe` shows them): few, and never the same one twice in an hour."""

from __future__ import annotations

import logging
from datetime import UTC, datetime

from gpuledger.model.errors import GpuledgerError
from gpuledger.model.source import Clock
from gpuledger.operator.api import Api, Json, Refused
from gpuledger.operator.counts import Counts
from gpuledger.operator.kinds import EVENT
from gpuledger.operator.owned import digest
from gpuledger.operator.render.names import MANAGER

log = logging.getLogger("gpuledger.operator")

# Those of cluster-scoped resources live here.
_NAMESPACE = "default"


class Events:
    """Posts events, each under a name made of what it says.

    An event that says the same again is refused by the API server while the first is kept (an hour), so that
    a restart, or a resource that stays ill, repeats nothing. That one cannot be posted is no failure.
    """

    def __init__(self, api: Api, identity: str, clock: Clock, counts: Counts) -> None:
        self._api = api
        self._identity = identity
        self._clock = clock
        self._counts = counts
        self._last: dict[tuple[str, str], str] = {}

    async def post(self, about: Json, kind: str, reason: str, message: str) -> None:
        """`kind` is Normal or Warning. What was said last of a resource by this reason is not said again."""
        metadata = about["metadata"]
        if self._last.get((metadata["uid"], reason)) == message:
            return
        self._last[metadata["uid"], reason] = message
        now = datetime.fromtimestamp(self._clock.unix(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        name = digest([metadata["uid"], metadata.get("generation"), reason, message])[:16]
        body = {
            "apiVersion": EVENT.api_version,
            "kind": EVENT.kind,
            "metadata": {"name": f"{metadata['name']}.{name}", "namespace": _NAMESPACE},
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
            "source": {"component": MANAGER, "host": self._identity},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        try:
            await self._api.create(EVENT.path(_NAMESPACE), body)
        except Refused as error:
            if error.status != 409:
                log.warning("%s", error)
        except GpuledgerError as error:
            log.debug("%s", error)
        else:
            self._counts.events += 1

    def forget(self, uid: str) -> None:
        """The resource is gone."""
        self._last = {key: message for key, message in self._last.items() if key[0] != uid}
