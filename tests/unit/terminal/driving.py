"""Drives the live view under Textual's pilot. Only the feed is scripted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from threading import Event

from gpuledger.model.errors import GpuledgerError
from gpuledger.terminal.app import TopApp
from gpuledger.terminal.layout import UNICODE, plain_text
from gpuledger.terminal.top_view import SnapshotOrigin, TopView
from running import PATIENCE
from unit.terminal.support import device, holder, snapshot


class ScriptedFeed:
    """A feed with snapshots that a test sets."""

    def __init__(self, *processes, devices=None):
        self.origin = SnapshotOrigin("http://node-1:9400", remote=True)
        self.unix = snapshot([], [])["unix"]
        self.error = ""
        self.answered = Event()
        self.devices = devices or [device("0", state="held", owners=[holder(user="ann")]), device("1")]
        self.processes = list(processes)

    def snapshot(self):
        self.answered.set()
        if self.error:
            raise GpuledgerError(self.error)
        self.unix += 1
        return snapshot(self.devices, self.processes) | {"unix": self.unix}

    def remarks(self):
        return []

    def close(self):
        pass


class TopDriver:
    """An app that a test drives, with its pilot, feed and clock."""

    def __init__(self, app, pilot, feed, clock):
        self.app, self.pilot, self.feed, self.clock = app, pilot, feed, clock

    async def press(self, *keys):
        await self.pilot.press(*keys)
        await self.pilot.pause()

    async def read(self):
        """Wait until the newest snapshot, or its error, is drawn."""
        self.feed.answered.clear()
        self.app.action_read()
        await self.until(self.feed.answered.is_set)
        await self.until(lambda: self.feed.error or self.app.newest.unix == self.feed.unix)
        await self.pilot.pause()

    async def until(self, condition: Callable[[], object]) -> None:
        async def wait():
            while not condition():
                await self.pilot.pause(0.01)

        await asyncio.wait_for(wait(), PATIENCE)

    async def show(self, *processes):
        """Draw other processes."""
        self.feed.processes = list(processes)
        await self.read()

    @property
    def pids(self):
        return [row.pid for row in self.app.processes.rows]

    @property
    def current(self):
        row = self.app.processes.current
        return None if row is None else row.pid

    def screen_line_of_cursor(self):
        table = self.app.processes
        return self.pids.index(self.current) - table.scroll_offset.y

    def text(self, name="head"):
        return [plain_text(line) for line in getattr(self.app, name).lines]

    def drawn(self, name):
        table = getattr(self.app, name)
        return [table.render_line(y).text.rstrip() for y in range(table.size.height)]


def run_top(test, *processes, size=(80, 24), view=None, devices=None, local=None):
    """Run a test's coroutine on a started app."""

    async def run():
        feed, now = ScriptedFeed(*processes, devices=devices), [0.0]
        app = TopApp(feed, view or TopView(), 3600.0, UNICODE, clock=lambda: now[0], local=local)
        async with app.run_test(size=size, notifications=True) as pilot:
            driver = TopDriver(app, pilot, feed, now)
            await driver.until(lambda: app.devices.rows)
            await test(driver)

    asyncio.run(run())
