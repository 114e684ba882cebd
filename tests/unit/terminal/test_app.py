"""The live view under a pilot: keys, cursor, freshness. The feed is scripted; the widgets are real."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from threading import Event

import pytest

from gpuledger.model.errors import GpuledgerError
from gpuledger.terminal.app import TopApp
from gpuledger.terminal.line import UNICODE, plain
from gpuledger.terminal.order import Order
from gpuledger.terminal.screens import Sheet
from gpuledger.terminal.view import Origin, View
from unit.terminal.support import device, holder, process, snapshot

PATIENCE = 20.0


class Script:
    """A feed that says what the test wants."""

    def __init__(self, *processes, devices=None):
        self.origin = Origin("http://node-1:9400", remote=True)
        self.unix = snapshot([], [])["unix"]
        self.trouble = ""
        self.answered = Event()
        self.devices = devices or [device("0", state="held", owners=[holder(user="ann")]), device("1")]
        self.processes = list(processes)

    def snapshot(self):
        self.answered.set()
        if self.trouble:
            raise GpuledgerError(self.trouble)
        self.unix += 1
        return snapshot(self.devices, self.processes) | {"unix": self.unix}

    def remarks(self):
        return []

    def close(self):
        pass


class Watched:
    """An app that a test drives."""

    def __init__(self, app, pilot, feed, clock):
        self.app, self.pilot, self.feed, self.clock = app, pilot, feed, clock

    async def press(self, *keys):
        await self.pilot.press(*keys)
        await self.pilot.pause()

    async def read(self):
        """The newest picture, drawn; or why there is none, told."""
        self.feed.answered.clear()
        self.app.action_read()
        await self.until(self.feed.answered.is_set)
        await self.until(lambda: self.feed.trouble or self.app.newest.unix == self.feed.unix)
        await self.pilot.pause()

    async def until(self, condition: Callable[[], object]) -> None:
        async def wait():
            while not condition():
                await self.pilot.pause(0.01)

        await asyncio.wait_for(wait(), PATIENCE)

    async def say(self, *processes):
        """Other processes, drawn."""
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
        return [plain(line) for line in getattr(self.app, name).lines]

    def drawn(self, name):
        table = getattr(self.app, name)
        return [table.render_line(y).text.rstrip() for y in range(table.size.height)]


def watch(test, *processes, size=(80, 24), view=None, devices=None):
    """Run a test's coroutine on a started app."""

    async def run():
        feed, now = Script(*processes, devices=devices), [0.0]
        app = TopApp(feed, view or View(), 3600.0, UNICODE, clock=lambda: now[0])
        async with app.run_test(size=size) as pilot:
            watched = Watched(app, pilot, feed, now)
            await watched.until(lambda: app.devices.rows)
            await test(watched)

    asyncio.run(run())


THREE = (
    process(1, command="a", power_watts=30),
    process(2, command="c", power_watts=10),
    process(3, command="b"),
)


SORTS = [
    (["w"], [3, 1, 2]),
    (["w", "w"], [2, 1, 3]),
    (["c"], [1, 3, 2]),
    (["c", "c"], [2, 3, 1]),
    (["greater_than_sign"], [1, 2, 3]),
    (["p", "less_than_sign"], [1, 2, 3]),
    (["w", "greater_than_sign"], [1, 2, 3]),
]


@pytest.mark.parametrize(("keys", "pids"), SORTS)
def test_a_columns_letter_sorts_and_again_the_other_way(keys, pids):
    async def test(top):
        await top.press(*keys)
        assert top.pids == pids

    watch(test, *THREE)


def test_the_column_sorted_by_says_so():
    async def test(top):
        await top.press("w")
        assert "WATTS▾" in top.drawn("processes")[0]
        assert "3 processes by watts ▾" in top.text("caption")

    watch(test, *THREE)


def test_the_cursor_stays_on_its_process_when_the_order_changes_and_when_others_come():
    async def test(top):
        await top.press("down", "down")
        assert top.current == 2
        await top.press("w")
        assert (top.pids, top.current) == ([3, 1, 2], 2)
        await top.say(process(9, power_watts=5000), *THREE)
        assert (top.pids, top.current) == ([9, 3, 1, 2], 2)

    watch(test, *THREE)


def test_when_its_process_ends_the_cursor_goes_to_the_neighbour():
    async def test(top):
        await top.press("down", "down")
        await top.say(THREE[0], THREE[2])
        assert top.current == 3
        await top.say()
        assert top.current is None
        await top.say(*THREE)
        assert top.pids == [1, 2, 3]

    watch(test, *THREE)


def test_before_anybody_moves_it_there_is_no_cursor_and_the_top_stays_in_sight():
    async def test(top):
        await top.press("w")
        await top.say(*(process(pid, power_watts=pid) for pid in range(1, 100)))
        assert top.current is None
        assert top.app.processes.scroll_offset.y == 0
        assert top.drawn("processes")[1].split()[1] == "99"

    watch(test, *THREE)


def test_the_row_under_the_cursor_stays_where_it_is_on_the_screen():
    async def test(top):
        await top.press("p", *["down"] * 30)
        assert top.current == 30
        line = top.screen_line_of_cursor()
        await top.say(*(process(pid) for pid in range(11, 200)))
        assert (top.current, top.screen_line_of_cursor()) == (30, line)

    watch(test, *(process(pid) for pid in range(1, 100)))


def test_pages_and_ends_of_the_table():
    async def test(top):
        await top.press("p", "end")
        assert top.current == 500
        assert top.drawn("processes")[-1].split()[1] == "500"
        await top.press("home")
        assert top.current == 1
        await top.press("pagedown")
        assert top.current == top.app.processes.size.height

    watch(test, *(process(pid) for pid in range(1, 501)))


def test_only_the_lines_in_sight_are_made():
    async def test(top):
        table = top.app.processes
        assert len(table.rows) == 5000
        made = []
        draw = type(table).render_line
        table.render_line = lambda y: made.append(y) or draw(table, y)
        await top.press("down")
        await top.until(lambda: made)
        assert max(made) < 24

    watch(test, *(process(pid) for pid in range(1, 5001)))


def test_typing_a_filter_narrows_at_once_and_enter_keeps_it():
    async def test(top):
        await top.press("slash", "b")
        assert top.pids == [3]
        await top.press("enter")
        assert "1 of 3 processes by gpu ▴ · filter: b" in top.text("caption")
        await top.press("w")
        assert top.pids == [3]
        await top.press("g", "escape")
        assert top.pids == [1, 2, 3]

    watch(test, *THREE)


def test_esc_while_typing_brings_back_the_filter_before():
    async def test(top):
        await top.press("slash", "b", "enter", "slash", "x", "escape")
        assert top.pids == [3]
        await top.press("w")
        assert top.pids == [3]

    watch(test, *THREE)


def test_in_the_filter_letters_are_letters():
    async def test(top):
        await top.press("slash", "w", "q", "question_mark", "space", "0")
        assert top.app.filter.value == "wq? 0"
        assert top.app.is_running

    watch(test, *THREE)


def test_a_digit_shows_that_gpu_alone_and_again_all():
    async def test(top):
        await top.press("1")
        assert (top.pids, [row.gpu for row in top.app.devices.rows]) == ([5], ["1"])
        await top.press("1")
        assert top.pids == [4, 5]
        await top.press("7")
        assert top.pids == [4, 5]

    watch(test, process(4, "0"), process(5, "1"))


def test_enter_on_a_gpu_shows_it_alone():
    async def test(top):
        await top.press("shift+tab", "down", "down", "enter")
        assert top.pids == [5]

    watch(test, process(4, "0"), process(5, "1"))


def test_instances_stand_under_their_gpu_and_fold_away():
    mig = [device("0", holds_processes=False, state=None), device("0", "2_0"), device("1")]

    async def test(top):
        assert [line.split()[0] for line in top.drawn("devices")[1:]] == ["0", "└2_0", "1"]
        await top.press("i")
        assert [row.instance for row in top.app.devices.rows] == ["", ""]

    watch(test, devices=mig)


def test_enter_shows_a_process_and_goes_on_with_it_when_it_has_ended():
    async def test(top):
        await top.press("down", "enter")
        sheet = top.app.screen
        assert isinstance(sheet, Sheet)
        assert ("power", "30.0 W") in sheet.facts
        await top.say(process(1, command="a", power_watts=55))
        assert ("power", "55.0 W") in sheet.facts
        await top.say(process(2))
        assert ("state", "has ended; this is what was last seen") in sheet.facts
        assert ("power", "55.0 W") in sheet.facts
        await top.press("escape")
        assert not isinstance(top.app.screen, Sheet)

    watch(test, *THREE)


def test_help_names_every_key():
    async def test(top):
        await top.press("question_mark")
        words = " ".join(name for name, _ in top.app.screen.facts)
        for binding in ("enter", "tab", "/", "<", ">", "space", "esc", "q", "ctrl-c", "g p o c m s w j a"):
            assert binding in words
        await top.press("q")
        assert top.app.is_running

    watch(test)


def test_space_stops_the_picture_and_goes_on_with_the_newest():
    async def test(top):
        await top.press("space")
        await top.say(process(9))
        assert top.pids == [1, 2, 3]
        assert any("STOPPED" in line for line in top.text())
        await top.press("space")
        assert top.pids == [9]

    watch(test, *THREE)


def test_a_node_that_goes_away_leaves_its_last_picture_which_says_its_age_until_it_is_back():
    async def test(top):
        top.feed.trouble = "node-1 cannot be reached"
        top.app.action_read()
        await top.until(lambda: any("STALE" in line for line in top.text()))
        top.clock[0] += 12
        top.app.refresh_head()
        assert " STALE 12s: node-1 cannot be reached" in top.text()
        assert top.pids == [1, 2, 3]
        top.feed.trouble = ""
        await top.read()
        await top.until(lambda: not any("STALE" in line for line in top.text()))

    watch(test, *THREE)


def test_a_node_that_answers_but_reads_no_more_is_stale_too():
    async def test(top):
        top.feed.snapshot = lambda: snapshot(top.feed.devices, top.feed.processes) | {"unix": 1.0}
        top.app.action_read()
        await top.until(lambda: top.app.newest.unix == 1.0)
        top.clock[0] += 30
        top.app.refresh_head()
        assert any("STALE 30s: the node has not read its GPUs" in line for line in top.text())

    watch(test, *THREE)


def test_nothing_but_the_view_changes_when_the_terminal_does():
    async def test(top):
        await top.press("w", "down", "down")
        before = top.current
        await top.pilot.resize_terminal(200, 50)
        await top.until(lambda: "CONTAINER" in top.drawn("processes")[0])
        assert top.current == before
        await top.pilot.resize_terminal(80, 24)
        await top.until(lambda: "CONTAINER" not in top.drawn("processes")[0])
        assert top.current == before
        assert all(len(line) <= 80 for line in top.drawn("processes"))

    watch(test, *THREE)


def test_a_heading_sorts_when_it_is_clicked():
    async def test(top):
        column = top.drawn("processes")[0].index("WATTS")
        await top.pilot.click("#processes", offset=(column, 0))
        await top.until(lambda: top.pids == [3, 1, 2])

    watch(test, *THREE)


def test_without_colours_words_and_reversal_are_left(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")

    async def test(top):
        table = top.app.devices
        styles = [segment.style for y in range(3) for segment in table.render_line(y) if segment.style]
        assert not any(style.color or style.bgcolor for style in styles)
        held = next(segment for segment in table.render_line(1) if "HELD" in segment.text)
        assert held.style.reverse

    watch(test)


def test_what_was_asked_for_at_the_start_is_shown_first():
    async def test(top):
        assert top.pids == [3, 1, 2]

    watch(test, *THREE, view=View(Order("watts")))
