"""Leader election by a Lease (coordination.k8s.io): the leader holds it and renews it in time."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from gpuledger.kubernetes.object_client import Json, ObjectClient, WriteRefused
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.source import Clock
from gpuledger.operator.kinds import LEASE_KIND
from gpuledger.operator.object_lists import get_if_exists

log = logging.getLogger("gpuledger.operator")

# Fractions of the Lease's duration: the interval of renewals, and the time without a successful renewal after
# which the leader steps down. Others wait for the whole duration. The difference allows for requests in
# flight and for clocks of different speed.
_RENEW_INTERVAL: Final = 1 / 5
_RENEW_DEADLINE: Final = 2 / 3


@dataclass(eq=False, slots=True)
class LeaderElection:
    """Acquires and renews a Lease as `identity`.

    The machines' clocks need not agree: the age of another holder's renewal is measured from when this
    process last observed a change of the Lease, as in client-go.
    """

    api: ObjectClient
    namespace: str
    name: str
    identity: str
    duration: float
    clock: Clock
    _lease: Json = field(default_factory=dict, init=False)
    _changed_at: float = field(default=0.0, init=False)
    # When the request of the last successful acquisition or renewal was sent.
    _renewed_at: float = field(default=0.0, init=False)
    _last_error: str = field(default="", init=False)
    holder: str = field(default="", init=False)

    @property
    def is_leader(self) -> bool:
        """Whether this process is the leader, as far as it knows."""
        return self.holder == self.identity

    async def acquire(self) -> None:
        """Wait until this process holds the Lease."""
        while True:
            requested_at = self.clock.elapsed()
            if await self.try_acquire():
                break
            await asyncio.sleep(self.duration * _RENEW_INTERVAL)
        self._renewed_at = requested_at
        log.info("%s is now the leader (Lease %s/%s)", self.identity, self.namespace, self.name)

    async def keep_renewing(self) -> None:
        """Renew the Lease until it is lost; returns before another operator can have acquired it."""
        while (left := self._time_left()) > 0:
            await asyncio.sleep(min(self.duration * _RENEW_INTERVAL, left))
            requested_at = self.clock.elapsed()
            try:
                # Unlike this, `wait_for` of Python 3.11 loses a cancellation when the result is there.
                async with asyncio.timeout(max(self._time_left(), 0.0)):
                    held = await self.try_acquire()
            except TimeoutError:
                held = False
            if held:
                self._renewed_at = requested_at
            elif self.holder != self.identity:
                log.warning("lost the Lease; the new leader is %s", self.holder or "not known")
                return
        log.warning("could not renew the Lease in time; another operator may become the leader")
        self.holder = ""

    def _time_left(self) -> float:
        """Seconds until this process must step down unless the Lease is renewed."""
        return self.duration * _RENEW_DEADLINE - (self.clock.elapsed() - self._renewed_at)

    async def release(self) -> None:
        """Clear the holder, so that another operator takes over at once.

        Best effort: if it fails, the other operator waits for the Lease's duration.
        """
        if not self.is_leader:
            return
        self.holder = ""
        try:
            async with asyncio.timeout(2.0):
                await self._clear_holder()
        except (GpuledgerError, TimeoutError):
            log.debug("could not release the Lease")

    async def _clear_holder(self) -> None:
        try:
            await self._write_released()
        except WriteRefused as error:
            if error.status != 409:
                raise
            # A renewal that was in flight when this process stopped has changed the Lease.
            found = await self.api.get(self._path)
            if (found.get("spec") or {}).get("holderIdentity") == self.identity:
                self._observe(found)
                await self._write_released()

    async def _write_released(self) -> None:
        await self._write({**self._spec(), "holderIdentity": "", "leaseDurationSeconds": 1})

    async def try_acquire(self) -> bool:
        """Acquire or renew the Lease; returns whether this process holds it now."""
        try:
            held = await self._acquire_or_renew()
        except GpuledgerError as error:
            if str(error) != self._last_error:
                self._last_error = str(error)
                log.warning("%s", error)
            return False
        self._last_error = ""
        return held

    async def _acquire_or_renew(self) -> bool:
        if self.is_leader and await self._renew():
            return True
        found = await get_if_exists(self.api, self._path)
        if found is None:
            return await self._create()
        self._observe(found)
        spec = found.get("spec") or {}
        self.holder = str(spec.get("holderIdentity") or "")
        if not self.is_leader and self.holder and not self._is_expired(spec):
            return False
        if not await self._renew():
            # Another client was faster; the next attempt reads its name.
            return False
        self.holder = self.identity
        return True

    async def _renew(self) -> bool:
        """Write the last observed Lease with a new renewal time; False if it has changed meanwhile."""
        try:
            await self._write(self._renewed_spec())
        except WriteRefused as error:
            if error.status not in (404, 409):
                raise
            return False
        return True

    def _observe(self, found: Json) -> None:
        version = found["metadata"].get("resourceVersion")
        if not self._lease or version != self._lease["metadata"].get("resourceVersion"):
            self._changed_at = self.clock.elapsed()
        self._lease = found

    def _is_expired(self, spec: Json) -> bool:
        """Whether the holder has not renewed the Lease for its duration."""
        duration = spec.get("leaseDurationSeconds")
        held_for = float(duration) if isinstance(duration, int) else self.duration
        return self.clock.elapsed() - self._changed_at > held_for

    def _renewed_spec(self) -> Json:
        before = self._lease.get("spec") or {}
        renewed = {**self._spec(), "renewTime": self._micro_time()}
        if before.get("holderIdentity") == self.identity:
            return renewed
        transitions = int(before.get("leaseTransitions") or 0) + 1
        return {**renewed, "acquireTime": renewed["renewTime"], "leaseTransitions": transitions}

    def _spec(self) -> Json:
        known: Json = self._lease.get("spec") or {}
        # The API allows only whole seconds.
        seconds = max(1, round(self.duration))
        return {**known, "holderIdentity": self.identity, "leaseDurationSeconds": seconds}

    async def _create(self) -> bool:
        now = self._micro_time()
        spec = {**self._spec(), "acquireTime": now, "renewTime": now, "leaseTransitions": 0}
        metadata = {"name": self.name, "namespace": self.namespace}
        body = LEASE_KIND.typed({"metadata": metadata, "spec": spec})
        try:
            self._observe(await self.api.create(LEASE_KIND.path(self.namespace), body))
        except WriteRefused as error:
            if error.status != 409:
                raise
            return False
        self.holder = self.identity
        return True

    async def _write(self, spec: Json) -> None:
        # PUT with the observed resource version: of two concurrent writes, one is refused.
        self._observe(await self.api.replace(self._path, {**self._lease, "spec": spec}))

    @property
    def _path(self) -> str:
        return LEASE_KIND.path(self.namespace, self.name)

    def _micro_time(self) -> str:
        return datetime.fromtimestamp(self.clock.unix(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
