"""Which Devices can be taken now, with the reservations of users: updated at each tick, read at any time."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from threading import Lock
from typing import TYPE_CHECKING, Protocol

from gpuledger.ledger.device_conditions import (
    DeviceCondition,
    DeviceKey,
    QuietTimes,
    device_key,
    device_memory,
    judge_devices,
)
from gpuledger.ledger.reservations import CommandProcess, Reservation, ReservationBook
from gpuledger.model.availability import DEFAULT_WINDOW, IN_USE, Availability, Candidate, with_reservation
from gpuledger.model.node_state import NodeState
from gpuledger.model.snapshot import Snapshot
from gpuledger.model.source import Clock

if TYPE_CHECKING:
    from gpuledger.ledger.device_choice import DeviceWish


class ReservationStorage(Protocol):
    """Keeps reservations over a restart. Times are those of the node's clock."""

    def load(self, elapsed: float, unix: float) -> list[Reservation]:
        """The stored reservations that are not over."""

    def save(self, reservations: Collection[Reservation], elapsed: float, unix: float) -> None:
        """Store all reservations. Never raises."""


class AvailabilityBoard:
    """Whether each Device can be taken. `update` is called by the thread that publishes, the rest by any.

    `user_name` returns the name of a uid; it is called by `update` only. `runs` returns whether a process
    still runs. Without a `storage` a restart ends all reservations.

    Time ends a reservation only at a tick, which sees the processes that its user has started meanwhile: no
    GPU is free for the moment between the end of a reservation and the next reading.
    """

    def __init__(
        self,
        clock: Clock,
        user_name: Callable[[int], str],
        runs: Callable[[CommandProcess], bool],
        storage: ReservationStorage | None = None,
    ) -> None:
        self._clock = clock
        self._user_name = user_name
        self._runs = runs
        self._storage = storage
        self._lock = Lock()
        stored = storage.load(clock.elapsed(), clock.unix()) if storage is not None else []
        self._book = ReservationBook(stored)
        self._quiet = QuietTimes()
        self._snapshot: Snapshot | None = None
        self._conditions: dict[DeviceKey, DeviceCondition] = {}
        self._names: dict[int, str] = {}

    def update(self, state: NodeState) -> NodeState:
        """Take a new state; return it with the availability of its Devices."""
        with self._lock:
            self._snapshot = snapshot = state.snapshot
            if snapshot is None:
                self._quiet.interrupt()
                self._conditions = {}
                return state
            self._conditions = judge_devices(snapshot, state.ledger.xid_log)
            self._quiet.post(snapshot, self._conditions)
            if self._book.expire(self._clock.elapsed(), self._users(snapshot), self._runs):
                self._save()
            self._names = {uid: self._user_name(uid) for uid in {one.uid for one in self._book}}
            found = self._candidates(DEFAULT_WINDOW)
        return replace(state, availability={device_key(one.device): one.availability for one in found})

    def candidates(self, window: float = DEFAULT_WINDOW) -> list[Candidate]:
        """All Devices, free if nobody has had them for `window` seconds; none without a reading."""
        with self._lock:
            return self._candidates(window)

    def take(
        self, wish: DeviceWish, uid: int, seconds: float, command: CommandProcess | None = None
    ) -> list[Candidate]:
        """Choose Devices, and reserve them for a user: for so many seconds, or until a command ends.

        Raises NotEnoughDevices, and then reserves nothing.
        """
        # Imported lazily: on most machines nobody reserves.
        from gpuledger.ledger.device_choice import choose_devices

        with self._lock:
            chosen = choose_devices(self._candidates(wish.window), wish)
            elapsed = self._clock.elapsed()
            ends = None if command is not None else elapsed + seconds
            length = 0.0 if command is not None else seconds
            self._book.add([Reservation(one.device.uuid, uid, length, ends, command) for one in chosen])
            self._save()
            reserved = {device_key(one.device): one for one in self._candidates(wish.window)}
        return [reserved[device_key(one.device)] for one in chosen]

    def release(self, uid: int | None, devices: Collection[str] = ()) -> list[Reservation]:
        """End the reservations of a user (None: of all users), of these Devices or of all; return them."""
        with self._lock:
            found = self._book.release(uid, devices)
            if found:
                self._save()
            return found

    def _candidates(self, window: float) -> list[Candidate]:
        snapshot = self._snapshot
        if snapshot is None:
            return []
        found = []
        for reading in snapshot.process_readings:
            key = device_key(reading.device)
            availability = self._quiet.availability(key, self._conditions[key], window)
            free, total = device_memory(snapshot, reading)
            availability = availability._replace(memory_free=free, memory_total=total)
            reservation = self._book.find(reading.device)
            if reservation is not None:
                availability = self._mark(availability, reservation)
            found.append(Candidate(reading.device, availability))
        return found

    def _mark(self, availability: Availability, one: Reservation) -> Availability:
        left = None if one.ends is None else max(0.0, one.ends - self._clock.elapsed())
        until = None if left is None else self._clock.unix() + left
        reason = "a user has reserved it" + (" until a command ends" if one.command is not None else "")
        return with_reservation(availability, one.uid, self._names.get(one.uid, str(one.uid)), until, reason)

    def _users(self, snapshot: Snapshot) -> dict[str, set[int]]:
        """The uids with a process on each reserved Device that somebody uses.

        A display server on a free Device does not end its user's reservation.
        """
        found: dict[str, set[int]] = {}
        reserved = {one.device: one.uid for one in self._book}
        for reading in snapshot.process_readings if reserved else ():
            uuid = reading.device.uuid
            is_used = self._conditions[device_key(reading.device)].state == IN_USE
            for process in (reading.processes or ()) if is_used else ():
                uid = process.host.uid
                if uid is None and process.host.user == self._names.get(reserved.get(uuid, -1)):
                    # A Host that knows only names.
                    uid = reserved.get(uuid)
                if uid is not None:
                    found.setdefault(uuid, set()).add(uid)
        return found

    def _save(self) -> None:
        if self._storage is not None:
            self._storage.save(list(self._book), self._clock.elapsed(), self._clock.unix())
