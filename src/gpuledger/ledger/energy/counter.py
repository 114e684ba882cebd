"""The hardware counter of one Gpu: epochs, moves, and readings that cannot be true (DESIGN 5, rules 1 and 2).

Pure: a reading goes in, what it means for the books comes out. Energy is integer millijoules, times are
seconds on the source's own clock.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

# Longest time over which an interval is kept open; beyond (suspend, a hanging driver), nobody can say what
# happened in it, and it is nobody's time.
LONGEST = 60.0
# No counter seen in the field is refreshed less often; used until two moves have told the real period.
SLOWEST_REFRESH = 10.0
_HEADROOM = 1.5


@dataclass(frozen=True, slots=True)
class Epoch:
    """A life of the counter: boot and driver load, either empty where it cannot be known."""

    boot_id: str = ""
    driver_load: str = ""

    def differs(self, other: Epoch) -> bool:
        """Whether the two are certainly different lives: an unknown driver load says nothing."""
        if self.boot_id != other.boot_id:
            return True
        return bool(self.driver_load and other.driver_load and self.driver_load != other.driver_load)

    def or_known(self, other: Epoch) -> Epoch:
        """This life, with the driver load that `other` knows of the same boot."""
        return other if self.boot_id == other.boot_id and not self.driver_load else self


@dataclass(frozen=True, slots=True)
class Tick:
    """What one tick says of one Gpu's counter. `limit` is the highest power limit in watts."""

    at: float
    value: int
    good_lists: bool
    limit: float | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a reading means for the books.

    `closes`: an interval ends here with `delta` millijoules to be apportioned. `unobserved`: millijoules
    to book as unobserved. `invalid`: readings not believed. `epoch_closed`: the old epoch ended at its last
    good reading, and `tail` is what was believed of it but not booked: unobserved, and the old epoch's.
    """

    closes: bool = False
    delta: int = 0
    unobserved: int = 0
    invalid: int = 0
    epoch_closed: bool = False
    tail: int = 0


_NOTHING = Verdict()


@dataclass(frozen=True, slots=True)
class Counter:
    """State between ticks, and what is stored over restarts.

    `opening` is the epoch's first value, None before the first move of a new epoch was seen. `booked` is
    the value up to which everything is in the accounts. `last` is the last believed reading, read at
    `last_at`. `running` is false until a reading of this run was believed; `moved_at` is the last move seen
    in this run, None before the first; `started_at` is where the open interval began, None while none is
    open. `aside` is a reading under suspicion. `life` numbers the epochs of this Gpu's books.
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
    aside: tuple[int, float] | None = None
    life: int = 0

    def resumed(self, epoch: Epoch) -> tuple[Counter, Verdict]:
        """The counter after a restart of this program, before its first reading.

        Nothing read before the first move of this run can be observed (E6, E13). In another epoch the
        driver has loaded after the stored reading: it opens at 0 and its tail is unknown (E5).
        """
        calm = replace(self, running=False, moved_at=None, started_at=None, aside=None)
        if self.last is None or not epoch.differs(self.epoch):
            return replace(calm, epoch=epoch.or_known(self.epoch)), _NOTHING
        closed = Verdict(epoch_closed=True, tail=self.tail)
        return replace(_reborn(calm, epoch), last=None), closed

    @property
    def tail(self) -> int:
        """Millijoules that were believed but are not booked: of the interval that is open."""
        return 0 if self.opening is None or self.last is None else self.last - self.booked

    def read(self, tick: Tick) -> tuple[Counter, Verdict]:
        """Take in one reading."""
        if self.last is None:
            return replace(self, last=tick.value, last_at=tick.at, running=True), _NOTHING
        if self.aside is not None:
            return self._after_aside(tick, *self.aside)
        if not self._follows(self.last, self.last_at, tick):
            return replace(self, aside=(tick.value, tick.at)), _NOTHING
        return self._believed(tick)

    def _follows(self, value: int, at: float, tick: Tick) -> bool:
        gained = tick.value - value
        if gained < 0:
            return False
        if tick.limit is None:
            return True
        refresh = SLOWEST_REFRESH if self.refresh is None else self.refresh
        return gained <= _HEADROOM * tick.limit * (max(tick.at - at, 0.0) + refresh) * 1000

    def _after_aside(self, tick: Tick, value: int, at: float) -> tuple[Counter, Verdict]:
        assert self.last is not None
        if self._follows(self.last, self.last_at, tick):
            after, verdict = replace(self, aside=None)._believed(tick)
            return after, replace(verdict, invalid=1)
        if not self._follows(value, at, tick):
            return replace(self, aside=(tick.value, tick.at)), Verdict(invalid=1)
        if value < self.last and self._follows(0, self.last_at, replace(tick, value=value, at=at)):
            # Lower and going on from there: the driver was loaded anew. The epoch opens at 0.
            reborn = _reborn(replace(self, aside=None), Epoch(self.epoch.boot_id))
            after, verdict = replace(reborn, last=value, last_at=at, running=True)._believed(tick)
            return after, replace(verdict, epoch_closed=True, tail=self.tail)
        # More than any power could have made it, since then or since 0: another counter altogether, such as a
        # simulator's that began again. Nothing is known of the leap.
        leapt = replace(
            self,
            aside=None,
            opening=value,
            booked=tick.value if tick.good_lists else value,
            last=tick.value,
            last_at=tick.at,
            running=True,
            started_at=tick.at if tick.good_lists else None,
            moved_at=tick.at,
            life=self.life + 1,
        )
        since = leapt.booked - value
        return leapt, Verdict(epoch_closed=True, invalid=1, unobserved=since, tail=self.tail)

    def _believed(self, tick: Tick) -> tuple[Counter, Verdict]:
        if tick.value == self.last or not self.running:
            # The first reading of a run is not a move that was seen: when it moved is not known.
            return replace(self, last=tick.value, last_at=tick.at, running=True), _NOTHING
        refresh = self.refresh
        if self.moved_at is not None:
            gap = tick.at - self.moved_at
            refresh = gap if refresh is None else min(gap, refresh)
        # The first move ever seen: what was before it is none of our books' business.
        opening, booked = (tick.value, tick.value) if self.opening is None else (self.opening, self.booked)
        good = tick.good_lists
        begun = replace(
            self,
            opening=opening,
            booked=tick.value if good else booked,
            started_at=tick.at if good else self.started_at,
            last=tick.value,
            last_at=tick.at,
            moved_at=tick.at,
            refresh=refresh,
        )
        if not good:
            return begun, _NOTHING
        delta = tick.value - booked
        if self.started_at is None or tick.at - self.started_at > LONGEST:
            return begun, Verdict(unobserved=delta)
        return begun, Verdict(closes=True, delta=delta)


def _reborn(counter: Counter, epoch: Epoch) -> Counter:
    return replace(counter, epoch=epoch, opening=0, booked=0, last=0, started_at=None, life=counter.life + 1)
