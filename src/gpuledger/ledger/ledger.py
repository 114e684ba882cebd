"""Turns Snapshots into the Ledger's state."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace
from itertools import accumulate

from gpuledger.ledger.accounts import Accounts
from gpuledger.ledger.allocation_times import Handed
from gpuledger.ledger.device_states import DeviceStates, sm_ratios
from gpuledger.ledger.energy.booking import Policy
from gpuledger.ledger.energy.energy import WANTS, EnergyBook
from gpuledger.ledger.energy.floor import given_floors
from gpuledger.ledger.energy.gpu_book import Posted
from gpuledger.ledger.journal import Books
from gpuledger.ledger.keeper import Keeper
from gpuledger.ledger.owners import OwnerTimes
from gpuledger.ledger.sessions import Sessions
from gpuledger.ledger.settings import LedgerSettings
from gpuledger.model.family import Distribution
from gpuledger.model.process import GpuProcess, ProcessKey
from gpuledger.model.quantities import Quantity
from gpuledger.model.session import EnergyState, LedgerState
from gpuledger.model.snapshot import Snapshot

# From a test run to a training of a week; seconds.
BOUNDS = (10.0, 60.0, 300.0, 1800.0, 3600.0, 14_400.0, 43_200.0, 86_400.0, 259_200.0, 604_800.0)


class Durations:
    """Counts since the program started, by Gpu uuid."""

    def __init__(self) -> None:
        self._counts: dict[str, list[int]] = {}
        self._sums: dict[str, float] = {}
        self._told: dict[str, Distribution] = {}

    def add(self, uuid: str, seconds: float) -> None:
        """Take in a Session that has ended; one over which the wall clock was set back counts as 0 s."""
        seconds = max(seconds, 0.0)
        counts = self._counts.setdefault(uuid, [0] * (len(BOUNDS) + 1))
        counts[bisect_left(BOUNDS, seconds)] += 1
        self._sums[uuid] = self._sums.get(uuid, 0.0) + seconds
        running = tuple(accumulate(counts))
        told = Distribution(BOUNDS, running[:-1], running[-1], self._sums[uuid])
        # A new mapping each time: Pages hold the old ones.
        self._told = {**self._told, uuid: told}

    def told(self) -> Mapping[str, Distribution]:
        """As of now."""
        return self._told


class Membership:
    """Keeps at most `most` told processes per Device.

    A place goes to the largest by memory, then SM share, and is kept until exit: a series that came and
    went with every memory change would be worth less than none.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._told: dict[str, frozenset[ProcessKey]] = {}

    def post(
        self, snapshot: Snapshot, present: Mapping[str, Collection[ProcessKey]]
    ) -> Mapping[str, frozenset[ProcessKey]]:
        """The processes beyond the cap, by Device uuid; Devices within it are not in the answer.

        `present` are those of the Snapshot before: while a Device is within the cap, all of them are told.
        """
        untold: dict[str, frozenset[ProcessKey]] = {}
        crowded: dict[str, frozenset[ProcessKey]] = {}
        for reading in snapshot.holders:
            uuid = reading.device.uuid
            if reading.processes is None:
                if uuid in self._told:
                    crowded[uuid] = self._told[uuid]
            elif len(reading.processes) > self._most:
                before = self._told.get(uuid) or frozenset(present.get(uuid, ()))
                crowded[uuid] = self._choose(reading.processes, before)
                untold[uuid] = frozenset(process.key for process in reading.processes) - crowded[uuid]
        self._told = crowded
        return untold

    def _choose(
        self, processes: tuple[GpuProcess, ...], before: frozenset[ProcessKey]
    ) -> frozenset[ProcessKey]:
        keys = {process.key: process for process in processes}
        staying = sorted((keys[key] for key in before if key in keys), key=_rank)
        waiting = sorted((process for key, process in keys.items() if key not in before), key=_rank)
        return frozenset(process.key for process in (staying + waiting)[: self._most])


def _rank(process: GpuProcess) -> tuple[bool, float, float, int]:
    # What only draws comes last: the process and session dialects do not even tell it.
    return (not process.computes, -(process.memory or 0), -(process.usage.sm or 0.0), process.pid)


class Ledger:
    """Posts one Snapshot at a time; used by the tick thread alone. Its state is an immutable value.

    With `books` it goes on from what they kept, and every posting is in them before its state is answered.
    """

    wants: frozenset[Quantity] = WANTS

    def __init__(self, settings: LedgerSettings, books: Books | None = None) -> None:
        self.sessions = Sessions(kept=books is not None)
        floors = given_floors(settings.empty_watts, settings.resident_watts)
        self.energy = EnergyBook(floors, Policy(settings.policy))
        self._accounts = Accounts(settings.zero_hold, settings.retention)
        self._membership = Membership(settings.max_per_device)
        self._states = DeviceStates()
        self._owners = OwnerTimes(settings.retention)
        self._handed = Handed()
        self._totals: Counter[str] = Counter()
        self._durations = Durations()
        self._keeper: Keeper | None = None
        if books is not None:
            self._keeper = Keeper(books, self.sessions, self._handed, self.energy, self._accounts)
        self._state = LedgerState()
        # What has left the counters and is not in all books yet; the failed are of a posting that broke off.
        self._posted: list[Posted] = []
        self._failed: list[Posted] = []

    @property
    def state(self) -> LedgerState:
        """The state after the last posting."""
        return self._state

    def adopt(self, settings: LedgerSettings) -> None:
        """Book and tell by these from the next posting on, but for those that need a restart."""
        floors = given_floors(settings.empty_watts, settings.resident_watts)
        self.energy.adopt(floors, Policy(settings.policy))
        self._accounts.retain(settings.retention)
        self._owners.retain(settings.retention)

    def interrupt(self) -> None:
        """Nobody looks from here until the next posting, because somebody asked for that.

        Unlike a reading that fails for a moment, such a gap is no part of any interval: its energy is
        unobserved, its time nobody's, however short it is.
        """
        self.sessions.interrupt()
        self._handed.interrupt()
        self.energy.interrupt()
        self._states.interrupt()
        self._owners.interrupt()

    def post(self, snapshot: Snapshot) -> LedgerState:
        """Book one Snapshot and answer the state after it.

        Should anything in it raise, no joule is lost by that: what had been taken from the counters is
        unobserved in the next posting.
        """
        try:
            return self._post(snapshot)
        except Exception:
            self._failed = [one.voided() for one in (*self._failed, *self._posted)]
            self._posted = []
            raise

    def _post(self, snapshot: Snapshot) -> LedgerState:
        if self._keeper is not None:
            self._keeper.resume(snapshot, self._totals)
        untold = self._membership.post(snapshot, self.sessions.by_device)
        posted = self._posted = self.energy.post(snapshot)
        for one in posted:
            self._totals[one.gpu.uuid] += one.millijoules
        self.sessions.post(snapshot, posted)
        if self._keeper is not None:
            self._handed.post(snapshot)
        energy = self._tell_energy(snapshot, posted, untold)
        self._states.post(snapshot)
        states, seconds = self._states.told()
        for session in self.sessions.ended:
            self._durations.add(session.process.device.gpu.uuid, session.last_seen - session.first_seen)
        durations = self._durations.told()
        compute, graphics = self.sessions.counts(snapshot)
        xids, times = self._count_xids(snapshot)
        state = LedgerState(
            compute_sessions=compute,
            graphics_sessions=graphics,
            omitted=untold,
            xids=xids,
            xid_times=times,
            invalid=self._state.invalid + snapshot.invalid,
            energy=energy,
            sessions_closed={uuid: told.count for uuid, told in durations.items()},
            session_durations=durations,
            device_states=states,
            state_seconds=seconds,
            sm_ratios=sm_ratios(snapshot),
            owners=self._owners.post(snapshot),
            sessions=self.sessions.rows(),
        )
        self._state = state if self._keeper is None else self._keep(self._keeper, snapshot, state)
        self._posted, self._failed = [], []
        return self._state

    def _keep(self, keeper: Keeper, snapshot: Snapshot, state: LedgerState) -> LedgerState:
        if self._failed:
            self._posted = self._failed + self._posted
            self._failed = []
        part, may_be_shown = keeper.keep(snapshot, self._posted, self._totals)
        energy = state.energy if may_be_shown else self._state.energy
        return replace(state, energy=energy, parts=(part,))

    def _tell_energy(
        self, snapshot: Snapshot, posted: list[Posted], untold: Mapping[str, frozenset[ProcessKey]]
    ) -> EnergyState:
        hidden = frozenset().union(*untold.values()) if untold else frozenset()
        alive = self.sessions.alive()
        if self._keeper is not None and self._keeper.absent:
            # Sessions of a Gpu that is away are open, but their owners come back with the Gpu.
            away = set(self._keeper.absent)
            alive = {key: one for key, one in alive.items() if one.device.gpu.uuid not in away}
        for book in self.energy.books.values():
            if book.has_counter or book.power is not None:
                self._totals.setdefault(book.gpu.uuid, 0)
        self._accounts.post(posted, alive, hidden, snapshot.elapsed)
        if self._failed:
            self._accounts.balance(self._totals, snapshot.elapsed)
        if self._keeper is None:
            self._accounts.keep_nothing()
        return self._accounts.state(self._totals, snapshot.elapsed)

    def _count_xids(
        self, snapshot: Snapshot
    ) -> tuple[Mapping[tuple[str, int], int], Mapping[tuple[str, int], float]]:
        xids, times = self._state.xids, self._state.xid_times
        if snapshot.xids:
            xids, times = dict(xids), dict(times)
            for event in sorted(snapshot.xids, key=lambda event: event.at):
                key = (event.gpu.uuid, event.xid)
                xids[key] = xids.get(key, 0) + 1
                times.pop(key, None)
                times[key] = event.at
        return xids, times
