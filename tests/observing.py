"""Observe the test NVML library under a clock of the test."""

from __future__ import annotations

from collections.abc import Mapping

from gpuledger.model.checks import Finding
from gpuledger.selftest.checks import JUDGES
from gpuledger.selftest.observation import Observation, Observer
from gpuledger.sources.settings import SourceSettings
from nvml.library import NvmlGpu
from nvml.machine import Machine


def make_observer(machine: Machine, seconds: float = 3.0) -> Observer:
    """An Observer for which waiting moves the clocks of the test and of the driver."""

    def wait(duration: float) -> None:
        duration = max(duration, 0.05)
        machine.clock.advance(duration)
        assert machine.state.time is not None
        machine.state.time += duration
        machine.state.write()

    return Observer(
        SourceSettings(enable_accounting=True),
        machine.host,
        machine.clock,
        frozenset(),
        seconds,
        load=lambda: machine.library,
        wait=wait,
    )


def observe(
    machine: Machine, *gpus: NvmlGpu, seconds: float = 3.0, errors: Mapping[str, int] | None = None
) -> Observation:
    """What is observed of these GPUs. Errors are return codes by call."""
    machine.state.gpus[:] = gpus
    machine.state.errors = dict(errors or {})
    machine.state.write()
    return make_observer(machine, seconds).observe()


def findings(observation: Observation) -> dict[str, Finding]:
    """The findings by check without the prefix; of several, the first, which is the worst."""
    found: dict[str, Finding] = {}
    for _, judge in JUDGES:
        for finding in judge(observation):
            found.setdefault(finding.check.removeprefix("selftest."), finding)
    return found


def verdicts(observation: Observation) -> dict[str, str]:
    """The verdicts by check."""
    return {check: finding.verdict.value for check, finding in findings(observation).items()}
