"""The table of `gpuledger free`: a row for each device, why it cannot be taken, and how many are free."""

from __future__ import annotations

from datetime import UTC
from typing import Any

import pytest

from gpuledger.app.free_text import free_table

NOW = 1_764_490_500.0
GIB = 1024**3
FREE: dict[str, Any] = {
    "uuid": "GPU-0",
    "gpu": "0",
    "instance": "",
    "device_uuid": "GPU-0",
    "vendor": "nvidia",
    "name": "NVIDIA H100 80GB HBM3",
    "profile": "",
    "availability": "free",
    "availability_reason": "",
    "free_seconds": 8048.4,
    "memory_total_bytes": 80 * GIB,
    "memory_free_bytes": 79 * GIB,
    "reserved_by": "",
    "reserved_until": None,
    "is_mine": False,
}
RESERVED = FREE | {"availability": "reserved", "availability_reason": "a user has reserved it", "gpu": "1"}


def body(*devices: dict[str, Any], **more: object) -> dict[str, Any]:
    return {"version": 1, "node": "lab-1", "unix": NOW, "devices": list(devices), **more}


def test_the_table() -> None:
    busy = FREE | {
        "gpu": "3",
        "instance": "2_0",
        "profile": "2g.20gb",
        "availability": "in_use",
        "availability_reason": "it has processes",
        "free_seconds": None,
        "memory_free_bytes": None,
    }
    assert free_table(body(FREE, busy), UTC) == (
        "GPU    model                          free memory  state\n"
        "0      NVIDIA H100 80GB HBM3          79.0/80.0G   free    for 2h14m8s\n"
        "3/2_0  NVIDIA H100 80GB HBM3 2g.20gb  -/80.0G      in use  it has processes\n"
        "\n"
        "1 of 2 free\n"
    )


@pytest.mark.parametrize(
    ("changes", "remark"),
    [
        ({"is_mine": True, "reserved_by": "ann", "reserved_until": NOW + 60}, "by you until 08:16:00"),
        ({"reserved_by": "bob", "reserved_until": NOW + 60}, "by bob until 08:16:00"),
        # Another user, seen by an ordinary one.
        ({"reserved_until": NOW + 60}, "until 08:16:00"),
        ({"reserved_by": "bob"}, "by bob until a command ends"),
        ({"reserved_until": NOW + 2 * 86_400}, "until 2025-12-02 08:15"),
    ],
)
def test_who_has_reserved_a_gpu_and_until_when(changes: dict[str, Any], remark: str) -> None:
    row = free_table(body(RESERVED | changes), UTC).splitlines()[1]
    assert row.endswith(f"reserved  {remark}")


def test_a_fleet_has_a_column_of_nodes() -> None:
    devices = [
        FREE | {"node": "lab-1", "free_seconds": None},
        RESERVED | {"node": "lab-2", "reserved_by": "ann"},
    ]
    table = free_table(body(*devices, nodes=[{"node": "lab-1", "status": ""}]), UTC)
    head, first, second, _, count = table.splitlines()
    assert head.split() == ["node", "GPU", "model", "free", "memory", "state"]
    assert first.startswith("lab-1  0 ")
    assert second.endswith("reserved  by ann")
    assert count == "1 of 2 free"


def test_a_machine_without_gpus() -> None:
    assert free_table(body(), UTC).splitlines()[-1] == "no GPU matches"


def test_names_cannot_break_the_table() -> None:
    evil = FREE | {"name": "x\n\x1b[2J", "availability_reason": "a\nb"}
    assert len(free_table(body(evil), UTC).splitlines()) == 4
    assert "\x1b" not in free_table(body(evil), UTC)
