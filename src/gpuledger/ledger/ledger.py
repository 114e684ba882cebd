"""The Ledger: converts Snapshots into accounting state."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from math import inf
from typing import TypeVar

from gpuledger.ledger.accounts import Accounts
from gpuledger.ledger.allocation_times import AllocationTimes
from gpuledger.ledger.device_states import DeviceStates, sm_ratios
from gpuledger.ledger.energy.booking import EnergyPolicy
from gpuledger.ledger.energy.energy_ledger import QUANTITIES, EnergyLedger
from gpuledger.ledger.energy.floor import configured_floors
from gpuledger.ledger.energy.gpu_energy_ledger import Posting
from gpuledger.ledger.exported_counters import latest_exported
from gpuledger.ledger.holders import drawing_processes
from gpuledger.ledger.journal import LedgerStore
from gpuledger.ledger.owners import OwnerTimes
from gpuledger.ledger.persistence import LedgerPersistence
from gpuledger.ledger.service_processes import serving_processes
from gpuledger.ledger.sessions import OpenSession, Sessions
from gpuledger.ledger.settings import LedgerSettings
from gpuledger.ledger.throttling import ThrottleTimes
from gpuledger.ledger.time.span import TimePosting
from gpuledger.ledger.time.time_ledger import TimeLedger
from gpuledger.ledger.time_accounts import TimeAccounts
from gpuledger.ledger.time_persistence import TimePersistence
from gpuledger.ledger.usage.host_usage import HostRecorder
from gpuledger.ledger.usage.usage_recorder import UsageRecorder
from gpuledger.ledger.xid_log import XidLog
from gpuledger.model.family import Distribution
from gpuledger.model.process import GpuProcess, ProcessKey
from gpuledger.model.quantities import Quantity
from gpuledger.model.session import ALLOCATION, EnergyState, LedgerState, TimeState
from gpuledger.model.snapshot import Snapshot

# Histogram bounds in seconds, from a test run to a week of training.
BOUNDS = (10.0, 60.0, 300.0, 1800.0, 3600.0, 14_400.0, 43_200.0, 86_400.0, 259_200.0, 604_800.0)

log = logging.getLogger("gpuledger.ledger")

# The hold of an earlier run is used for this many times its length: until its clients are known again.
_EARLIER_SCRAPES = 6

T = TypeVar("T")

_NO_DURATIONS = Distribution(BOUNDS, (0,) * len(BOUNDS), 0, 0.0)


def _add_duration(before: Distribution, session: OpenSession) -> Distribution:
    """Add an ended Session to a histogram of durations; 0 s if the wall clock was set back during it."""
    seconds = max(session.last_seen - session.first_seen, 0.0)
    counts = (count + (seconds <= bound) for bound, count in zip(BOUNDS, before.counts, strict=True))
    return Distribution(BOUNDS, tuple(counts), before.count + 1, before.sum + seconds)


class ProcessCap:
    """Limits the individually exported processes of each Device to `most`.

    Processes are selected by memory, then SM share, and remain selected until they exit: series that appear
    and disappear with each memory change would be useless.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._exported: dict[str, frozenset[ProcessKey]] = {}

    def omitted_processes(
        self, snapshot: Snapshot, present: Mapping[str, Collection[ProcessKey]]
    ) -> Mapping[str, frozenset[ProcessKey]]:
        """The processes beyond the cap, by Device uuid; Devices below the cap are not in the result.

        `present` are the processes of the previous Snapshot: while a Device is within the cap, all of them
        are exported.
        """
        omitted: dict[str, frozenset[ProcessKey]] = {}
        crowded: dict[str, frozenset[ProcessKey]] = {}
        for reading in snapshot.process_readings:
            uuid = reading.device.uuid
            if reading.processes is None:
                if uuid in self._exported:
                    crowded[uuid] = self._exported[uuid]
            elif len(reading.processes) > self._most:
                before = self._exported.get(uuid) or frozenset(present.get(uuid, ()))
                crowded[uuid] = self._choose(reading.processes, before)
                omitted[uuid] = frozenset(process.key for process in reading.processes) - crowded[uuid]
        self._exported = crowded
        return omitted

    def _choose(
        self, processes: tuple[GpuProcess, ...], before: frozenset[ProcessKey]
    ) -> frozenset[ProcessKey]:
        keys = {process.key: process for process in processes}
        ranked = sorted(keys, key=lambda key: (key not in before, _rank(keys[key])))
        return frozenset(ranked[: self._most])


def _rank(process: GpuProcess) -> tuple[bool, float, float, int]:
    # Graphics-only processes come last: the process and session dialects do not export them at all.
    return (not process.computes, -(process.memory or 0), -(process.usage.sm or 0.0), process.pid)


class Ledger:
    """Posts one Snapshot at a time; used only by the tick thread. Its state is an immutable value.

    With a `store`, it continues what the store holds, and saves each posting there before it returns the
    state. `basis` is that of the exported GPU time. `scrape_hold` returns the longest
    known scrape interval with its timeout, in seconds: new series are 0 for at least as long.
    """

    required_quantities: frozenset[Quantity] = QUANTITIES

    def __init__(
        self,
        settings: LedgerSettings,
        store: LedgerStore | None = None,
        basis: str = ALLOCATION,
        scrape_hold: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.sessions = Sessions(has_store=store is not None)
        floors = configured_floors(settings.empty_watts, settings.resident_watts)
        self.energy = EnergyLedger(floors, EnergyPolicy(settings.policy))
        self.time = TimeLedger()
        self._time_accounts = TimeAccounts(settings.zero_hold, settings.retention, basis)
        self._accounts = Accounts(settings.zero_hold, settings.retention)
        self._zero_hold = self._least_hold = settings.zero_hold
        self._scrape_hold = scrape_hold
        # The hold of an earlier run, until the clients of this one are known; when that ends.
        self._earlier_hold = 0.0 if store is None else store.stored_ledger.hold
        self._earlier_until: float | None = None
        self._logged_hold = max(self._least_hold, self._earlier_hold)
        # When the newest series of Xids and Devices that is exported in full began.
        self._latest = -inf
        self._xids_born: dict[tuple[str, int], float] = {}
        self._process_cap = ProcessCap(settings.max_per_device)
        self._states = DeviceStates()
        self._owners = OwnerTimes(settings.zero_hold, settings.retention)
        self._allocations = AllocationTimes()
        self._throttle_times = ThrottleTimes()
        self._xid_log = XidLog()
        self._usage, self._hosts = UsageRecorder(), HostRecorder()
        self._totals: Counter[str] = Counter()
        self._persistence: LedgerPersistence | None = None
        if store is not None:
            time = TimePersistence(self.time, self._time_accounts)
            self._persistence = LedgerPersistence(
                store,
                self.sessions,
                self._allocations,
                self.energy,
                self._accounts,
                time,
                self._xid_log,
                self._usage,
                self._hosts,
            )
        # After the last posting.
        self.state = LedgerState()
        # Postings that were taken from the counters and are not in all accounts yet. `_failed` are those of a
        # posting that raised.
        self._posted: list[Posting] = []
        self._failed: list[Posting] = []
        # Time that is in no account yet, because a posting raised; and time that the store does not have.
        self._time_posted: list[TimePosting] = []
        self._time_unsaved: list[TimePosting] = []

    @property
    def job_users(self) -> Mapping[tuple[str, str], str]:
        """The users of jobs with an active allocation, also of an earlier run, by kind and job."""
        owners = [one.owner for one in self._allocations.open()]
        return {(owner.kind, owner.job): owner.user for owner in owners if owner.job and owner.user}

    def apply_settings(self, settings: LedgerSettings) -> None:
        """Use these settings from the next posting on, except those that need a restart."""
        floors = configured_floors(settings.empty_watts, settings.resident_watts)
        self.energy.apply_settings(floors, EnergyPolicy(settings.policy))
        self._accounts.set_retention(settings.retention)
        self._time_accounts.set_retention(settings.retention)
        self._owners.retention = settings.retention

    def interrupt(self) -> None:
        """Stop observation until the next posting, on request (such as a pause).

        Unlike a reading that fails briefly, this gap belongs to no interval: its energy is unobserved and its
        time is not counted, however short it is.
        """
        self.sessions.interrupt()
        self._allocations.interrupt()
        self._usage.interrupt()
        self.energy.interrupt()
        self.time.interrupt()
        self._states.interrupt()
        self._owners.interrupt()

    def post(self, snapshot: Snapshot) -> LedgerState:
        """Book one Snapshot and return the state after it.

        If anything raises, no energy is lost: the next posting books what was taken from the counters as
        unobserved.
        """
        try:
            return self._post(snapshot)
        except Exception:
            self._failed = [one.voided() for one in (*self._failed, *self._posted)]
            self._posted = []
            raise

    def _post(self, snapshot: Snapshot) -> LedgerState:
        if self._persistence is not None:
            self._persistence.resume(snapshot, self._totals)
        self._update_hold(snapshot.elapsed)
        omitted = self._process_cap.omitted_processes(snapshot, self.sessions.by_device)
        rejected_before = self.energy.invalid
        serving = serving_processes(snapshot.processes)
        posted = self._posted = self.energy.post(snapshot, serving)
        for one in posted:
            self._totals[one.gpu.uuid] += one.millijoules
        time = self._post_time(snapshot, serving)
        drawing = drawing_processes(snapshot)
        self.sessions.post(snapshot, posted, serving, drawing)
        throttling = self._throttle_times.post(snapshot)
        if self._persistence is not None:
            self._allocations.post(snapshot)
            slowed = self._throttle_times.intervals
            self._usage.post(snapshot, self.sessions, serving | drawing, slowed)
            self._hosts.post(snapshot)
        energy = self._post_energy(snapshot, posted, omitted)
        self._states.post(snapshot, serving | drawing)
        durations = self._add_durations(snapshot)
        compute, graphics = self.sessions.counts(snapshot)
        xids, times = self._count_xids(snapshot)
        self._xid_log.post(snapshot, self.sessions)
        state = LedgerState(
            compute_sessions=compute,
            graphics_sessions=graphics,
            omitted=omitted,
            xids=xids,
            xid_times=times,
            invalid=self.state.invalid + snapshot.invalid + self.energy.invalid - rejected_before,
            energy=energy,
            time=time,
            sessions_closed={uuid: duration.count for uuid, duration in durations.items()},
            session_durations=durations,
            device_states=self._states.now,
            state_seconds=dict(self._states.seconds),
            sm_ratios=sm_ratios(snapshot),
            owners=self._owners.post(snapshot, serving | drawing),
            sessions=self.sessions.rows(),
            new_xids=self._new(self._xids_born),
            new_devices=self._new(self._states.born),
            xid_log=self._xid_log.rows,
            throttling=throttling,
            zero_hold=self._zero_hold,
        )
        self.state = state if self._persistence is None else self._save(self._persistence, snapshot, state)
        self._posted, self._failed = [], []
        return self.state

    def _update_hold(self, now: float) -> None:
        """Hold new series at 0 for the longest known scrape interval, at least as long as configured."""
        known = self._scrape_hold()
        if self._earlier_until is None:
            self._earlier_until = now + _EARLIER_SCRAPES * self._earlier_hold
        if known or now >= self._earlier_until:
            self._earlier_hold = 0.0
        hold = max(self._least_hold, known or self._earlier_hold)
        # Scrapes are a little late, now and then.
        if known > 1.1 * self._logged_hold:
            self._logged_hold = known
            log.info(
                "energy.zero_hold is %.0f s, and a client has a scrape interval and timeout of %.0f s: new "
                "counters are now exported as 0 for that long. Set energy.zero_hold to %.0fs, so that they "
                "are from the first scrape of a new node on",
                *(self._least_hold, known, known),
            )
        if hold != self._zero_hold:
            self._zero_hold = self._owners.hold = hold
            self._accounts.set_hold(hold)
            self._time_accounts.set_hold(hold)
        self._latest = latest_exported(self._latest, now, hold)
        if self._persistence is not None:
            self._persistence.journal.hold = hold

    def _new(self, born: Mapping[T, float]) -> frozenset[T]:
        """The keys with counters that are still exported as 0."""
        return frozenset([key for key, since in born.items() if since > self._latest])

    def _save(self, persistence: LedgerPersistence, snapshot: Snapshot, state: LedgerState) -> LedgerState:
        self._posted = self._failed + self._posted
        self._failed = []
        part, may_be_shown = persistence.save(snapshot, self._posted, self._totals, self._time_unsaved)
        if may_be_shown:
            return replace(state, parts=(part,))
        return replace(state, energy=self.state.energy, time=self.state.time, parts=(part,))

    def _post_time(self, snapshot: Snapshot, serving: frozenset[ProcessKey]) -> TimeState:
        self._time_posted += self.time.post(snapshot, serving)
        posted, self._time_posted = self._time_posted, []
        if self._persistence is not None:
            self._time_unsaved += posted
        self._time_accounts.post(posted, snapshot.elapsed)
        if self._persistence is None:
            self._time_accounts.discard_changes()
            return self._time_accounts.state(self.time.watched)
        return self._time_accounts.state(self._persistence.time.exported)

    def _post_energy(
        self, snapshot: Snapshot, posted: list[Posting], omitted: Mapping[str, frozenset[ProcessKey]]
    ) -> EnergyState:
        omitted_keys = frozenset().union(*omitted.values()) if omitted else frozenset()
        alive = self.sessions.alive()
        if self._persistence is not None and self._persistence.absent_gpus:
            # Sessions of a missing Gpu remain open, but their owners return with the Gpu.
            missing = set(self._persistence.absent_gpus)
            alive = {key: one for key, one in alive.items() if one.device.gpu.uuid not in missing}
        unmetered = set()
        for uuid, gpu_ledger in self.energy.gpu_ledgers.items():
            if gpu_ledger.has_counter or gpu_ledger.power.last is not None:
                self._totals.setdefault(uuid, 0)
            if not gpu_ledger.is_metered(snapshot.elapsed):
                unmetered.add(uuid)
        self._accounts.unmetered = frozenset(unmetered)
        self._accounts.post(posted, alive, omitted_keys, snapshot.elapsed)
        if self._failed:
            self._accounts.balance(self._totals)
        if self._persistence is None:
            self._accounts.discard_changes()
        return self._accounts.state(self._totals)

    def _add_durations(self, snapshot: Snapshot) -> Mapping[str, Distribution]:
        """Durations of ended Sessions by Gpu; from the Gpu's first reading on, so that they begin at 0."""
        durations = self.state.session_durations
        new = {reading.device.gpu.uuid for reading in snapshot.readings} - durations.keys()
        if new:
            durations = {**durations, **dict.fromkeys(sorted(new), _NO_DURATIONS)}
        for session in self.sessions.ended:
            uuid = session.process.device.gpu.uuid
            durations = {**durations, uuid: _add_duration(durations.get(uuid, _NO_DURATIONS), session)}
        return durations

    def _count_xids(
        self, snapshot: Snapshot
    ) -> tuple[Mapping[tuple[str, int], int], Mapping[tuple[str, int], float]]:
        xids, times = self.state.xids, self.state.xid_times
        if snapshot.xids:
            xids, times = dict(xids), dict(times)
            for event in sorted(snapshot.xids, key=lambda event: event.at):
                key = (event.gpu.uuid, event.xid)
                xids[key] = xids.get(key, 0) + 1
                self._xids_born.setdefault(key, snapshot.elapsed)
                times.pop(key, None)
                times[key] = event.at
        return xids, times
