"""The tick: read, name, post, publish. One thread reads the driver, another one watches it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import Condition, Event, Thread

from gpuledger.model.errors import SourceUnavailable
from gpuledger.model.page import Health, MapHealth, Page
from gpuledger.model.quantities import Quantity
from gpuledger.model.session import LedgerState
from gpuledger.model.snapshot import Collected, Snapshot
from gpuledger.model.source import Clock, Source
from gpuledger.node.pace import Pace
from gpuledger.node.vitals import OK, SOURCE, Vitals, status_of

log = logging.getLogger("gpuledger.node")

Namer = Callable[[Snapshot], Snapshot]
Poster = Callable[[Snapshot], LedgerState]

# A page three intervals old is not the present. Counted from the last page, so that health turns within
# three intervals of the moment when the driver stops answering.
_STALE_AFTER = 3.0


class Node:
    """Turns a Source into Pages.

    `publish` is called with each Page, from the tick thread or, when a tick does not come back, from the
    watchdog; never from both at once. `wanted` is asked before each tick, `maps` after it.
    """

    def __init__(
        self,
        source: Source,
        *,
        name: Namer,
        post: Poster,
        publish: Callable[[Page], None],
        wanted: Callable[[], frozenset[Quantity]],
        clock: Clock,
        interval: float,
        maps: Callable[[], tuple[MapHealth, ...]] = tuple,
    ) -> None:
        self._source = source
        self._name = name
        self._post = post
        self._publish = publish
        self._wanted = wanted
        self._clock = clock
        self._pace = Pace(interval)
        self._vitals = Vitals(clock.unix(), interval, maps)
        self._ledger = LedgerState()
        self._stop = Event()
        self._published = Condition()
        self._last_page: float | None = None
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
        with self._published:
            self._published.notify_all()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(patience)
        if not self._threads[0].is_alive():
            self._source.close()

    def tick(self) -> Page:
        """Read, name and post once, publish the Page and answer it.

        Whatever goes wrong is told on the Page: the loop outlives any single tick.
        """
        began = self._clock.elapsed()
        snapshot: Snapshot | None = None
        parts: list[Collected] = []
        try:
            snapshot = self._read(began, parts)
            status = status_of(snapshot, self._ledger.parts)
        except SourceUnavailable as error:
            status = str(error)
            parts = [Collected(SOURCE, self._clock.elapsed() - began, status)]
        except Exception as error:
            status = f"internal error in gpuledger, please report it: {type(error).__name__}: {error}"
            if status != self._status:
                log.exception("a tick failed")
        unix = snapshot.unix if snapshot else self._clock.unix()
        with self._published:
            health = self._vitals.ticked(unix, snapshot, parts, status, self._pace.interval)
            page = self._show(snapshot, unix, health)
            self._last_page = self._clock.elapsed()
            self._stalled = False
            self._published.notify_all()
        self._say(status)
        self._note(self._last_page - began)
        return page

    def _read(self, began: float, parts: list[Collected]) -> Snapshot:
        snapshot = self._source.read(self._wanted())
        read = self._clock.elapsed()
        parts += [Collected(SOURCE, read - began), *snapshot.collected]
        snapshot = self._name(snapshot)
        named = self._clock.elapsed()
        parts.append(Collected("workloads", named - read))
        self._ledger = self._post(snapshot)
        parts += [Collected("ledger", self._clock.elapsed() - named), *self._ledger.parts]
        return snapshot

    def _show(self, snapshot: Snapshot | None, unix: float, health: Health) -> Page:
        source = snapshot.source if snapshot else self._source.info
        page = Page(unix=unix, source=source, snapshot=snapshot, ledger=self._ledger, health=health)
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
            self._stop.wait(due - now)

    def _watch(self) -> None:
        with self._published:
            while not self._stop.is_set():
                allowed = _STALE_AFTER * self._pace.interval
                since = self._began if self._last_page is None else self._last_page
                late = self._clock.elapsed() - since
                if late >= allowed and not self._stalled:
                    self._turn_stale(late)
                self._published.wait(None if self._stalled else max(allowed - late, 0.001))

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
