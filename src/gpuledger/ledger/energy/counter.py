"""The hardware energy counter of one Gpu: epochs, increases and impossible readings (rules 1 and 2).

Pure: converts a reading into its effect on the ledger. Energy is integer millijoules, times are seconds on
the source's clock.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gpuledger.model.snapshot import LONGEST_INTERVAL

# Refresh period in seconds assumed until two moves have shown the real one; no known counter is slower.
SLOWEST_REFRESH = 10.0
_HEADROOM = 1.5
# Watts, of a module with several GPUs. If the counter of a GPU without a known limit steps back to more than
# this allows since the last reading, it did not begin again at 0.
_HIGHEST_POWER = 3000.0


@dataclass(frozen=True, slots=True)
class Epoch:
    """One life of the counter: boot id and driver load, each empty if unknown."""

    boot_id: str = ""
    driver_load: str = ""

    def differs(self, other: Epoch) -> bool:
        """Return whether the two certainly differ. An unknown driver load proves nothing."""
        if self.boot_id != other.boot_id:
            return True
        return bool(self.driver_load and other.driver_load and self.driver_load != other.driver_load)

    def or_known(self, other: Epoch) -> Epoch:
        """This epoch, or `other` if it is the same boot and only `other` knows the driver load."""
        return other if self.boot_id == other.boot_id and not self.driver_load else self


@dataclass(frozen=True, slots=True)
class CounterReading:
    """One reading of a Gpu's counter.

    `limit` is the highest power limit in watts. `starts_at_zero` is False for a counter with a first value
    from before the driver was loaded (see `MeterRules`).
    """

    at: float
    value: int
    good_lists: bool
    limit: float | None = None
    starts_at_zero: bool = True


@dataclass(frozen=True, slots=True)
class ReadingVerdict:
    """The effect of one reading on the ledger.

    `closes`: an interval ends here with `delta` millijoules to apportion. `unobserved`: millijoules to book
    as unobserved. `invalid`: number of rejected readings. `epoch_closed`: the old epoch ended at its last
    good reading, and `tail` is its accepted but unbooked energy, to be booked to the old epoch as unobserved.
    """

    closes: bool = False
    delta: int = 0
    unobserved: int = 0
    invalid: int = 0
    epoch_closed: bool = False
    tail: int = 0


_NOTHING = ReadingVerdict()


@dataclass(frozen=True, slots=True)
class EnergyCounter:
    """Counter state between ticks, also stored across restarts.

    `opening` is the epoch's first value, None before the first observed move of a new epoch. Everything up to
    the value `booked` is in the accounts. `last` is the last accepted reading, read at `last_at`. `running`
    is False until this run has accepted a reading. `moved_at` is the last move in this run, None before the
    first. `started_at` is the beginning of the open interval, None if none is open. `suspect` is an
    implausible reading that awaits confirmation by the next one. `epoch_number` counts the epochs of this Gpu
    in the ledger.
    """

    epoch: Epoch
    opening: int | None = None
    booked: int = 0
    last: int | None = None
    last_at: float = 0.0
    running: bool = False
    moved_at: float | None = None
    started_at: float | None = None
    refresh: float | None = None
    suspect: tuple[int, float] | None = None
    epoch_number: int = 0

    def resumed(self, epoch: Epoch, *, starts_at_zero: bool = True) -> tuple[EnergyCounter, ReadingVerdict]:
        """The counter after a restart of this program, before its first reading.

        Nothing before the first move of this run can be observed (E6, E13). If the epoch differs, the driver
        was loaded after the stored reading: the new epoch opens at 0, and the tail of the old one is unknown
        (E5). If the counter does not start at zero, it opens at the first observed move.
        """
        paused = replace(self, running=False, moved_at=None, started_at=None, suspect=None)
        if self.last is None or not epoch.differs(self.epoch):
            return replace(paused, epoch=epoch.or_known(self.epoch)), _NOTHING
        closed = ReadingVerdict(epoch_closed=True, tail=self.tail)
        opening = 0 if starts_at_zero else None
        return replace(_new_epoch(paused, epoch), opening=opening, last=None), closed

    @property
    def tail(self) -> int:
        """Millijoules that were accepted but are not booked yet: those of the open interval."""
        return 0 if self.opening is None or self.last is None else self.last - self.booked

    def take_reading(self, reading: CounterReading) -> tuple[EnergyCounter, ReadingVerdict]:
        """Apply one reading."""
        if self.last is None:
            return replace(self, last=reading.value, last_at=reading.at, running=True), _NOTHING
        if self.suspect is not None:
            return self._resolve_suspect(reading, *self.suspect)
        if not self._follows(self.last, self.last_at, reading):
            return replace(self, suspect=(reading.value, reading.at)), _NOTHING
        return self._accept(reading)

    def _follows(self, value: int, at: float, reading: CounterReading) -> bool:
        gained = reading.value - value
        if gained < 0:
            return False
        if reading.limit is None:
            return True
        refresh = SLOWEST_REFRESH if self.refresh is None else self.refresh
        return gained <= _HEADROOM * reading.limit * (max(reading.at - at, 0.0) + refresh) * 1000

    def _resolve_suspect(
        self, reading: CounterReading, value: int, at: float
    ) -> tuple[EnergyCounter, ReadingVerdict]:
        assert self.last is not None
        if self._follows(self.last, self.last_at, reading):
            after, verdict = replace(self, suspect=None)._accept(reading)
            return after, replace(verdict, invalid=1)
        if not self._follows(value, at, reading):
            return replace(self, suspect=(reading.value, reading.at)), ReadingVerdict(invalid=1)
        may_restart = reading.starts_at_zero and value < self.last
        since_zero = replace(reading, value=value, at=at, limit=reading.limit or _HIGHEST_POWER)
        if may_restart and self._follows(0, self.last_at, since_zero):
            # A lower value that continues from there: the driver was reloaded. The epoch opens at 0.
            reborn = _new_epoch(replace(self, suspect=None), Epoch(self.epoch.boot_id))
            after, verdict = replace(reborn, last=value, running=True)._accept(reading)
            return after, replace(verdict, epoch_closed=True, tail=self.tail)
        # The increase, since then or since 0, exceeds the power limit: another counter altogether, such as a
        # restarted simulator's, or one that stepped back. The energy of the jump is unknown.
        leapt = replace(
            self,
            suspect=None,
            opening=value,
            booked=reading.value if reading.good_lists else value,
            last=reading.value,
            last_at=reading.at,
            running=True,
            started_at=reading.at if reading.good_lists else None,
            moved_at=reading.at,
            refresh=None,
            epoch_number=self.epoch_number + 1,
        )
        since = leapt.booked - value
        return leapt, ReadingVerdict(epoch_closed=True, invalid=1, unobserved=since, tail=self.tail)

    def _accept(self, reading: CounterReading) -> tuple[EnergyCounter, ReadingVerdict]:
        if reading.value == self.last or not self.running:
            # The first reading of a run is not an observed move: the time of the move is unknown.
            return replace(self, last=reading.value, last_at=reading.at, running=True), _NOTHING
        refresh = self.refresh
        if self.moved_at is not None:
            gap = reading.at - self.moved_at
            refresh = gap if refresh is None else min(gap, refresh)
        # The first observed move: the ledger does not cover earlier energy.
        opening, booked = (
            (reading.value, reading.value) if self.opening is None else (self.opening, self.booked)
        )
        good = reading.good_lists
        begun = replace(
            self,
            opening=opening,
            booked=reading.value if good else booked,
            started_at=reading.at if good else self.started_at,
            last=reading.value,
            last_at=reading.at,
            moved_at=reading.at,
            refresh=refresh,
        )
        if not good:
            return begun, _NOTHING
        delta = reading.value - booked
        if self.started_at is None or reading.at - self.started_at > LONGEST_INTERVAL:
            return begun, ReadingVerdict(unobserved=delta)
        return begun, ReadingVerdict(closes=True, delta=delta)


def _new_epoch(counter: EnergyCounter, epoch: Epoch) -> EnergyCounter:
    return replace(
        counter,
        epoch=epoch,
        opening=0,
        booked=0,
        last=0,
        moved_at=None,
        started_at=None,
        # The next driver may update the counter less often.
        refresh=None,
        epoch_number=counter.epoch_number + 1,
    )
