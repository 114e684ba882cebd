"""Every external command that fails in any way: one line of an error, in bounded time and memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from builders import FakeClock
from fuzzing import check_line
from gpuledger.app.slurm_receipts.accounting import SlurmCommands
from gpuledger.fleet.lists import scheduler_nodes
from gpuledger.fleet.lists.node_list import AddressDefaults
from gpuledger.fleet.lists.scheduler_nodes import SlurmNodes
from gpuledger.model.errors import GpuledgerError
from gpuledger.sources.smi.settings import SmiSettings
from gpuledger.sources.smi.source import SmiSource
from smi.recorded import ALL, FirstSeenHost

# Seconds that a command may take that never ends.
LIMIT = 0.5


def read_smi() -> object:
    settings = SmiSettings("nvidia-smi", timeout=LIMIT)
    return SmiSource(settings, (), FirstSeenHost(), FakeClock()).read(ALL)


# Each calls a command, and returns what it read.
CALLS: dict[str, tuple[str, Callable[[], object]]] = {
    "nvidia-smi": ("nvidia-smi", read_smi),
    "sacct -V": ("sacct", lambda: SlurmCommands(LIMIT).version()),
    "sacct": ("sacct", lambda: SlurmCommands(LIMIT).read_recent_jobs(600.0)),
    "scontrol": ("scontrol", lambda: SlurmCommands(LIMIT).read_active_jobs()),
    "scontrol update": ("scontrol", lambda: SlurmCommands(LIMIT).write_while_running("7", "JS1:None")),
    "sacctmgr": ("sacctmgr", lambda: SlurmCommands(LIMIT).write_after_end("7", "JS1:None")),
    "sinfo": ("sinfo", lambda: asyncio.run(SlurmNodes(AddressDefaults()).read_nodes())),
}
# Scripts, and whether each is an error for every command: others have no job or no node in their answer.
FAULTS = {
    "never ends": ("exec /bin/sleep 600", True),
    "endless lines": ("exec /usr/bin/yes", True),
    "endless bytes": ("exec /bin/cat /dev/zero", True),
    "slow drip": ("while :; do echo y; /bin/sleep 0.1; done", True),
    "fails after output": ("echo 'some output'; echo 'cannot do it' >&2; exit 3", True),
    "fails without output": ("exit 3", True),
    "is killed": ("kill -KILL $$", True),
    "large line": ("/usr/bin/head -c 300000 /dev/zero | /usr/bin/tr '\\0' x", False),
    "zeros": ("/usr/bin/head -c 100000 /dev/zero", False),
    "invalid UTF-8": ("printf '\\377\\376\\n\\300'", False),
    "no output": ("", False),
    "truncated": ("printf 'JobId=7 ArrayJobId='", False),
}


@pytest.fixture(autouse=True)
def limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory as PATH, short limits of time, and of the output as in the program."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(scheduler_nodes, "_SECONDS", LIMIT)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("call", CALLS)
def test_a_fault_of_a_command_is_one_line(call: str, fault: str, tmp_path: Path) -> None:
    (command, run), (script, is_error) = CALLS[call], FAULTS[fault]
    file = tmp_path / command
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    try:
        found = run()
    except GpuledgerError as error:
        check_line(error)
        assert command in str(error)
    else:
        assert not is_error
        assert not found


def test_a_missing_command_is_named(tmp_path: Path) -> None:
    for command, run in CALLS.values():
        with pytest.raises(GpuledgerError, match=command) as caught:
            run()
        check_line(caught.value)
