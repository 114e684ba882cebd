"""The true energy of every account of one Gpu."""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction

from gpuledger.model.session import Account
from gpuledger.sources.simulator.meter import Stretches
from gpuledger.sources.simulator.people import start_of
from gpuledger.sources.simulator.power import floor_shares
from gpuledger.sources.simulator.timeline import Phase, Seat

_PICO = 10**12


class TruthWalk:
    """Books the exact energy of one Gpu, going forward from time 0.

    A resident bears its part of the floor, a process the load that it causes; the rest is idle.
    """

    def __init__(self, stretches: Stretches, boot: tuple[int, float]) -> None:
        """`boot`: the node's uptime at time 0 in microseconds, and the unix time of time 0."""
        self._hardware = stretches.hardware
        self._stretches = stretches
        self._boot = boot
        self._idle = Account(self._hardware.gpu, "idle")
        self._booked: defaultdict[Account, Fraction] = defaultdict(Fraction)
        self._booked[self._idle] = Fraction(0)
        self.at = 0

    def advance(self, at: int) -> None:
        """Go on to `at` microseconds."""
        phase: Phase | None = None
        since = self.at
        loads: list[int] = []
        for begin, end, holding, drawn in self._stretches.between(self.at, at):
            if holding is not phase:
                if phase is not None:
                    self._book(phase, begin - since, loads)
                phase, since, loads = holding, begin, [0] * len(holding.seats)
            for index, load in enumerate(drawn.loads):
                loads[index] += load * (end - begin)
        if phase is not None:
            self._book(phase, at - since, loads)
        self.at = max(self.at, at)

    def joules(self) -> dict[Account, Fraction]:
        """Joules per account up to now; their sum is the integral of the power, exactly."""
        return {account: picojoules / _PICO for account, picojoules in self._booked.items()}

    def _book(self, phase: Phase, lasting: int, loads: list[int]) -> None:
        shares, idle = floor_shares(self._hardware, phase)
        self._booked[self._idle] += idle * lasting
        for seat, share, load in zip(phase.seats, shares, loads, strict=True):
            self._booked[self._account(seat)] += share * lasting + load

    def _account(self, seat: Seat) -> Account:
        device = seat.device
        start = start_of(seat.run, *self._boot)
        key = (device.uuid, seat.run.pid, start.boot_id, start.ticks, start.seen)
        return Account(self._hardware.gpu, "process", device.instance, key)
