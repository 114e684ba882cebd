"""Snapshots of a node are validated before they are drawn."""

from __future__ import annotations

import json

import pytest

from gpuledger.model.errors import GpuledgerError
from gpuledger.terminal.snapshot import parse_snapshot
from unit.terminal.support import device, process, snapshot

WRONG = [
    (None, "expected a JSON object"),
    ([], "expected a JSON object"),
    ({}, "version v1, not 'None'"),
    ({"version": "v2"}, "version v1, not 'v2'"),
    ({"version": "\x1b[2J"}, r"\\x1b\[2J"),
    ({"version": "v1"}, "not a gpuledger snapshot"),
    (snapshot(status={"text": 7}), "not a gpuledger snapshot"),
    (snapshot() | {"devices": {"0": {}}}, "devices is not a list"),
    (snapshot() | {"devices": [7]}, "not a gpuledger snapshot"),
    (snapshot(devices=[device(name=["x"])]), "name is not a string"),
    (snapshot(devices=[device(power_watts="70")]), "power_watts is not a number"),
    (snapshot(devices=[device(power_watts=True)]), "power_watts is not a number"),
    (snapshot(devices=[device(power_watts=float("nan"))]), "power_watts is not a number"),
    (snapshot(devices=[device(power_watts=10**400)]), "not a gpuledger snapshot"),
    (snapshot(devices=[device(processes=1.5)]), "processes is not an integer"),
    (snapshot(processes=[process(start_unix="now")]), "start_unix is not a number"),
]


@pytest.mark.parametrize(("body", "why"), WRONG)
def test_an_invalid_snapshot_raises_a_one_line_error(body, why):
    with pytest.raises(GpuledgerError, match=why) as caught:
        parse_snapshot(body)
    assert "\n" not in str(caught.value)


def test_null_and_missing_values_are_absent():
    bare = device(power_watts=None, temperature_celsius=None)
    del bare["utilization_ratio"], bare["owners"]
    row = parse_snapshot(snapshot(devices=[bare])).devices[0]
    assert (row.power_watts, row.temperature_celsius, row.utilization_ratio, row.owners) == (
        None,
        None,
        None,
        (),
    )


def test_zero_is_not_absent():
    row = parse_snapshot(snapshot(devices=[device(power_watts=0, memory_used_bytes=0)])).devices[0]
    assert (row.power_watts, row.memory_used_bytes) == (0.0, 0.0)


def test_unknown_keys_of_a_newer_node_are_ignored():
    body = json.loads(json.dumps(snapshot(devices=[device(colour="green")], moon="full")))
    assert parse_snapshot(body).devices[0].gpu == "0"


def test_control_characters_in_every_text_of_a_node_are_escaped():
    evil = "\x1b]0;x\x07"
    body = snapshot(
        devices=[device(name=evil, profile=evil)],
        processes=[process(command=evil, pod=evil, user=evil, types=[evil], unresolved=evil)],
        node=evil,
        source={"name": evil, "detail": evil, "driver_version": evil},
        status={"text": evil},
    )
    assert "\x1b" not in repr(parse_snapshot(body)).replace("\\\\x1b", "")


def test_a_process_is_identified_by_pid_and_start_time():
    one, same, later = parse_snapshot(
        snapshot(processes=[process(7), process(7, memory_bytes=1), process(7, start_unix=5.0)])
    ).processes
    assert one.key == same.key != later.key
