"""What stands around the tables."""

from __future__ import annotations

import pytest

from gpuledger.terminal.header import Freshness, head_lines, key_line, note_line
from gpuledger.terminal.line import UNICODE, plain, width_of
from gpuledger.terminal.order import Order
from gpuledger.terminal.search import Filter
from gpuledger.terminal.view import Origin, View, banners, caption, empty, notes, totals
from unit.terminal.support import GIB, NOW, device, holder, picture, process

HERE = Origin("this machine", began="10:00:00")
THERE = Origin("http://node-1:9400", remote=True)


def told(line):
    return plain(line)


SUMS = [
    ([], "0 GPUs:"),
    ([device(state="active")], "1 GPU: ● 1 active · 0.1/0.7 kW · 0/80.0G"),
    ([device("0"), device("1", state="held")], "2 GPUs: ◐ 1 HELD ○ 1 idle · 0.1/1.4 kW · 0/160G"),
    (
        [device("0"), device("1", up=False)],
        "2 GPUs: ○ 1 idle \N{MULTIPLICATION SIGN} 1 LOST · 0.1/0.7 kW · 0/80.0G",
    ),
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
def test_the_sums_say_how_many_are_free_and_leave_out_what_not_all_tell(devices, text):
    assert told(totals(picture(devices=devices).devices, UNICODE)) == text


def test_numbers_that_nobody_measured_say_so_above_all():
    lines = banners(picture(source={"simulated": True, "detail": "k8s-node"}))
    assert "SIMULATED DATA: k8s-node" in told(lines[0])


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"status": {"healthy": False, "text": "GPU 3 is lost"}}, "Health: GPU 3 is lost"),
        ({"status": {"paused": True, "healthy": False, "text": "PAUSED until noon"}}, " PAUSED until noon"),
        ({"devices_complete": False}, "Not all GPUs could be listed."),
    ],
)
def test_a_node_that_is_not_well_says_what_is_wrong(changes, text):
    assert [told(line) for line in banners(picture(**changes))] == [text]


def test_a_healthy_node_of_real_gpus_has_no_banner():
    assert banners(picture()) == []


EMPTY = [
    ({"status": {"readings": False, "text": "no driver: install it"}}, "No readings: no driver: install it"),
    ({"devices": []}, "This machine has no GPU."),
    ({"devices": [], "devices_complete": False}, "The GPUs could not be listed."),
    ({"processes": [process()]}, "No process is shown: the filter hides all."),
    ({"devices": [device(processes=None)]}, "The processes could not be listed."),
    ({}, "No process is on the GPUs."),
]


@pytest.mark.parametrize(("changes", "text"), EMPTY)
def test_why_there_is_no_process_is_told_and_a_failed_list_is_not_an_empty_one(changes, text):
    assert empty(picture(**changes)) == text


def test_the_caption_says_how_many_of_how_many_and_why():
    many = picture(processes=[process(1, command="a"), process(2, command="b"), process(None, count=40)])
    view = View(Order("watts"), Filter.of("a"), ("0",))
    line = told(caption(many, view.processes(many), view, UNICODE))
    assert line == "1 of 42 processes by watts ▾ · GPU 0 only · filter: a"


def test_one_process_is_one_process():
    one = picture(processes=[process()])
    assert told(caption(one, View().processes(one), View(), UNICODE)) == "1 process by gpu ▴"


def test_what_is_missing_is_told_with_its_remedy_as_doctor_tells_it():
    lines = notes(
        picture(
            devices=[device(processes=None)],
            processes=[process(1, unresolved="permission"), process(2, unresolved="permission")],
        ),
        THERE,
    )
    assert lines == [
        "2 processes that may not be looked at (permission): run gpuledger as root, or with CAP_SYS_PTRACE.",
        "The processes of GPU 0 could not be listed.",
    ]


def test_of_this_machine_it_is_said_since_when_joules_count():
    assert "count from 10:00:00, when this top began" in notes(picture(), HERE)[0]
    assert notes(picture(), THERE) == []


def test_the_node_that_is_not_this_machine_is_named():
    line = told(head_lines(picture(), "", Freshness(), View(), THERE, UNICODE)[0])
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
def test_a_picture_that_is_not_the_present_says_how_old_it_is_and_why(freshness, status, text):
    said = freshness.stale(picture(status=status))
    assert said.startswith(text)
    assert bool(said) is bool(text)


def test_a_view_that_its_user_has_stopped_says_so():
    lines = head_lines(picture(), "", Freshness(stopped=True), View(), THERE, UNICODE)
    assert any("STOPPED" in told(line) for line in lines)


@pytest.mark.parametrize("width", [80, 110, 150, 200])
def test_the_keys_fit_the_screen(width):
    assert width_of(key_line(width)) <= width


def test_of_several_notes_the_first_is_shown_and_how_to_see_the_others():
    assert [told(line) for line in note_line(["one", "two", "three"])] == ["[n: 2 more] one"]
    assert note_line([]) == []


def test_folded_the_instances_of_a_gpu_are_left_out_but_not_their_processes():
    mig = picture(
        devices=[device("0", holds_processes=False), device("0", "2_0", owners=[holder(user="ann")])],
        processes=[process(1, "0", instance="2_0", memory_bytes=GIB, start_unix=NOW)],
    )
    view = View(folded=True)
    assert [row.instance for row in view.devices(mig)] == [""]
    assert len(view.processes(mig)) == 1
