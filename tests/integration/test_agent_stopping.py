"""SIGTERM in every phase of an agent and of an operator: exit code 0, and nothing accepted is lost."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_rig import OURS, TARGETS, Agents, Counting, Receiver, asked, goes_back, missing
from integration.told_to_stop import PHASES
from running import PATIENCE, free_port
from scripted_target import Answer, Target, scripted
from write_helpers import receiving, until

PROGRAM = Path(__file__).with_name("told_to_stop.py")
# Of these there are none yet when it ends there the first time.
ONCE = ("reading-its-file", "listening", "opening-the-queue", "greeting", "taking-a-changed-file")
CASES = [(phase, times) for phase in PHASES["agent"] for times in ((1,) if phase in ONCE else (1, 6))]


@pytest.fixture
def targets() -> Counting:
    return Counting()


@pytest.fixture
def target(targets: Counting, tmp_path: Path) -> Iterator[Target]:
    """Its answers change the agent's file, too, which says the same as before."""

    def answer(path: str) -> Answer:
        told = targets.answer(path)
        os.utime(tmp_path / "agent.yaml", ns=(0, targets.told[path]))
        return told

    with scripted(answer) as serving:
        yield serving


@pytest.mark.parametrize(("phase", "times"), CASES)
def test_an_agent_ends_well_wherever_it_is_told_to(
    tmp_path: Path, target: Target, targets: Counting, phase: str, times: int
) -> None:
    receiver = Receiver(port=free_port())

    async def run() -> Agents:
        told_to_stop = (sys.executable, str(PROGRAM), f"agent/{phase}", str(times), "agent")
        async with receiving(receiver):
            agents = Agents(tmp_path, target.port, receiver.url, told_to_stop, interval="1s")
            try:
                assert await asyncio.to_thread(agents.program.process.wait, PATIENCE) == 0
                await asyncio.to_thread(agents.stop)
                said = "\n".join(agents.program.lines)
                assert "Traceback" not in said
                assert "stopping" in said
                agents.in_flight |= set(targets.told.items())
                agents.start(OURS)
                await asked(targets, 2)
                await until(lambda: len(receiver.arrived) >= len(TARGETS), "samples to arrive")
                await asyncio.to_thread(agents.stop)
            finally:
                agents.program.stop()
        return agents

    agents = asyncio.run(run())
    assert missing(targets, receiver) - set(targets.told.items()) <= agents.in_flight
    # What was being sent comes again.
    assert goes_back(receiver.arrived) <= len(TARGETS)
    assert not [line for line in agents.program.lines if "damaged" in line or "cut short" in line]


@pytest.mark.parametrize("phase", PHASES["operator"])
def test_an_operator_ends_well_wherever_it_is_told_to_before_it_acts(phase: str) -> None:
    """While it acts: tests/cluster/test_operator_deaths.py."""
    server = ("--kubernetes-api", "http://127.0.0.1:1", "--namespace", "gpu-monitoring")
    command = [sys.executable, str(PROGRAM), f"operator/{phase}", "1", "operator", *server]
    done = subprocess.run(
        [*command, "--listen-address", "127.0.0.1:0"],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert "stopping" in done.stderr
