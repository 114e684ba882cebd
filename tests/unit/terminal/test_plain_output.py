"""A snapshot rendered as text, compared byte by byte."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuledger.terminal.layout import ASCII, UNICODE, plain_text
from gpuledger.terminal.palette import ansi_text
from gpuledger.terminal.plain_output import render_lines
from gpuledger.terminal.sort_order import SortOrder
from gpuledger.terminal.top_view import SnapshotOrigin, TopView
from unit.terminal.support import GIB, NOW, device, holder, parsed, process

GOLDEN = Path(__file__).parents[2] / "golden"
HERE = SnapshotOrigin("this machine", began="22:13:18")

NODE = parsed(
    devices=[
        device(
            "0",
            state="active",
            utilization_ratio=0.97,
            memory_used_bytes=31 * GIB,
            power_watts=645.0,
            processes=2,
            owners=[holder(namespace="ml", pod="train-0"), holder(user="ann")],
        ),
        device("1", state="held", owners=[holder(0, 7620.0, namespace="notebooks", pod="jupyter-pavel")]),
        device("2"),
        device("3", holds_processes=False, state=None, utilization_ratio=None, processes=None),
        device("3", "2_0", state="unknown", power_watts=None, power_limit_watts=None, energy_joules=None),
        device("4", up=False, memory_used_bytes=None, power_watts=None, processes=None),
    ],
    processes=[
        process(20349, namespace="ml", pod="train-0", container="trainer", power_watts=512.25, joules=1.5e6),
        process(
            812, user="ann", command="evil\x1b[2J\u202e", power_watts=None, joules=None, start_exact=False
        ),
        process(7, "3", instance="2_0", unresolved="permission", sm_ratio=None, start_unix=NOW - 187_200),
        process(None, "0", count=44, command="", power_watts=3.0, start_unix=None),
    ],
    source={"simulated": True, "name": "simulator", "detail": "k8s-node"},
    status={"healthy": False, "text": "GPU 4 is lost"},
)


@pytest.mark.parametrize(
    ("name", "width", "glyphs"),
    [("80", 80, UNICODE), ("120", 120, UNICODE), ("pipe", None, UNICODE), ("ascii", 80, ASCII)],
)
def test_a_rendered_snapshot_matches_the_golden_file(name, width, glyphs):
    view = TopView(SortOrder("watts"))
    lines = render_lines(NODE, view, HERE, "22:13:20", width, glyphs, ["pods: unreachable: run doctor"])
    text = "".join(f"{plain_text(line)}\n" for line in lines)
    assert text == (GOLDEN / f"top-{name}.txt").read_text(encoding="utf-8")
    assert text.isascii() or glyphs is UNICODE


def test_ansi_text_keeps_the_text_of_a_line():
    line = (("HELD", "held"), (" by", "dim"), (" ann  ", ""))
    assert ansi_text(line, colored=True) == "\x1b[1;30;43mHELD\x1b[0m\x1b[2m by\x1b[0m ann"
    assert ansi_text(line, colored=False) == "\x1b[7mHELD\x1b[0m\x1b[2m by\x1b[0m ann"


def test_a_compute_instance_names_the_one_with_the_memory_of_both():
    parts = [device("0", "1_0"), device("0", "1_1", memory_used_bytes=None, memory_shared_with="1_0")]
    view = TopView(SortOrder("watts"))
    lines = render_lines(parsed(devices=parts), view, HERE, "22:13:20", 120, UNICODE, [])
    texts = [plain_text(line) for line in lines]
    assert ["in 1_0" in text for text in texts if "1_" in text] == [False, True]
