"""What a node says is checked before it is drawn."""

from __future__ import annotations

import json

import pytest

from gpuledger.model.errors import GpuledgerError
from gpuledger.terminal.picture import read_picture
from unit.terminal.support import device, process, snapshot

WRONG = [
    (None, "an object"),
    ([], "an object"),
    ({}, "version v1, not 'None'"),
    ({"version": "v2"}, "version v1, not 'v2'"),
    ({"version": "\x1b[2J"}, r"\\x1b\[2J"),
    ({"version": "v1"}, "no snapshot"),
    (snapshot(status={"text": 7}), "no snapshot"),
    (snapshot() | {"devices": {"0": {}}}, "devices is no list"),
    (snapshot() | {"devices": [7]}, "no snapshot"),
    (snapshot(devices=[device(name=["x"])]), "name is no text"),
    (snapshot(devices=[device(power_watts="70")]), "power_watts is no number"),
    (snapshot(devices=[device(power_watts=True)]), "power_watts is no number"),
    (snapshot(devices=[device(power_watts=float("nan"))]), "power_watts is no number"),
    (snapshot(devices=[device(power_watts=10**400)]), "no snapshot"),
    (snapshot(devices=[device(processes=1.5)]), "processes is no whole number"),
    (snapshot(processes=[process(start_unix="now")]), "start_unix is no number"),
]


@pytest.mark.parametrize(("body", "why"), WRONG)
def test_what_is_no_snapshot_of_this_version_is_one_line(body, why):
    with pytest.raises(GpuledgerError, match=why) as caught:
        read_picture(body)
    assert "\n" not in str(caught.value)


def test_what_is_null_or_not_there_is_absent():
    bare = device(power_watts=None, temperature_celsius=None)
    del bare["utilization_ratio"], bare["owners"]
    row = read_picture(snapshot(devices=[bare])).devices[0]
    assert (row.power, row.temperature, row.utilization, row.holders) == (None, None, None, ())


def test_zero_is_zero():
    row = read_picture(snapshot(devices=[device(power_watts=0, memory_used_bytes=0)])).devices[0]
    assert (row.power, row.memory_used) == (0.0, 0.0)


def test_what_a_newer_node_says_besides_is_left_alone():
    body = json.loads(json.dumps(snapshot(devices=[device(colour="green")], moon="full")))
    assert read_picture(body).devices[0].gpu == "0"


def test_no_text_of_a_node_reaches_the_terminal_as_it_is():
    evil = "\x1b]0;x\x07"
    body = snapshot(
        devices=[device(name=evil, profile=evil)],
        processes=[process(command=evil, pod=evil, user=evil, types=[evil], unresolved=evil)],
        node=evil,
        source={"name": evil, "detail": evil, "driver_version": evil},
        status={"text": evil},
    )
    assert "\x1b" not in repr(read_picture(body)).replace("\\\\x1b", "")


def test_a_process_is_the_same_as_long_as_its_start_is():
    one, same, later = read_picture(
        snapshot(processes=[process(7), process(7, memory_bytes=1), process(7, start_unix=5.0)])
    ).processes
    assert one.key == same.key != later.key
