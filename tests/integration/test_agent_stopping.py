"""SIGTERM in every phase of an agent and an operator: exit code 0, and no accepted sample is lost."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_rig import (
    OURS,
    TARGETS,
    Agents,
    CountingTargets,
    RecordingReceiver,
    count_reorderings,
    missing,
    wait_for_scrapes,
)
from integration.sigterm_in_phase import PHASES
from prepared import run_prepared
from running import PATIENCE, free_port
from scripted_target import Answer, Target, scripted
from write_helpers import receiving, until

PROGRAM = Path(__file__).with_name("sigterm_in_phase.py")
# Phases that are reached only once before the process ends.
ONCE = (
    "loading-the-configuration",
    "listening",
    "opening-the-queue",
    "logging-addresses",
    "reloading-the-configuration",
)
CASES = [(phase, times) for phase in PHASES["agent"] for times in ((1,) if phase in ONCE else (1, 6))]


@pytest.fixture
def targets() -> CountingTargets:
    return CountingTargets()


@pytest.fixture
def target(targets: CountingTargets, tmp_path: Path) -> Iterator[Target]:
    """Its responses also touch the agent's file, which triggers a reload with the same content."""

    def answer(path: str) -> Answer:
        found = targets.answer(path)
        os.utime(tmp_path / "agent.yaml", ns=(0, targets.exported[path]))
        return found

    with scripted(answer) as serving:
        yield serving


@pytest.mark.parametrize(("phase", "times"), CASES)
def test_an_agent_stops_cleanly_on_sigterm_in_every_phase(
    tmp_path: Path, target: Target, targets: CountingTargets, phase: str, times: int
) -> None:
    receiver = RecordingReceiver(port=free_port())

    async def run() -> Agents:
        command = (sys.executable, str(PROGRAM), f"agent/{phase}", str(times), "agent")
        async with receiving(receiver):
            agents = Agents(tmp_path, target, receiver.url, command, interval="1s", prepared=True)
            try:
                assert await asyncio.to_thread(agents.program.process.wait, PATIENCE) == 0
                await asyncio.to_thread(agents.stop)
                output = "\n".join(agents.program.lines)
                assert "Traceback" not in output
                assert "stopping" in output
                agents.add_in_flight(targets)
                agents.start(OURS)
                await wait_for_scrapes(targets, 2)
                await until(lambda: len(receiver.arrived) >= len(TARGETS), "samples to arrive")
                await asyncio.to_thread(agents.stop)
            finally:
                agents.program.stop()
        return agents

    agents = asyncio.run(run())
    assert missing(targets, receiver) - set(targets.exported.items()) <= agents.in_flight
    assert count_reorderings(receiver.arrived) == 0
    assert not [line for line in agents.program.lines if "damaged" in line or "cut short" in line]


@pytest.mark.parametrize("phase", PHASES["operator"])
def test_an_operator_stops_cleanly_on_sigterm_before_it_acts(phase: str) -> None:
    """For a leader see tests/cluster/test_operator_crashes.py."""
    server = ("--kubernetes-api", "http://127.0.0.1:1", "--namespace", "gpu-monitoring")
    command = [sys.executable, str(PROGRAM), f"operator/{phase}", "1", "operator", *server]
    done = run_prepared([*command, "--listen-address", "127.0.0.1:0"], os.environ, PATIENCE)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert "stopping" in done.stderr
