"""The tick: read, name, post, publish. One thread reads the driver, another one watches it."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Condition, Event, Lock, Thread

from gpuledger.model.errors import GpuledgerError, SourceUnavailable
from gpuledger.model.node_state import Health, IndexHealth, NodeState, PauseHealth, ReloadHealth
from gpuledger.model.quantities import Quantity
from gpuledger.model.session import LedgerState
from gpuledger.model.snapshot import Collected, Snapshot
from gpuledger.model.source import Clock, Source
from gpuledger.node.health import OK, SOURCE, Pause, Vitals, status_of

_WINDOW = 10
_CALM = 100
_SLOWEST = 8


class Pace:
    """Doubles the interval when the median of ten ticks is above a fifth of it, 8 times at most; halves it
    again after a hundred ticks below a tenth. All times are seconds.
    """

    def __init__(self, interval: float) -> None:
        self.asked = interval
        self.interval = interval
        self._recent: deque[float] = deque(maxlen=_WINDOW)
        self._calm = 0

    def note(self, seconds: float) -> bool:
        """Take in what a tick cost; True when the interval changed by it."""
        self._recent.append(seconds)
        self._calm = self._calm + 1 if seconds < self.interval / 10 else 0
        if self._is_slow() and self.interval < self.asked * _SLOWEST:
            return self._change(self.interval * 2)
        if self._calm >= _CALM and self.interval > self.asked:
            return self._change(self.interval / 2)
        return False

    def _is_slow(self) -> bool:
        return len(self._recent) == _WINDOW and _median(self._recent) > self.interval / 5

    def _change(self, interval: float) -> bool:
        self.interval = interval
        self._recent.clear()
        self._calm = 0
        return True


def _median(values: Collection[float]) -> float:
    # The standard library's brings decimal, fractions and random into memory.
    ordered, middle = sorted(values), len(values) // 2
    return ordered[middle] if len(values) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


log = logging.getLogger("gpuledger.node")

Namer = Callable[[Snapshot], Snapshot]
Poster = Callable[[Snapshot], LedgerState]

# A page three intervals old is not the present. Counted from the last page, so that health turns within
# three intervals of the moment when the driver stops answering.
_STALE_AFTER = 3.0
# A driver without persistence mode takes some seconds per GPU to wake.
_PATIENCE = 30.0
# A wait that took so much longer than it was to, in seconds: the machine slept.
_SLEPT = 5.0


class TickHangs(GpuledgerError):
    """A tick is under way and does not come back, so that nothing can be changed between two of them."""


@dataclass(frozen=True, slots=True)
class Refit:
    """What a node works with from its next tick on; None leaves a part as it is."""

    source: Source | None = None
    name: Namer | None = None
    interval: float | None = None


class Node:
    """Turns a Source into Pages.

    `publish` is called with each Page: from the tick thread, from the watchdog when a tick does not come
    back, from whoever asks for a pause; never from two at once. `wanted` is asked before each tick, `maps`
    after it. `interrupted` is called when a pause begins: what is posted next does not go on from the last
    posting. `pausable` says whether anybody can ask for one.
    """

    def __init__(
        self,
        source: Source,
        *,
        name: Namer,
        post: Poster,
        publish: Callable[[NodeState], None],
        wanted: Callable[[], frozenset[Quantity]],
        clock: Clock,
        interval: float,
        maps: Callable[[], tuple[IndexHealth, ...]] = tuple,
        interrupted: Callable[[], None] = lambda: None,
        pausable: bool = False,
    ) -> None:
        self._source = source
        self._name = name
        self._post = post
        self._publish = publish
        self._wanted = wanted
        self._clock = clock
        self._pace = Pace(interval)
        self._interrupted = interrupted
        self._vitals = Vitals(clock.unix(), interval, maps)
        self._vitals.pause = PauseHealth() if pausable else None
        self._ledger = LedgerState()
        self._pause: Pause | None = None
        # Held while a tick runs, and by those who change what it works with.
        self._ticking = Lock()
        self._wake = Event()
        self._stop = Event()
        self._published = Condition()
        self._last_page: float | None = None
        self._newest: NodeState | None = None
        self._pages = 0
        self._began = clock.elapsed()
        self._stalled = False
        self._status = ""
        # Daemons: a driver call that never returns must not keep the process from ending.
        self._threads = [
            Thread(target=self._run, name="tick", daemon=True),
            Thread(target=self._watch, name="watchdog", daemon=True),
        ]

    def start(self) -> None:
        """Begin to tick, the first time at once."""
        self._began = self._clock.elapsed()
        for thread in self._threads:
            thread.start()

    def stop(self, patience: float = 2.0) -> None:
        """End both threads. A tick that hangs in the driver is left behind after `patience` seconds."""
        self._stop.set()
        self._wake.set()
        with self._published:
            self._published.notify_all()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(patience)
        if not self._threads[0].is_alive():
            self._source.close()

    def tick(self) -> NodeState:
        """Read, name and post once, publish the Page and answer it.

        Whatever goes wrong is told on the Page: the loop outlives any single tick. In a pause nothing is
        read, and the Page says so.
        """
        with self._ticking:
            began = self._clock.elapsed()
            if self._pause is not None and began >= self._pause.ends:
                log.warning("the pause ends by itself: nobody has resumed")
                self._end_pause()
            return self._tick(began) if self._pause is None else self._rest(self._pause)

    @contextmanager
    def between_ticks(self, patience: float = _PATIENCE) -> Iterator[None]:
        """Inside, no tick runs. Raises TickHangs when the running one does not end in time."""
        if not self._ticking.acquire(timeout=patience):
            raise TickHangs(
                f"a reading of {self._source.info.name} has not come back for {patience:g} s: the driver"
                " hangs (look for Xid errors in dmesg; a hung driver needs a reboot)"
            )
        try:
            yield
        finally:
            self._ticking.release()

    def pause(self, seconds: float, reason: str = "", patience: float = _PATIENCE) -> Pause:
        """Let the driver go, publish a Page that says so, and read nothing for so long.

        In a pause it only sets a new end and reason. Raises TickHangs, with nothing changed, when the reading
        that is under way does not come back.
        """
        with self.between_ticks(patience):
            now = self._clock.elapsed()
            pause = Pause(now + seconds, self._clock.unix() + seconds, reason)
            if self._pause is None:
                self._let_go()
                self._interrupted()
            self._pause, self._vitals.pause = pause, pause.health
            self._rest(pause)
        return pause

    def resume(self, patience: float = _PATIENCE) -> NodeState | None:
        """End the pause, and answer the Page of the first tick after it; None when there was no pause.

        Raises GpuledgerError when that tick does not come back in time.
        """
        with self.between_ticks(patience):
            if self._pause is None:
                return None
            self._end_pause()
            before = self._pages
        self._wake.set()
        with self._published:
            self._published.wait_for(lambda: self._pages > before or self._stop.is_set(), patience)
            if self._newest is None or self._pages == before:
                raise GpuledgerError(
                    f"resumed, but a first reading has not come back for {patience:g} s: see /health"
                )
            return self._newest

    def refit(self, parts: Refit) -> None:
        """Go on with other parts; to be called `between_ticks`. A source that is replaced is closed."""
        if parts.source is not None:
            self._let_go()
            self._source = parts.source
        self._name = parts.name or self._name
        if parts.interval is not None:
            self._pace = Pace(parts.interval)
            self._vitals.asked = parts.interval
        self._wake.set()

    def note_reload(self, health: ReloadHealth) -> None:
        """What the next Page says of the settings."""
        self._vitals.reload = health

    def _let_go(self) -> None:
        # What is made up holds nothing, and would end with it.
        if not self._source.info.simulated:
            self._source.close()

    def _end_pause(self) -> None:
        self._pause, self._vitals.pause = None, PauseHealth()

    def _rest(self, pause: Pause) -> NodeState:
        status = str(pause)
        with self._published:
            unix = self._clock.unix()
            page = self._come_by(None, unix, self._vitals.paused(status, self._pace.interval))
        if status != self._status:
            self._status = status
            log.info("%s", status)
        return page

    def _tick(self, began: float) -> NodeState:
        snapshot: Snapshot | None = None
        parts: list[Collected] = []
        try:
            snapshot = self._read(parts)
            status = status_of(snapshot, self._ledger.parts)
        except SourceUnavailable as error:
            status = str(error)
        except MemoryError:
            status = "out of memory in the middle of a tick: give gpuledger more (MemoryMax, limits.memory)"
        except Exception as error:
            status = f"internal error in gpuledger, please report it: {type(error).__name__}: {error}"
            if status != self._status:
                log.exception("a tick failed")
        unix = snapshot.unix if snapshot else self._clock.unix()
        with self._published:
            health = self._vitals.ticked(unix, snapshot, parts, status, self._pace.interval)
            page = self._come_by(snapshot, unix, health)
        self._say(status)
        self._note(self._clock.elapsed() - began)
        return page

    def _come_by(self, snapshot: Snapshot | None, unix: float, health: Health) -> NodeState:
        """The Page of a tick that came back; `_published` is held."""
        page = self._newest = self._show(snapshot, unix, health)
        self._pages += 1
        self._last_page = self._clock.elapsed()
        self._stalled = False
        self._published.notify_all()
        return page

    def _read(self, parts: list[Collected]) -> Snapshot:
        """Read, name and post; `parts` is told how each went, also when one of them raises."""
        with self._timed(SOURCE, parts):
            snapshot = self._source.read(self._wanted())
        parts += snapshot.collected
        with self._timed("workloads", parts):
            snapshot = self._name(snapshot)
        with self._timed("ledger", parts):
            self._ledger = self._post(snapshot)
        parts += self._ledger.parts
        return snapshot

    @contextmanager
    def _timed(self, name: str, parts: list[Collected]) -> Iterator[None]:
        began, trouble = self._clock.elapsed(), ""
        try:
            yield
        except Exception as error:
            trouble = str(error) or type(error).__name__
            raise
        finally:
            parts.append(Collected(name, self._clock.elapsed() - began, trouble))

    def _show(self, snapshot: Snapshot | None, unix: float, health: Health) -> NodeState:
        source = snapshot.source if snapshot else self._source.info
        page = NodeState(unix=unix, source=source, snapshot=snapshot, ledger=self._ledger, health=health)
        self._publish(page)
        return page

    def _say(self, status: str) -> None:
        # Once per change: a node without a driver must not fill its log.
        if status != self._status:
            before, self._status = self._status, status
            if status == OK:
                again = "again" if before else f"every {self._pace.interval:g} s"
                log.info("reading %s %s", self._source.info.name, again)
            else:
                log.error("%s", status)

    def _note(self, seconds: float) -> None:
        before = self._pace.interval
        if self._pace.note(seconds):
            now = self._pace.interval
            level = logging.WARNING if now > before else logging.INFO
            log.log(level, "a tick takes %.0f ms: the interval is now %g s", seconds * 1000, now)

    def _run(self) -> None:
        due = self._clock.elapsed()
        while not self._stop.is_set():
            try:
                self.tick()
            except Exception:
                # Only publishing is left to fail; the watchdog turns health when no page comes through.
                log.exception("a page could not be published")
            now = self._clock.elapsed()
            due = max(due + self._pace.interval, now)
            if self._wake.wait(due - now):
                self._wake.clear()
                due = self._clock.elapsed()

    def _watch(self) -> None:
        woke = 0.0
        with self._published:
            while not self._stop.is_set():
                allowed = _STALE_AFTER * self._pace.interval
                since = self._began if self._last_page is None else self._last_page
                now = self._clock.elapsed()
                # No tick is late for having slept with the machine.
                late = now - max(since, woke)
                if late >= allowed and not self._stalled:
                    self._turn_stale(late)
                wait = None if self._stalled else max(allowed - late, 0.001)
                self._published.wait(wait)
                if wait is not None and self._clock.elapsed() - now - wait > max(allowed, _SLEPT):
                    woke = self._clock.elapsed()

    def _turn_stale(self, late: float) -> None:
        self._stalled = True
        name = self._source.info.name
        if self._last_page is None:
            status = f"no first reading of {name} after {late:.1f} s and more: it is slow to start or hangs"
        else:
            status = (
                f"no reading for {late:.1f} s and more: {name} does not answer; device data is withheld until"
                " it does (look for Xid errors in dmesg; a hung driver needs a reboot)"
            )
        try:
            self._show(None, self._clock.unix(), self._vitals.stalled(status, self._pace.interval))
        except Exception:
            log.exception("a page could not be published")
        self._say(status)
