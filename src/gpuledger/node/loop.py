"""The tick loop: read, name owners, post, publish. One thread reads the driver, another one watches it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from threading import Condition, Event, Lock, Thread

from gpuledger.host.steady_thread import keep_running
from gpuledger.model.errors import GpuledgerError, SourceUnavailable
from gpuledger.model.node_state import Health, IndexHealth, NodeState, PauseHealth, ReloadHealth
from gpuledger.model.quantities import Quantity
from gpuledger.model.session import LedgerState
from gpuledger.model.snapshot import LONGEST_INTERVAL, CollectorRun, Snapshot
from gpuledger.model.source import Clock, Source
from gpuledger.node.adaptive_interval import AdaptiveInterval
from gpuledger.node.health import OK, SOURCE, HealthTracker, Pause, status_of

log = logging.getLogger("gpuledger.node")

Namer = Callable[[Snapshot], Snapshot]
Poster = Callable[[Snapshot], LedgerState]

# A state older than three intervals is stale. Measured from the last published state, so that health turns
# within three intervals after the driver stops answering.
_STALE_INTERVALS = 3.0
# Seconds. A driver without persistence mode takes some seconds per GPU to wake up.
_TIMEOUT = 30.0
# Seconds. When a wait takes this much longer than requested, the machine was suspended.
_SUSPEND_THRESHOLD = 5.0


class TickHangs(GpuledgerError):
    """The running tick hangs, so nothing can be changed between two ticks."""


@dataclass(frozen=True)
class NodeChange:
    """What a node uses from its next tick on; None keeps the current value."""

    source: Source | None = None
    name: Namer | None = None
    interval: float | None = None


class Node:
    """Reads a Source at an interval and publishes a NodeState after each tick.

    `publish` is called with each NodeState by the tick thread, by the watchdog when a tick hangs, and by the
    thread that calls `pause`; never by two threads at once. `required_quantities` is called before each tick,
    `owner_indexes` after it. `on_pause` is called when a pause begins, so that the next posting does not
    continue from the last one. `pausable` says whether a pause can be requested. `suspended` returns for how
    many seconds the machine was suspended since its boot; None if the source has another clock. `speed` is
    how many seconds pass on the source's clock in a second.
    """

    def __init__(
        self,
        source: Source,
        *,
        name: Namer,
        post: Poster,
        publish: Callable[[NodeState], None],
        required_quantities: Callable[[], frozenset[Quantity]],
        clock: Clock,
        interval: float,
        owner_indexes: Callable[[], tuple[IndexHealth, ...]] = tuple,
        on_pause: Callable[[], None] = lambda: None,
        pausable: bool = False,
        suspended: Callable[[], float | None] = lambda: None,
        speed: float = 1.0,
    ) -> None:
        self._source = source
        self._name = name
        self._post = post
        self._publish = publish
        self._required_quantities = required_quantities
        self._requested: frozenset[Quantity] = frozenset()
        self._clock = clock
        self._interval = AdaptiveInterval(interval)
        # Seconds that were planned from the last tick to the next one, whatever a reload changes meanwhile.
        self._planned = interval
        self._is_watching = True
        self._suspended = suspended
        self._speed = speed
        self._on_pause = on_pause
        self._health_tracker = HealthTracker(clock.unix(), interval, owner_indexes)
        self._health_tracker.pause = PauseHealth() if pausable else None
        self._ledger = LedgerState()
        self._pause: Pause | None = None
        # Held while a tick runs, and while its source, namer or interval is replaced.
        self._ticking = Lock()
        self._wake = Event()
        self._stop = Event()
        self._published = Condition()
        self._last_published: float | None = None
        self._newest_state: NodeState | None = None
        self._published_count = 0
        self._began = clock.elapsed()
        self._stalled = False
        self._status = ""
        # Daemon threads: a driver call that never returns must not keep the process from exiting.
        self._threads = [
            Thread(target=keep_running, args=(self._run, self._stop.is_set), name="tick", daemon=True),
            Thread(target=keep_running, args=(self._watch, self._stop.is_set), name="watchdog", daemon=True),
        ]

    def start(self) -> None:
        """Start ticking; the first tick runs immediately."""
        self._began = self._clock.elapsed()
        self._log_unwatched_time()
        for thread in self._threads:
            thread.start()

    def stop(self, timeout: float = 2.0) -> None:
        """Stop both threads. A tick that hangs in the driver is abandoned after `timeout` seconds."""
        self._stop.set()
        self._wake.set()
        with self._published:
            self._published.notify_all()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(timeout)
        if not self._threads[0].is_alive():
            self._source.close()

    def tick(self) -> NodeState:
        """Read, name and post once; publish and return the NodeState.

        Failures are reported in the NodeState: no failing tick ends the loop. During a pause nothing is read.
        """
        with self._ticking:
            began = self._clock.elapsed()
            if self._pause is not None and began >= self._pause.ends:
                log.warning("the pause ends: its time is over and `gpuledger resume` was not called")
                self._end_pause()
            return self._run_tick(began) if self._pause is None else self._publish_paused_state(self._pause)

    @contextmanager
    def between_ticks(self, timeout: float = _TIMEOUT) -> Iterator[None]:
        """No tick runs inside the context. Raises TickHangs when the running one does not end in time."""
        if not self._ticking.acquire(timeout=timeout):
            raise TickHangs(
                f"a read of {self._source.info.name} has not returned for {timeout:g} s: the driver"
                " hangs (look for Xid errors in dmesg; a hung driver needs a reboot)"
            )
        try:
            yield
        finally:
            self._ticking.release()

    def pause(self, seconds: float, reason: str = "", timeout: float = _TIMEOUT) -> Pause:
        """Release the driver, publish a paused NodeState, and read nothing for `seconds`.

        During a pause this only sets a new end and reason. Raises TickHangs and changes nothing when the
        running tick does not end in time.
        """
        with self.between_ticks(timeout):
            now = self._clock.elapsed()
            pause = Pause(now + seconds, self._clock.unix() + seconds, reason)
            if self._pause is None:
                self._release_driver()
                self._on_pause()
            self._pause, self._health_tracker.pause = pause, pause.health
            self._publish_paused_state(pause)
        return pause

    def resume(self, timeout: float = _TIMEOUT) -> NodeState | None:
        """End the pause and return the NodeState of the first tick after it; None when not paused.

        Raises GpuledgerError when that tick does not end in time.
        """
        with self.between_ticks(timeout):
            if self._pause is None:
                return None
            self._end_pause()
            before = self._published_count
        self._wake.set()
        with self._published:
            self._published.wait_for(lambda: self._published_count > before or self._stop.is_set(), timeout)
            if self._newest_state is None or self._published_count == before:
                raise GpuledgerError(
                    f"resumed, but the first read has not returned for {timeout:g} s: see /health"
                )
            return self._newest_state

    def apply_change(self, parts: NodeChange) -> None:
        """Use other parts from the next tick on; call it inside `between_ticks`. Closes a replaced source."""
        if parts.source is not None:
            self._release_driver()
            self._source = parts.source
        self._name = parts.name or self._name
        if parts.interval is not None:
            self._interval = AdaptiveInterval(parts.interval)
            self._health_tracker.requested_interval = parts.interval
            self._log_unwatched_time()
        self._wake.set()

    def set_reload_health(self, health: ReloadHealth) -> None:
        """Set what the next NodeState reports about the settings."""
        self._health_tracker.reload = health

    def _release_driver(self) -> None:
        # A simulated source holds no driver, and its timeline would end.
        if not self._source.info.simulated:
            self._source.close()

    def _end_pause(self) -> None:
        self._pause, self._health_tracker.pause = None, PauseHealth()

    def _publish_paused_state(self, pause: Pause) -> NodeState:
        status = str(pause)
        with self._published:
            unix = self._clock.unix()
            state = self._publish_after_tick(
                None, unix, self._health_tracker.while_paused(status, self._interval.interval)
            )
        if status != self._status:
            self._status = status
            log.info("%s", status)
        return state

    def _run_tick(self, began: float) -> NodeState:
        snapshot: Snapshot | None = None
        parts: list[CollectorRun] = []
        try:
            snapshot = self._collect(parts)
            status = status_of(snapshot, self._ledger.parts)
        except SourceUnavailable as error:
            status = str(error)
        except MemoryError:
            status = "out of memory during a tick: raise the memory limit (MemoryMax, limits.memory)"
        except Exception as error:
            status = f"internal error in gpuledger, please report it: {type(error).__name__}: {error}"
            if status != self._status:
                log.exception("a tick failed")
        unix = snapshot.unix if snapshot else self._clock.unix()
        runs_command = self._source.info.exit_code is not None
        if runs_command:
            # Its time is that of the read: the published state has the interval that follows.
            self._adapt_interval(self._clock.elapsed() - began, of_command=True)
        with self._published:
            health = self._health_tracker.after_tick(unix, snapshot, parts, status, self._interval.interval)
            state = self._publish_after_tick(snapshot, unix, health)
        self._log_status(status)
        if not runs_command:
            self._adapt_interval(self._clock.elapsed() - began)
        return state

    def _publish_after_tick(self, snapshot: Snapshot | None, unix: float, health: Health) -> NodeState:
        """Publish the NodeState of a finished tick; the caller holds `_published`."""
        state = self._newest_state = self._publish_state(snapshot, unix, health)
        self._published_count += 1
        self._last_published = self._clock.elapsed()
        self._stalled = False
        self._published.notify_all()
        return state

    def _collect(self, parts: list[CollectorRun]) -> Snapshot:
        """Read, name and post; appends the outcome of each part to `parts`, also when one raises."""
        # Sources read `elapsed` first: a suspend within the tick belongs to the next interval in both.
        suspended = self._suspended()
        with self._timed(SOURCE, parts):
            self._requested = self._required_quantities()
            snapshot = self._source.read(self._requested)
        if suspended is not None:
            snapshot = replace(snapshot, suspended=suspended, interval=self._planned)
        parts += snapshot.collected
        with self._timed("workloads", parts):
            snapshot = self._name(snapshot)
        with self._timed("ledger", parts):
            self._ledger = self._post(snapshot)
        parts += self._ledger.parts
        return snapshot

    @contextmanager
    def _timed(self, name: str, parts: list[CollectorRun]) -> Iterator[None]:
        began, trouble = self._clock.elapsed(), ""
        try:
            yield
        except Exception as error:
            trouble = str(error) or type(error).__name__
            raise
        finally:
            parts.append(CollectorRun(name, self._clock.elapsed() - began, trouble))

    def _publish_state(self, snapshot: Snapshot | None, unix: float, health: Health) -> NodeState:
        source = snapshot.source if snapshot else self._source.info
        state = NodeState(unix, source, snapshot, self._ledger, health, self._requested)
        self._publish(state)
        return state

    def _log_status(self, status: str) -> None:
        # Logged once per change: a node without a driver must not fill its log.
        if status != self._status:
            before, self._status = self._status, status
            if status == OK:
                again = "again" if before else f"every {self._interval.interval:g} s"
                log.info("reading %s %s", self._source.info.name, again)
            else:
                log.error("%s", status)

    def _adapt_interval(self, seconds: float, *, of_command: bool = False) -> None:
        if self._interval.add_tick(seconds, of_command=of_command):
            self._log_unwatched_time()
        self._planned = self._interval.interval

    def _log_unwatched_time(self) -> None:
        """Warn once while the interval is too long for the ledger."""
        interval = self._interval.interval * self._speed
        is_watching = interval < LONGEST_INTERVAL
        if self._is_watching and not is_watching:
            is_simulated = self._speed != 1
            log.warning(
                "the interval is %g s%s: no GPU time is watched between reads that are more than %g s apart, "
                "and their energy has no owner; set a shorter --interval%s",
                interval,
                f" of the source's time (--speed {self._speed:g})" if is_simulated else "",
                LONGEST_INTERVAL,
                " or a lower --speed" if is_simulated else "",
            )
        self._is_watching = is_watching

    def _run(self) -> None:
        due = self._clock.elapsed()
        while not self._stop.is_set():
            try:
                self.tick()
            except Exception:
                # Only publishing can fail here; the watchdog turns health when no state is published.
                log.exception("publishing the node state failed")
            now = self._clock.elapsed()
            due = max(due + self._interval.interval, now)
            if self._wake.wait(due - now):
                self._wake.clear()
                due = self._clock.elapsed()

    def _watch(self) -> None:
        woke = 0.0
        with self._published:
            while not self._stop.is_set():
                allowed = _STALE_INTERVALS * self._interval.interval
                since = self._began if self._last_published is None else self._last_published
                now = self._clock.elapsed()
                # A tick is not late because the machine was suspended.
                late = now - max(since, woke)
                if late >= allowed and not self._stalled:
                    self._report_stall(late)
                wait = None if self._stalled else max(allowed - late, 0.001)
                self._published.wait(wait)
                if wait is not None and self._clock.elapsed() - now - wait > max(allowed, _SUSPEND_THRESHOLD):
                    woke = self._clock.elapsed()

    def _report_stall(self, late: float) -> None:
        self._stalled = True
        name = self._source.info.name
        if self._last_published is None:
            status = f"no first reading of {name} for more than {late:.1f} s: it starts slowly or hangs"
        else:
            status = (
                f"no reading for more than {late:.1f} s: {name} does not answer; device data is withheld"
                " until it does (look for Xid errors in dmesg; a hung driver needs a reboot)"
            )
        try:
            self._publish_state(
                None, self._clock.unix(), self._health_tracker.while_stalled(status, self._interval.interval)
            )
        except Exception:
            log.exception("publishing the node state failed")
        self._log_status(status)
