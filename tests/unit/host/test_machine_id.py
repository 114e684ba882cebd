"""Digits that name this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuledger.host.machine_id import machine_digest

MACHINE = "0123456789abcdef0123456789abcdef"


def digest(folder: Path, text: str | None = None, node: str = "") -> str:
    path = folder / "machine-id"
    path.unlink(missing_ok=True)
    if text is not None:
        path.write_text(text)
    return machine_digest(node, path=str(path))


def test_digits_are_the_same_each_time_and_differ_between_machines(tmp_path: Path) -> None:
    first = digest(tmp_path, f"{MACHINE}\n")
    assert first == digest(tmp_path, MACHINE.upper())
    assert (len(first), int(first, 16) > 0) == (12, True)
    assert first != digest(tmp_path, MACHINE[::-1])


def test_the_machine_id_itself_is_not_shown(tmp_path: Path) -> None:
    assert digest(tmp_path, MACHINE) not in MACHINE


def test_the_node_s_name_is_preferred_to_the_file_of_an_image(tmp_path: Path) -> None:
    assert digest(tmp_path, MACHINE, "node-1") == digest(tmp_path, None, "node-1")
    assert digest(tmp_path, MACHINE, "node-1") != digest(tmp_path, MACHINE, "node-2")


@pytest.mark.parametrize(
    "text", [None, "", "uninitialized\n", "0" * 32, MACHINE[1:], f"{MACHINE}0", "x" * 32]
)
def test_a_machine_that_nothing_names_has_none(tmp_path: Path, text: str | None) -> None:
    assert digest(tmp_path, text) == ""
