"""Which of several operators acts: the one that holds a Lease (coordination.k8s.io) and renews it in time."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime
from typing import Final

from gpuledger.kubernetes.writing import Api, Json, Refused
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.source import Clock
from gpuledger.operator.kinds import LEASE

log = logging.getLogger("gpuledger.operator")

# Of the Lease's duration: how often it is renewed, and after how long without success one has lost it. Who
# waits believes it lost only after the whole: the margin is for an answer that is on its way, and for clocks
# that do not run alike.
_RENEW: Final = 1 / 5
_GIVE_UP: Final = 2 / 3


class Leader:
    """Holds, or waits for, one Lease as `identity`.

    Clocks of machines need not agree: how long another's Lease has not been renewed is counted from when this
    process saw it change last, as Kubernetes' own controllers do.
    """

    def __init__(
        self, api: Api, namespace: str, name: str, identity: str, duration: float, clock: Clock
    ) -> None:
        self._api = api
        self._namespace = namespace
        self._name = name
        self.identity = identity
        self._duration = duration
        self._clock = clock
        self._lease: Json = {}
        self._changed_at = 0.0
        # When it was asked for that was granted last.
        self._renewed_at = 0.0
        self._complaint = ""
        self.holder = ""

    @property
    def leads(self) -> bool:
        """Whether this process acts, as far as it knows."""
        return self.holder == self.identity

    async def acquire(self) -> None:
        """Returns once this process holds the Lease."""
        while True:
            asked = self._clock.elapsed()
            if await self.look():
                break
            await asyncio.sleep(self._duration * _RENEW)
        self._renewed_at = asked
        log.info(
            "this operator acts from now on (%s holds %s/%s)", self.identity, self._namespace, self._name
        )

    async def keep(self) -> None:
        """Renew the Lease; returns when it is lost, and in time before another can have taken it."""
        while (left := self._left()) > 0:
            await asyncio.sleep(min(self._duration * _RENEW, left))
            asked = self._clock.elapsed()
            try:
                held = await asyncio.wait_for(self.look(), max(self._left(), 0.0))
            except TimeoutError:
                held = False
            if held:
                self._renewed_at = asked
            elif self.holder != self.identity:
                log.warning("another operator acts now: %s", self.holder or "nobody is named")
                return
        log.warning("the Lease could not be renewed in time: another operator may act")
        self.holder = ""

    def _left(self) -> float:
        """Seconds for which this process may act without another renewal."""
        return self._duration * _GIVE_UP - (self._clock.elapsed() - self._renewed_at)

    async def release(self) -> None:
        """Let another operator take over at once. Best effort: without it, it waits for the duration."""
        if not self.leads:
            return
        self.holder = ""
        try:
            await asyncio.wait_for(self._let_go(), 2.0)
        except (GpuledgerError, TimeoutError):
            log.debug("the Lease could not be released")

    async def _let_go(self) -> None:
        try:
            await self._write(self._free())
        except Refused as error:
            if error.status != 409:
                raise
            # A renewal that was on its way when this process was told to stop has changed it.
            found = await self._api.get(LEASE.path(self._namespace, self._name))
            if (found.get("spec") or {}).get("holderIdentity") == self.identity:
                self._see(found)
                await self._write(self._free())

    def _free(self) -> Json:
        return {**self._spec(), "holderIdentity": "", "leaseDurationSeconds": 1}

    async def look(self) -> bool:
        """Take or renew the Lease; whether it is held now."""
        try:
            held = await self._take()
        except GpuledgerError as error:
            if str(error) != self._complaint:
                self._complaint = str(error)
                log.warning("%s", error)
            return False
        self._complaint = ""
        return held

    async def _take(self) -> bool:
        if self.leads and await self._renew():
            return True
        try:
            found = await self._api.get(LEASE.path(self._namespace, self._name))
        except Refused as error:
            if error.status != 404:
                raise
            return await self._create()
        self._see(found)
        spec = found.get("spec") or {}
        self.holder = str(spec.get("holderIdentity") or "")
        if not self.leads and self.holder and not self._is_over(spec):
            return False
        if not await self._renew():
            # Somebody was faster; who, the next look tells.
            return False
        self.holder = self.identity
        return True

    async def _renew(self) -> bool:
        """Write the Lease as this process knows it; False when it is not so any more."""
        try:
            await self._write(self._renewed(self._lease.get("spec") or {}))
        except Refused as error:
            if error.status not in (404, 409):
                raise
            return False
        return True

    def _see(self, found: Json) -> None:
        version = found["metadata"].get("resourceVersion")
        if not self._lease or version != self._lease["metadata"].get("resourceVersion"):
            self._changed_at = self._clock.elapsed()
        self._lease = found

    def _is_over(self, spec: Json) -> bool:
        """Whether its holder has let it run out."""
        duration = spec.get("leaseDurationSeconds")
        held_for = float(duration) if isinstance(duration, int) else self._duration
        return self._clock.elapsed() - self._changed_at > held_for

    def _renewed(self, spec: Json) -> Json:
        now = _micro_time(self._clock.unix())
        if spec.get("holderIdentity") == self.identity:
            return {**self._spec(), "renewTime": now}
        return {
            **self._spec(),
            "acquireTime": now,
            "renewTime": now,
            "leaseTransitions": int(spec.get("leaseTransitions") or 0) + 1,
        }

    def _spec(self) -> Json:
        known: Json = self._lease.get("spec") or {}
        # The server takes whole seconds.
        seconds = max(1, round(self._duration))
        return {**known, "holderIdentity": self.identity, "leaseDurationSeconds": seconds}

    async def _create(self) -> bool:
        now = _micro_time(self._clock.unix())
        spec = {**self._spec(), "acquireTime": now, "renewTime": now, "leaseTransitions": 0}
        body = {
            "apiVersion": LEASE.api_version,
            "kind": LEASE.kind,
            "metadata": {"name": self._name, "namespace": self._namespace},
            "spec": spec,
        }
        try:
            self._see(await self._api.create(LEASE.path(self._namespace), body))
        except Refused as error:
            if error.status != 409:
                raise
            return False
        self.holder = self.identity
        return True

    async def _write(self, spec: Json) -> None:
        path = LEASE.path(self._namespace, self._name)
        # PUT with the version that was read: of two at once, one is refused.
        self._see(await self._api.replace(path, {**self._lease, "spec": spec}))


def _micro_time(unix: float) -> str:
    return datetime.fromtimestamp(unix, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
