"""The texts around the tables."""

from __future__ import annotations

import re

import pytest

from gpuledger.terminal.filters import ProcessFilter
from gpuledger.terminal.header import Freshness, head_lines, key_line, note_line
from gpuledger.terminal.layout import UNICODE, plain_text, width_of
from gpuledger.terminal.sort_order import SortOrder
from gpuledger.terminal.top_view import (
    SnapshotOrigin,
    TopView,
    banner_lines,
    caption_line,
    data_notes,
    describe_problem,
    format_clock,
    no_process_text,
    totals_line,
)
from unit.terminal.support import GIB, NOW, device, holder, parsed, problem, process

HERE = SnapshotOrigin("this machine", began="10:00:00")
THERE = SnapshotOrigin("http://node-1:9400", remote=True)


def text_of(line):
    return plain_text(line)


SUMS = [
    ([], "0 GPUs:"),
    ([device(state="active")], "1 GPU: ● 1 active · 0.1/0.7 kW · 0/80.0G"),
    ([device("0"), device("1", state="held")], "2 GPUs: ◐ 1 HELD ○ 1 idle · 0.1/1.4 kW · 0/160G"),
    (
        [device("0"), device("1", up=False)],
        "2 GPUs: ○ 1 idle \N{MULTIPLICATION SIGN} 1 DOWN · 0.1/0.7 kW · 0/80.0G",
    ),
    (
        [device("0", problems=[problem("xid")]), device("1", up=False, problems=[problem("down")])],
        "2 GPUs: ○ 1 idle ! 1 DEGRADED \N{MULTIPLICATION SIGN} 1 DOWN · 0.1/0.7 kW · 0/80.0G",
    ),
    ([device("0", problems=[problem("power_throttling", "info")])], "1 GPU: ○ 1 idle · 0.1/0.7 kW · 0/80.0G"),
    ([device("0"), device("1", power_watts=None)], "2 GPUs: ○ 2 idle · 0/160G"),
    ([device("0", power_limit_watts=None)], "1 GPU: ○ 1 idle · 0.1 kW · 0/80.0G"),
    ([device("0", power_watts=12.0)], "1 GPU: ○ 1 idle · <0.1/0.7 kW · 0/80.0G"),
    ([device("0", power_watts=0.0)], "1 GPU: ○ 1 idle · 0.0/0.7 kW · 0/80.0G"),
    ([device("0", memory_used_bytes=None, power_watts=None)], "1 GPU: ○ 1 idle"),
    (
        [device("0", holds_processes=False, state=None), device("0", "2_0", state="active")],
        "1 GPU, 1 instance: ● 1 active · 0.1/0.7 kW · 0/80.0G",
    ),
]


@pytest.mark.parametrize(("devices", "text"), SUMS)
def test_the_totals_count_states_and_omit_quantities_that_a_gpu_lacks(devices, text):
    assert text_of(totals_line(parsed(devices=devices).devices, UNICODE)) == text


def test_simulated_data_is_marked_by_a_banner():
    lines = banner_lines(parsed(source={"simulated": True, "detail": "k8s-node"}))
    assert "SIMULATED DATA: k8s-node" in text_of(lines[0])


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"status": {"healthy": False, "text": "GPU 3 is lost"}}, "Health: GPU 3 is lost"),
        ({"status": {"paused": True, "healthy": False, "text": "PAUSED until noon"}}, " PAUSED until noon"),
        ({"devices_complete": False}, "Not all GPUs could be listed."),
    ],
)
def test_a_banner_shows_what_is_wrong_with_the_node(changes, text):
    assert [text_of(line) for line in banner_lines(parsed(**changes))] == [text]


def test_a_healthy_node_of_real_gpus_has_no_banner():
    assert banner_lines(parsed()) == []


EMPTY = [
    ({"status": {"readings": False, "text": "no driver: install it"}}, "No readings: no driver: install it"),
    ({"devices": []}, "This machine has no GPU."),
    ({"devices": [], "devices_complete": False}, "The GPUs could not be listed."),
    ({"processes": [process()]}, "No process matches the filter."),
    ({"devices": [device(processes=None)]}, "The processes could not be listed."),
    ({}, "No process uses a GPU."),
]


@pytest.mark.parametrize(("changes", "text"), EMPTY)
def test_an_empty_table_shows_why_it_is_empty(changes, text):
    assert no_process_text(parsed(**changes)) == text


def test_the_caption_shows_the_counts_and_the_filters():
    many = parsed(processes=[process(1, command="a"), process(2, command="b"), process(None, count=40)])
    view = TopView(SortOrder("watts"), ProcessFilter.of("a"), ("0",))
    line = text_of(caption_line(many, view.processes(many), view, UNICODE))
    assert line == "1 of 42 processes by watts ▾ · GPU 0 only · filter: a"


def test_a_single_process_is_counted_in_the_singular():
    one = parsed(processes=[process()])
    assert text_of(caption_line(one, TopView().processes(one), TopView(), UNICODE)) == "1 process by gpu ▴"


def test_a_note_names_what_is_missing_and_the_remedy_of_doctor():
    lines = data_notes(
        parsed(
            devices=[device(processes=None)],
            processes=[process(1, unresolved="permission"), process(2, unresolved="permission")],
        ),
        THERE,
    )
    assert lines == [
        "2 processes that gpuledger has no permission to read (permission): run gpuledger as root, or with "
        "CAP_SYS_PTRACE.",
        "The processes of GPU 0 could not be listed.",
    ]


CLOCK, DAY = format_clock(NOW - 60), 86_400
ON_IT = {"xid": 79, "unix": NOW - 60, "pid": 7, "command": "train"}
DESCRIBED = [
    (problem("down", summary="is lost", remedy="reboot; replace it"), [], "is lost. Reboot; replace it."),
    (problem("ecc_uncorrected", summary="had 2 errors"), [], "had 2 errors."),
    (
        problem("thermal_throttling", summary="is hot", since=NOW - 60, ratio=0.42, observed_seconds=3600.0),
        [],
        f"is hot, since {CLOCK}, 42% of the last 1h00m.",
    ),
    (
        problem("thermal_throttling", summary="is hot", ratio=0.004, observed_seconds=90.0),
        [ON_IT],
        "is hot, <1% of the last 1m30s.",
    ),
    (
        problem("xid", label="Xid 79", summary="reported Xid 79: a", since=NOW - 60, count=3),
        [{**ON_IT, "unix": NOW - 90}, {**ON_IT, "xid": 13}, {**ON_IT, "pid": None}],
        f"reported Xid 79: a, 3 times, last at {CLOCK}.",
    ),
    (
        problem("xid", label="Xid 79", summary="reported Xid 79: a", since=NOW - 60),
        [ON_IT],
        f"reported Xid 79: a, at {CLOCK}, while train (pid 7) was on it.",
    ),
]


@pytest.mark.parametrize(("found", "xids", "text"), DESCRIBED)
def test_a_problem_is_described_with_its_time_its_share_its_process_and_the_remedy(found, xids, text):
    (row,) = parsed(devices=[device(problems=[found], xids=xids)]).devices
    assert describe_problem(row.problems[0], row.xids, NOW) == text


def test_a_problem_of_another_day_has_its_date():
    found = problem("xid", label="Xid 8", summary="reported Xid 8", since=NOW - 2 * DAY)
    (row,) = parsed(devices=[device(problems=[found])]).devices
    text = describe_problem(row.problems[0], (), NOW)
    assert re.fullmatch(r"reported Xid 8, at 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d\.", text)


def test_problems_are_the_first_notes():
    notes = data_notes(
        parsed(
            devices=[device("0"), device("3", problems=[problem("xid", summary="failed")], processes=None)]
        ),
        HERE,
    )
    assert [note.partition(",")[0][:20] for note in notes] == [
        "GPU 3 failed.",
        "Joules and held time",
        "The processes of GPU",
    ]


def test_a_node_of_an_older_version_reports_no_problems():
    assert parsed(devices=[device()]).devices[0].problems == ()


def test_a_note_names_the_start_of_counting_on_this_machine():
    assert "count from 10:00:00, when this top started" in data_notes(parsed(), HERE)[0]
    assert data_notes(parsed(), THERE) == []


def test_the_title_names_a_remote_node():
    line = text_of(head_lines(parsed(), "", Freshness(), TopView(), THERE, UNICODE)[0])
    assert line.startswith("gpuledger top · node-1 · ")
    assert line.endswith(" · http://node-1:9400 · driver 570.1 · CUDA 12.8 · source nvml")


FRESH = [
    (Freshness(1.0), {}, ""),
    (Freshness(4.5), {}, "STALE 4s: the node has not read its GPUs since"),
    (Freshness(20.0), {"interval_seconds": 10.0}, ""),
    (Freshness(31.0), {"interval_seconds": 10.0}, "STALE 31s"),
    (Freshness(300.0), {"paused": True}, ""),
    (Freshness(1.0, "node-1 cannot be reached"), {}, "STALE 1s: node-1 cannot be reached"),
]


@pytest.mark.parametrize(("freshness", "status", "text"), FRESH)
def test_a_stale_snapshot_shows_its_age_and_the_reason(freshness, status, text):
    shown = freshness.stale(parsed(status=status))
    assert shown.startswith(text)
    assert bool(shown) is bool(text)


def test_a_stopped_view_is_marked():
    lines = head_lines(parsed(), "", Freshness(stopped=True), TopView(), THERE, UNICODE)
    assert any("STOPPED" in text_of(line) for line in lines)


@pytest.mark.parametrize("width", [80, 110, 150, 200])
def test_the_keys_fit_the_screen(width):
    assert width_of(key_line(width)) <= width


def test_the_note_line_shows_the_first_note_and_the_key_for_the_others():
    assert [text_of(line) for line in note_line(["one", "two", "three"])] == ["[n: 2 more] one"]
    assert note_line([]) == []


def test_hiding_instances_keeps_their_processes():
    mig = parsed(
        devices=[device("0", holds_processes=False), device("0", "2_0", owners=[holder(user="ann")])],
        processes=[process(1, "0", instance="2_0", memory_bytes=GIB, start_unix=NOW)],
    )
    view = TopView(folded=True)
    assert [row.instance for row in view.devices(mig)] == [""]
    assert len(view.processes(mig)) == 1
