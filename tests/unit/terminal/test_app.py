"""The live view under Textual's pilot: keys, cursor, freshness. Only the feed is scripted."""

from __future__ import annotations

import pytest
from textual.events import Key

from gpuledger.terminal.screens import FactScreen
from gpuledger.terminal.sort_order import SortOrder
from gpuledger.terminal.top_view import TopView
from unit.terminal.driving import run_top
from unit.terminal.support import device, process, snapshot

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
def test_the_letter_of_a_column_sorts_by_it_and_a_second_time_reverses(keys, pids):
    async def test(top):
        await top.press(*keys)
        assert top.pids == pids

    run_top(test, *THREE)


def test_the_sort_column_is_marked():
    async def test(top):
        await top.press("w")
        assert "WATTS▾" in top.drawn("processes")[0]
        assert "3 processes by watts ▾" in top.text("caption")

    run_top(test, *THREE)


def test_the_cursor_follows_its_process_when_the_order_or_the_rows_change():
    async def test(top):
        await top.press("down", "down")
        assert top.current == 2
        await top.press("w")
        assert (top.pids, top.current) == ([3, 1, 2], 2)
        await top.show(process(9, power_watts=5000), *THREE)
        assert (top.pids, top.current) == ([9, 3, 1, 2], 2)

    run_top(test, *THREE)


def test_the_cursor_moves_to_the_neighbour_when_its_process_ends():
    async def test(top):
        await top.press("down", "down")
        await top.show(THREE[0], THREE[2])
        assert top.current == 3
        await top.show()
        assert top.current is None
        await top.show(*THREE)
        assert top.pids == [1, 2, 3]

    run_top(test, *THREE)


def test_without_a_cursor_the_first_row_remains_visible():
    async def test(top):
        await top.press("w")
        await top.show(*(process(pid, power_watts=pid) for pid in range(1, 100)))
        assert top.current is None
        assert top.app.processes.scroll_offset.y == 0
        assert top.drawn("processes")[1].split()[1] == "99"

    run_top(test, *THREE)


def test_the_row_under_the_cursor_keeps_its_line_on_the_screen():
    async def test(top):
        await top.press("p", *["down"] * 30)
        assert top.current == 30
        line = top.screen_line_of_cursor()
        await top.show(*(process(pid) for pid in range(11, 200)))
        assert (top.current, top.screen_line_of_cursor()) == (30, line)

    run_top(test, *(process(pid) for pid in range(1, 100)))


def test_page_home_and_end_keys_move_the_cursor():
    async def test(top):
        await top.press("p", "end")
        assert top.current == 500
        assert top.drawn("processes")[-1].split()[1] == "500"
        await top.press("home")
        assert top.current == 1
        await top.press("pagedown")
        assert top.current == top.app.processes.size.height

    run_top(test, *(process(pid) for pid in range(1, 501)))


def test_only_visible_lines_are_rendered():
    async def test(top):
        table = top.app.processes
        assert len(table.rows) == 5000
        made = []
        draw = type(table).render_line
        table.render_line = lambda y: made.append(y) or draw(table, y)
        await top.press("down")
        await top.until(lambda: made)
        assert max(made) < 24

    run_top(test, *(process(pid) for pid in range(1, 5001)))


def test_typing_a_filter_applies_immediately_and_enter_keeps_it():
    async def test(top):
        await top.press("slash", "b")
        assert top.pids == [3]
        await top.press("enter")
        assert "1 of 3 processes by gpu ▴ · filter: b" in top.text("caption")
        await top.press("w")
        assert top.pids == [3]
        await top.press("g", "escape")
        assert top.pids == [1, 2, 3]

    run_top(test, *THREE)


def test_esc_while_typing_restores_the_previous_filter():
    async def test(top):
        await top.press("slash", "b", "enter", "slash", "x", "escape")
        assert top.pids == [3]
        await top.press("w")
        assert top.pids == [3]

    run_top(test, *THREE)


def test_keys_that_arrive_together_with_the_slash_are_typed_into_the_filter():
    async def test(top):
        for key, character in (("slash", "/"), ("m", "m"), ("slash", "/"), ("i", "i")):
            top.app.post_message(Key(key, character))
        await top.until(lambda: top.app.filter.value)
        await top.pilot.pause()
        assert top.app.filter.value == "m/i"

    run_top(test, process(1))


def test_letters_typed_into_the_filter_are_not_key_bindings():
    async def test(top):
        await top.press("slash", "w", "q", "question_mark", "space", "0")
        assert top.app.filter.value == "wq? 0"
        assert top.app.is_running

    run_top(test, *THREE)


def test_a_digit_shows_only_that_gpu_and_a_second_time_all():
    async def test(top):
        await top.press("1")
        assert (top.pids, [row.gpu for row in top.app.devices.rows]) == ([5], ["1"])
        await top.press("1")
        assert top.pids == [4, 5]
        await top.press("7")
        assert top.pids == [4, 5]

    run_top(test, process(4, "0"), process(5, "1"))


def test_enter_on_a_gpu_shows_only_it():
    async def test(top):
        await top.press("shift+tab", "down", "down", "enter")
        assert top.pids == [5]

    run_top(test, process(4, "0"), process(5, "1"))


def test_instances_are_listed_under_their_gpu_and_can_be_hidden():
    mig = [device("0", holds_processes=False, state=None), device("0", "2_0"), device("1")]

    async def test(top):
        assert [line.split()[0] for line in top.drawn("devices")[1:]] == ["0", "└2_0", "1"]
        await top.press("i")
        assert [row.instance for row in top.app.devices.rows] == ["", ""]

    run_top(test, devices=mig)


def test_enter_shows_the_details_of_a_process_also_after_it_has_ended():
    async def test(top):
        await top.press("down", "enter")
        screen = top.app.screen
        assert isinstance(screen, FactScreen)
        assert ("power", "30.0 W") in screen.facts
        await top.show(process(1, command="a", power_watts=55))
        assert ("power", "55.0 W") in screen.facts
        await top.show(process(2))
        assert ("state", "has ended; these are its last values") in screen.facts
        assert ("power", "55.0 W") in screen.facts
        await top.press("escape")
        assert not isinstance(top.app.screen, FactScreen)

    run_top(test, *THREE)


def test_help_names_every_key():
    async def test(top):
        await top.press("question_mark")
        words = " ".join(name for name, _ in top.app.screen.facts)
        for binding in ("enter", "tab", "/", "<", ">", "space", "esc", "q", "ctrl-c", "g p o c m s w j a"):
            assert binding in words
        await top.press("q")
        assert top.app.is_running

    run_top(test)


def test_space_stops_the_view_and_continues_with_the_newest_snapshot():
    async def test(top):
        await top.press("space")
        await top.show(process(9))
        assert top.pids == [1, 2, 3]
        assert any("STOPPED" in line for line in top.text())
        await top.press("space")
        assert top.pids == [9]

    run_top(test, *THREE)


def test_the_last_snapshot_of_an_unreachable_node_shows_its_age_until_the_node_answers():
    async def test(top):
        top.feed.error = "node-1 cannot be reached"
        top.app.action_read()
        await top.until(lambda: any("STALE" in line for line in top.text()))
        top.clock[0] += 12
        top.app.refresh_head()
        assert " STALE 12s: node-1 cannot be reached" in top.text()
        assert top.pids == [1, 2, 3]
        top.feed.error = ""
        await top.read()
        await top.until(lambda: not any("STALE" in line for line in top.text()))

    run_top(test, *THREE)


def test_a_node_that_answers_without_new_readings_is_stale():
    async def test(top):
        top.feed.snapshot = lambda: snapshot(top.feed.devices, top.feed.processes) | {"unix": 1.0}
        top.app.action_read()
        await top.until(lambda: top.app.newest.unix == 1.0)
        top.clock[0] += 30
        top.app.refresh_head()
        assert any("STALE 30s: the node has not read its GPUs" in line for line in top.text())

    run_top(test, *THREE)


def test_resizing_the_terminal_keeps_the_cursor():
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

    run_top(test, *THREE)


def test_clicking_a_heading_sorts():
    async def test(top):
        column = top.drawn("processes")[0].index("WATTS")
        await top.pilot.click("#processes", offset=(column, 0))
        await top.until(lambda: top.pids == [3, 1, 2])

    run_top(test, *THREE)


def test_without_colors_words_and_reverse_video_remain(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")

    async def test(top):
        table = top.app.devices
        styles = [segment.style for y in range(3) for segment in table.render_line(y) if segment.style]
        assert not any(style.color or style.bgcolor for style in styles)
        held = next(segment for segment in table.render_line(1) if "HELD" in segment.text)
        assert held.style.reverse

    run_top(test)


def test_the_initial_view_is_applied():
    async def test(top):
        assert top.pids == [3, 1, 2]

    run_top(test, *THREE, view=TopView(SortOrder("watts")))
