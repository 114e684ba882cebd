"""Filters of processes and GPUs."""

from __future__ import annotations

import pytest

from gpuledger.terminal.filters import ProcessFilter, find_unknown_gpus, select_devices, select_processes
from unit.terminal.support import device, parsed, process, rows

PEOPLE = rows(
    process(101, "0", command="train.py", user="ann"),
    process(102, "1", command="test", namespace="ml", pod="train-0", container="main"),
    process(1010, "10", command="Jupyter", user="bob", job="4711"),
    process(104, "1", instance="2_0", command="x", unresolved="pid_namespace"),
)

FILTERS = [
    ("", [101, 102, 1010, 104]),
    ("   ", [101, 102, 1010, 104]),
    ("train", [101, 102]),
    ("TRAIN", [101, 102]),
    ("train !test", [101]),
    ("!train", [1010, 104]),
    ("!", [101, 102, 1010, 104]),
    ("ml/train", [102]),
    ("101", [101, 1010]),
    ("pid:101", [101]),
    ("user:ann", [101]),
    ("user:", []),
    ("!user:ann", [102, 1010, 104]),
    ("ns:ml", [102]),
    ("namespace:ml", [102]),
    ("pod:train", [102]),
    ("container:main", [102]),
    ("job:4711", [1010]),
    ("job:47", []),
    ("cmd:jup", [1010]),
    ("command:jup bob", [1010]),
    ("gpu:1", [102, 104]),
    ("gpu:1/2_0", [104]),
    ("pid_namespace", [104]),
    ("image:x", []),
]


@pytest.mark.parametrize(("text", "expected"), FILTERS)
def test_a_process_is_shown_when_every_word_matches(text, expected):
    assert [row.pid for row in PEOPLE if ProcessFilter.of(text).matches(row)] == expected


def test_a_word_is_not_a_regular_expression():
    found = [
        row
        for row in rows(process(1, command="a.*b"), process(2, command="axxb"))
        if ProcessFilter.of("a.*b").matches(row)
    ]
    assert [row.pid for row in found] == [1]


MACHINE = parsed(
    devices=[
        device("0"),
        device("1", holds_processes=False),
        device("1", "2_0"),
        device("1", "10_0"),
        device("10"),
    ],
    processes=[
        process(1, "0"),
        process(2, "1", instance="2_0"),
        process(3, "1", instance="10_0"),
        process(4, "10"),
    ],
)

GPUS = [
    ((), ["0", "1", "1/2_0", "1/10_0", "10"], [1, 2, 3, 4]),
    (("0",), ["0"], [1]),
    (("1",), ["1", "1/2_0", "1/10_0"], [2, 3]),
    (("1/2_0",), ["1", "1/2_0"], [2]),
    (("1_2_0",), ["1", "1/2_0"], [2]),
    (("0", "10"), ["0", "10"], [1, 4]),
    (("GPU-00000010",), ["10"], [4]),
    (("gpu-00000010-aaaa",), ["10"], [4]),
    (("00000010",), ["10"], [4]),
    (("7",), [], []),
]


@pytest.mark.parametrize(("names", "devices", "pids"), GPUS)
def test_a_gpu_is_selected_by_index_instance_or_uuid(names, devices, pids):
    shown = select_devices(MACHINE.devices, names)
    assert [f"{row.gpu}/{row.instance}".rstrip("/") for row in shown] == devices
    assert [row.pid for row in select_processes(MACHINE.processes, names)] == pids
    assert find_unknown_gpus(MACHINE.devices, names) == ([] if devices else list(names))
