"""The state between two passes, and the lock that keeps a second pass out."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuledger.app.slurm_receipts.pass_file import PassFile, PassRuns
from gpuledger.app.slurm_receipts.updates import PassState
from gpuledger.model.errors import GpuledgerError

STATE = PassState(1000.5, {"11_2": 900.0}, {"12": 990.0})


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    file = PassFile(tmp_path / "state.json")
    file.write(STATE)
    assert file.read() == STATE
    assert [found.name for found in tmp_path.iterdir()] == ["state.json"]


DAMAGED = [
    "",
    "{",
    "[]",
    "{}",
    '{"version": 2}',
    '{"version": 1, "at": "x", "waiting": {}, "refreshed": {}}',
    "1",
]


@pytest.mark.parametrize("text", DAMAGED)
def test_a_damaged_file_is_that_before_the_first_pass(tmp_path: Path, text: str) -> None:
    (tmp_path / "state.json").write_text(text)
    assert PassFile(tmp_path / "state.json").read() == PassState()
    assert PassFile(tmp_path / "missing.json").read() == PassState()


def test_a_second_pass_is_kept_out(tmp_path: Path) -> None:
    file = PassFile(tmp_path / "new" / "state.json")
    with file.locked(), pytest.raises(PassRuns, match="another `gpuledger slurm update`"), file.locked():
        raise AssertionError
    with file.locked():
        file.write(STATE)


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    file = PassFile(tmp_path / "file" / "state.json")
    with pytest.raises(GpuledgerError, match="choose another file with --state"), file.locked():
        raise AssertionError
    with pytest.raises(GpuledgerError, match="choose another file with --state"):
        file.write(STATE)
