"""Reservations of Devices: which user has one before a process runs on it. Advisory, in memory; pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from gpuledger.model.devices import Device


class CommandProcess(NamedTuple):
    """The process for which a reservation is held: its pid, and its start in clock ticks since boot."""

    pid: int
    ticks: int


class Reservation(NamedTuple):
    """A Device (by uuid) that a user has reserved.

    It ends at `ends`, on the clock since boot, or, if that is None, when `command`
    ends. `seconds` is the time for which it was made, 0 with a command.
    """

    device: str
    uid: int
    seconds: float = 0.0
    ends: float | None = None
    command: CommandProcess | None = None


class ReservationBook:
    """The reservations of a machine: at most one of each Device."""

    def __init__(self, stored: Iterable[Reservation] = ()) -> None:
        self._by_device = {one.device: one for one in stored}

    def __iter__(self) -> Iterator[Reservation]:
        return iter(tuple(self._by_device.values()))

    def find(self, device: Device) -> Reservation | None:
        """The reservation of a Device; that of a whole GPU covers its Instances."""
        return self._by_device.get(device.uuid) or self._by_device.get(device.gpu.uuid)

    def add(self, reservations: Collection[Reservation]) -> None:
        """Reserve Devices. Raises ValueError if one of them is reserved already, and then reserves none."""
        taken = [one.device for one in reservations if one.device in self._by_device]
        if taken:
            raise ValueError(f"already reserved: {', '.join(taken)}")
        self._by_device |= {one.device: one for one in reservations}

    def release(self, uid: int | None, devices: Collection[str] = ()) -> list[Reservation]:
        """End the reservations of a user (None: of all users), of these Devices or of all; return them."""
        found = [
            one for one in self if (uid is None or one.uid == uid) and (not devices or one.device in devices)
        ]
        for one in found:
            del self._by_device[one.device]
        return found

    def expire(
        self,
        elapsed: float,
        users: Mapping[str, Collection[int]],
        runs: Callable[[CommandProcess], bool],
    ) -> list[Reservation]:
        """End what is over at `elapsed` on the clock since boot; return it.

        `users` are the uids with a process on each Device, by its uuid: a reservation is over when its user
        has one, unless it is held for a command. `runs` returns whether a command still runs.
        """
        over = [one for one in self if _is_over(one, elapsed, users, runs)]
        for one in over:
            del self._by_device[one.device]
        return over


def _is_over(
    one: Reservation,
    elapsed: float,
    users: Mapping[str, Collection[int]],
    runs: Callable[[CommandProcess], bool],
) -> bool:
    if one.command is not None:
        return not runs(one.command)
    return (one.ends is not None and elapsed >= one.ends) or one.uid in users.get(one.device, ())
