"""The checks of `selftest` in order: the driver first, then one observation that all others judge."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final

from gpuledger.host.commands import RunCommand
from gpuledger.host.pci import PciBus
from gpuledger.host.procfs import RemoteHost
from gpuledger.model.checks import Check, Finding, Subject, Verdict, works
from gpuledger.model.quantities import COLUMNS
from gpuledger.selftest import driver_checks, ledger_checks, meters, smi_comparison
from gpuledger.selftest.observation import EVERYTHING, Observation, Observer
from gpuledger.selftest.smi_comparison import SmiComparison, compare_with_smi
from gpuledger.sources.nvml import checks as nvml_checks
from gpuledger.sources.nvml import kernel_facts, probe
from gpuledger.sources.nvml.source import NvmlSource
from gpuledger.sources.smi.settings import SmiSettings
from gpuledger.sources.smi.source import SmiSource

_OBSERVATION: Final = Subject("selftest.observation", "observation")
# What can prevent a reading, of all that `doctor` finds about the driver. A driver that answers is tested,
# whatever else looks wrong: a sandbox shows other device nodes and kernel modules than a machine.
_CAUSES: Final = ("driver.environment", "driver.library", "driver.kernel", "driver.nodes", "driver.answers")
_NEEDS: Final = ("driver.answers",)
_ALWAYS_SHOWN: Final = ("driver.answers", "gpu.listed")
# Seconds for the start of the driver, which initializes the GPUs, and for a driver that is slow to answer.
_START_LIMIT: Final = 120.0
# A reading of nvidia-smi calls it up to five times.
_SMI_CALLS: Final = 5

JUDGES: Final[tuple[tuple[Subject, Callable[[Observation], Iterable[Finding]]], ...]] = (
    (driver_checks.FUNCTIONS, driver_checks.check_functions),
    (driver_checks.VALUES, driver_checks.check_values),
    (meters.REFRESH, meters.check_refresh),
    (meters.AGREEMENT, meters.check_agreement),
    (driver_checks.SAMPLES, driver_checks.check_samples),
    (driver_checks.LISTS, driver_checks.check_lists),
    (driver_checks.TYPES, driver_checks.check_types),
    (driver_checks.PROFILING_METRICS, driver_checks.check_profiling),
    (ledger_checks.ENERGY_ACCOUNTS, ledger_checks.check_energy_accounts),
    (ledger_checks.TIME_ACCOUNTS, ledger_checks.check_time_accounts),
    (ledger_checks.COST, ledger_checks.check_cost),
)


@dataclass(slots=True)
class Measured:
    """What the checks have measured so far, for the report; None before, or if it failed."""

    observation: Observation | None = None
    comparison: SmiComparison | None = None


@dataclass(slots=True)
class SelfTest:
    """The checks of this machine's driver.

    `environment` are the variables of this program, `procfs`, `sysfs` and `devices` the trees to read, `run`
    runs nvidia-smi. `measured` is filled by the checks.
    """

    observer: Observer
    smi: SmiSettings
    environment: Mapping[str, str]
    procfs: Path = Path("/proc")
    sysfs: Path = Path("/sys")
    devices: Path = Path("/dev")
    run: RunCommand | None = None
    probe_driver: Callable[[], probe.ProbeResult] = probe.probe_driver
    measured: Measured = field(default_factory=Measured)

    def checks(self) -> tuple[Check, ...]:
        """Build the checks; the ones that judge the observation need it."""
        observe = Check(
            *_OBSERVATION, self._observe, needs=_NEEDS, limit=self.observer.seconds + _START_LIMIT
        )
        judges = (
            Check(*subject, partial(self._judge, judge), needs=(_OBSERVATION.check,))
            for subject, judge in JUDGES
        )
        smi = Check(
            *smi_comparison.NUMBERS,
            self.compare,
            needs=(_OBSERVATION.check,),
            limit=smi_comparison.TRIES * _SMI_CALLS * self.smi.timeout + _START_LIMIT,
        )
        return (self._driver_check(), observe, *judges, smi)

    def _driver_check(self) -> Check:
        check = nvml_checks.driver_check(
            self.observer.settings.devices,
            self.environment,
            partial(kernel_facts.read_kernel_facts, self.procfs, self.sysfs, self.devices),
            self.probe_driver,
        )
        return replace(check, run=lambda: _select(check.run()))

    def _observe(self) -> Iterator[Finding]:
        found = self.measured.observation = self.observer.observe()
        seconds = found.snapshots[-1].elapsed - found.snapshots[0].elapsed
        gpus = sum(1 for reading in found.last.values() if reading.device.uuid == reading.device.gpu.uuid)
        yield works(
            *_OBSERVATION,
            f"{len(found.snapshots)} readings of {gpus} GPU(s) in {seconds:.0f} s; no work started",
        )

    def _judge(self, judge: Callable[[Observation], Iterable[Finding]]) -> Iterable[Finding]:
        assert self.measured.observation is not None
        return judge(self.measured.observation)

    def compare(self) -> Iterator[Finding]:
        """Compare all numbers with nvidia-smi, now."""
        pci = self.observer.pci
        # Slow quantities are read at every reading, as nvidia-smi does.
        settings = replace(self.observer.settings, slow_interval=0.0, enable_accounting=False)
        source = NvmlSource(settings, RemoteHost(), self.observer.clock, pci=pci, load=self.observer.load)
        smi = self._smi_source(pci)
        try:
            result = compare_with_smi(
                lambda: source.read(EVERYTHING | {COLUMNS}), lambda: smi.read(EVERYTHING | {COLUMNS})
            )
        finally:
            source.close()
            smi.close()
        self.measured.comparison = result
        yield from smi_comparison.check_numbers(result)
        yield from smi_comparison.check_processes(result)

    def _smi_source(self, pci: PciBus | None) -> SmiSource:
        slot_width = (lambda _: None) if pci is None else pci.slot_width
        return SmiSource(
            self.smi,
            self.observer.settings.devices,
            RemoteHost(),
            self.observer.clock,
            self.run,
            slot_width=slot_width,
        )


def _select(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Keep what says which driver is tested, and what stops the test. `doctor` has the rest."""
    for finding in findings:
        is_shown = finding.verdict in (Verdict.FAILS, Verdict.SKIPPED) and finding.check in _CAUSES
        if is_shown or finding.check in _ALWAYS_SHOWN:
            yield finding
