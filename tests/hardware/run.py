"""Test gpuledger on this machine's NVIDIA GPU, in under five minutes: known loads, and what is read of them.

    python tests/hardware/run.py [--out build/hardware] [--gpu 0] [--seconds 12] [--processes 8]

It needs only what gpuledger needs, no CUDA toolkit, no pytest and no network. It writes `report.md`, which
can be attached to an issue, and `recording.jsonl.gz`, which `--source replay:` replays. No mode of the GPU is
changed (accounting, MIG, compute mode), and nothing is reset. Exit code: 0, 1 if anything fails, 77 if this
machine cannot run it; the last line says why.
"""

from __future__ import annotations

import argparse
import faulthandler
import logging
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from os import environ
from pathlib import Path
from traceback import extract_tb
from typing import TypeVar

CANNOT_RUN = 77
if sys.version_info < (3, 11):  # noqa: UP036  (run with the machine's own Python)
    sys.stderr.write(
        f"this machine cannot run the hardware test: it needs Python 3.11; {sys.executable} is older\n"
    )
    sys.exit(CANNOT_RUN)

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
# Run from a checkout, also without an installed gpuledger: the imports below need this path.
# ruff: noqa: E402
sys.path[:0] = [str(HERE.parent), str(ROOT / "src")]

from gpuledger import __version__
from gpuledger.app.diagnosis import exit_code, findings_table, run_checks
from gpuledger.cli.selftest import served_quantities
from gpuledger.host.clock import SystemClock
from gpuledger.host.pci import PciBus
from gpuledger.host.procfs import ProcFs
from gpuledger.host.users import PasswdUsers
from gpuledger.model.checks import Check, Finding, Subject, Verdict, fails, skipped, works
from gpuledger.model.devices import Device, Gpu, Instance
from gpuledger.model.quantities import DRAM_ACTIVITY, POWER, SM_ACTIVITY, UTILIZATION, Quantity
from gpuledger.model.snapshot import Snapshot
from gpuledger.selftest import report as figures
from gpuledger.selftest.checks import JUDGES, SelfTest
from gpuledger.selftest.driver_checks import FUNCTIONS
from gpuledger.selftest.observation import Observation, Observer, book
from gpuledger.sources.replay.recording import RecordingReader
from gpuledger.sources.settings import SourceSettings
from gpuledger.sources.smi.settings import SmiSettings
from hardware.expectations import REPORT, Expectation, judge_load, judge_power, mean_of, readings_of
from hardware.loads import LoadFailed, mps_daemon, running, why_no_mps

LOAD_COLUMNS = (
    "load",
    "W",
    "utilization",
    "SM activity",
    "DRAM activity",
    "J booked",
    "processes",
    "J of each",
)
COMMAND = (sys.executable, "-m", "gpuledger")
LOADS = Subject("hardware.loads", "load")
MPS = Subject("hardware.mps", "MPS")
RECORDING = Subject("hardware.recording", "recording")
# A load of so many seconds longer than its observation, because the process lists are read at its end.
SPARE_SECONDS = 60.0
STOP_LIMIT = 30.0
# The recording ends after this time even if this program was killed.
LONGEST_RECORDING = "15m"
T = TypeVar("T")
_OTHER_GPUS = ("gpu.listed", Verdict.WARNING)


@dataclass(frozen=True, slots=True)
class Phase:
    """One known load: the arguments of its processes, and what must be seen.

    `seconds` is its length as a part of the usual length.
    """

    title: str
    loads: tuple[tuple[str, ...], ...]
    expected: Expectation
    seconds: float = 1.0


def compute(busy: float = 1.0) -> tuple[str, ...]:
    """A process that computes, `busy` of the time."""
    return ("--load", "compute", "--busy", str(busy), "--mebibytes", "256")


def phases(processes: int) -> tuple[Phase, ...]:
    """The loads, each on an otherwise idle device. `processes` is the number in the longest process list."""
    hold = ("--load", "hold", "--mebibytes", "64")
    memory = ("--load", "memory", "--mebibytes", "1024")
    return (
        Phase(
            "one process computes",
            (compute(),),
            Expectation(1, 256, (0.9, 1.0), (SM_ACTIVITY, 0.7), working=1),
        ),
        Phase("one process computes half of the time", (compute(0.5),), Expectation(1, 256, (0.3, 0.75))),
        Phase(
            "one process copies memory",
            (memory,),
            Expectation(1, 1024, (0.8, 1.0), (DRAM_ACTIVITY, 0.3), working=1),
            0.6,
        ),
        Phase(
            "two processes compute",
            (compute(), compute()),
            Expectation(2, 256, (0.9, 1.0), working=2, equal=True),
        ),
        Phase(
            f"{processes} processes hold memory, one computes",
            (*[hold] * (processes - 1), compute()),
            Expectation(processes, 64, (0.9, 1.0)),
            0.6,
        ),
    )


@dataclass(slots=True)
class HardwareRun:
    """The whole test of one device. `parts` are the sections of the report, `findings` all findings."""

    out: Path
    gpu: str
    seconds: float
    processes: int
    smi: SmiSettings
    say: Callable[[str], None]
    findings: list[Finding] = field(default_factory=list)
    parts: list[str] = field(default_factory=list)
    clock: SystemClock = field(default_factory=SystemClock)
    served: frozenset[Quantity] = field(default_factory=lambda: served_quantities({}))
    loads: list[tuple[object, ...]] = field(default_factory=list)
    _recording_errors: str = ""
    _test: SelfTest | None = None

    def observer(self, seconds: float) -> Observer:
        """An Observer of the GPU for so many seconds."""
        return Observer(
            SourceSettings(devices=(self.gpu,)),
            ProcFs("/proc", users=PasswdUsers()),
            self.clock,
            self.served,
            seconds,
            pci=PciBus(),
        )

    def run(self) -> int:
        """Run everything and write the report. Return the exit code."""
        idle = self._attempt("Without a load", self._run_idle)
        if idle is not None and idle.snapshots[-1].readings:
            self._attempt("Loads", lambda: self._record_loads(idle))
        self._write()
        return exit_code(self.findings)

    def _attempt(self, title: str, run: Callable[[], T]) -> T | None:
        """Run a part of the test. If it fails, that is a finding, and the result is None."""
        try:
            return run()
        except Exception as error:  # noqa: BLE001  (the other parts still run)
            self._add(title, [_own_failure(error)], None)
            return None

    def _run_idle(self) -> Observation | None:
        test = self._test = SelfTest(self.observer(self.seconds), self.smi, environ)
        self.say(f"without a load, {self.seconds:g} s")
        findings = run_checks(test.checks())
        self._add("Without a load", findings, test.measured.observation)
        if test.measured.comparison is not None:
            self.parts += figures.comparison_sections(test.measured.comparison)
        return test.measured.observation

    def _record_loads(self, idle: Observation) -> None:
        self.recording.unlink(missing_ok=True)
        device = device_under_test(idle.snapshots[-1])
        with self._recording():
            self._run_loads(device, idle)
        self._judge_recording()

    def _run_loads(self, device: Device, idle: Observation) -> None:
        for number, phase in enumerate(phases(self.processes)):
            observation = self._attempt(
                phase.title, partial(self._run_phase, phase, device, idle.snapshots[-1])
            )
            if observation is None:
                if number == 0:
                    return  # No load can run here: the finding says why.
                continue
            if number == 0:
                self.findings.append(judge_power(idle, observation, device))
        self._attempt("Numbers of nvidia-smi under load", lambda: self._compare_under_load(device))
        self._attempt("MPS", lambda: self._run_mps(device, idle.snapshots[-1]))

    def _run_phase(
        self, phase: Phase, device: Device, before: Snapshot, variables: dict[str, str] | None = None
    ) -> Observation | None:
        seconds = max(phase.seconds * self.seconds, 1.0)
        self.say(f"{phase.title}, {seconds:g} s")
        lasting = ("--seconds", str(seconds + SPARE_SECONDS))
        loads = [(*arguments, *lasting) for arguments in phase.loads]
        try:
            with running(device.uuid, loads, variables) as started:
                observation = self.observer(seconds).observe()
                pids = [load.pid for load in started]
        except LoadFailed as error:
            self._add(phase.title, [skipped(*LOADS, f"it cannot run here: {error}")], None)
            return None
        # The functions of the driver are the same under each load.
        judges = [judge for subject, judge in JUDGES if subject is not FUNCTIONS]
        findings = [finding for judge in judges for finding in judge(observation)]
        findings += judge_load(observation, before, device, pids, phase.expected)
        self.loads.append(_load_row(phase.title, observation, device))
        self._add(phase.title, findings, observation)
        return observation

    def _compare_under_load(self, device: Device) -> None:
        """Compare with nvidia-smi while the device works, when most numbers are not zero."""
        self.say("numbers of nvidia-smi under load")
        test = SelfTest(self.observer(1.0), self.smi, environ)
        try:
            with running(device.uuid, [(*compute(), "--seconds", str(2 * SPARE_SECONDS))]):
                findings = run_checks([Check("smi", "nvidia-smi", test.compare, limit=2 * SPARE_SECONDS)])
        except LoadFailed as error:
            findings = [skipped(*LOADS, f"it cannot run here: {error}")]
        self._add("Numbers of nvidia-smi under load", findings, None)
        if test.measured.comparison is not None:
            self.parts += figures.comparison_sections(test.measured.comparison, compared_only=True)

    def _run_mps(self, device: Device, before: Snapshot) -> None:
        why = why_no_mps()
        title = "two clients of MPS compute"
        if why:
            self._add(title, [skipped(*MPS, f"not tested: {why}")], None)
            return
        phase = Phase(title, (compute(), compute()), Expectation(2, 256, (0.9, 1.0)), 0.6)
        try:
            with mps_daemon(device.uuid) as variables:
                self._run_phase(phase, device, before, variables)
        except (LoadFailed, subprocess.TimeoutExpired) as error:
            self._add(title, [skipped(*MPS, f"not tested: {error}")], None)

    @contextmanager
    def _recording(self) -> Iterator[None]:
        """Record all loads with `gpuledger record`, as a user does."""
        flags = ["--force", "--for", LONGEST_RECORDING, "--devices", self.gpu]
        command = [*COMMAND, "record", str(self.recording), *flags]
        paths = [str(ROOT / "src"), environ.get("PYTHONPATH", "")]
        variables = {**environ, "PYTHONPATH": ":".join(path for path in paths if path)}
        with tempfile.TemporaryFile() as errors:
            process = subprocess.Popen(command, env=variables, stdout=subprocess.DEVNULL, stderr=errors)
            try:
                yield
                self._wait_for_recording(process)
            finally:
                process.terminate()
                try:
                    process.wait(STOP_LIMIT)
                except subprocess.TimeoutExpired:
                    process.kill()
                errors.seek(0)
                self._recording_errors = errors.read().decode("utf-8", "replace").strip()

    def _wait_for_recording(self, process: subprocess.Popen[bytes]) -> None:
        """Wait until the first reading is recorded: without loads, all else may be over earlier."""
        deadline = self.clock.elapsed() + STOP_LIMIT
        while process.poll() is None and not self.recording.exists() and self.clock.elapsed() < deadline:
            time.sleep(0.1)

    @property
    def recording(self) -> Path:
        """The file of the recording."""
        return self.out / "recording.jsonl.gz"

    def _judge_recording(self) -> None:
        """The recording must be complete, and the books of its Snapshots must balance."""
        if not self.recording.exists():
            last = self._recording_errors.splitlines()[-1:] or ["no error is reported"]
            why = f"none was written: {last[0]}"
            self.findings.append(fails(*RECORDING, why, "run `gpuledger record` alone"))
            return
        reader = RecordingReader(self.recording)
        try:
            snapshots = [entry for entry in reader if isinstance(entry, Snapshot)]
        finally:
            reader.close()
        booked = book(snapshots)
        wrong = [value for value in booked.state.energy.imbalance.values() if value]
        text = f"{len(snapshots)} readings, {self.recording.stat().st_size} bytes"
        if booked.error or wrong or not snapshots:
            why = f"{text}: {booked.error or f'{sum(wrong)} mJ are in no account'}"
            self.findings.append(fails(*RECORDING, why, "attach report and recording to an issue"))
        else:
            self.findings.append(works(*RECORDING, f"{text}, its accounts balance when it is replayed"))

    def _add(self, title: str, findings: Sequence[Finding], observation: Observation | None) -> None:
        # The other GPUs are left out on purpose.
        findings = [one for one in findings if (one.check, one.verdict) != _OTHER_GPUS]
        self.findings += [replace(one, what=f"{one.what} ({title})") for one in findings]
        self.parts.append(f"# {title[0].upper()}{title[1:]}")
        self.parts += figures.findings_section("Findings", findings)
        if observation is not None:
            self.parts += figures.measurement_sections(observation)
        self._write()

    def _write(self) -> None:
        """Write the report of all parts so far: a later part may hang, or crash this program."""
        attention = [one for one in self.findings if one.verdict not in (Verdict.WORKS, Verdict.SKIPPED)]
        machine = figures.machine_rows(self._test, __version__) if self._test else ()
        head = [
            "# Hardware test of gpuledger",
            figures.NO_IDENTIFIERS,
            *figures.table_section("Machine", ("", ""), machine),
            *figures.table_section("Known loads", LOAD_COLUMNS, self.loads),
            f"{len(self.findings)} findings; those that need attention: {len(attention)}.",
            *figures.findings_section("Findings that need attention", attention),
        ]
        (self.out / "report.md").write_text(figures.join_sections([*head, *self.parts]), "utf-8")


def _own_failure(error: Exception) -> Finding:
    trace = " < ".join(
        f"{Path(each.filename).name}:{each.lineno}" for each in extract_tb(error.__traceback__)[::-1]
    )
    return fails(*LOADS, f"the test itself failed: {type(error).__name__}: {error} ({trace})", REPORT)


def _load_row(title: str, observation: Observation, device: Device) -> tuple[object, ...]:
    """What was read under a load, in one row."""
    gpu = readings_of(observation, device.gpu)
    watts = mean_of(gpu, POWER)
    ratios = [mean_of(readings_of(observation, device), each) for each in (SM_ACTIVITY, DRAM_ACTIVITY)]
    shown = [None if ratio is None else f"{ratio:.0%}" for ratio in (mean_of(gpu, UTILIZATION), *ratios)]
    sessions = observation.booked.state.sessions
    joules = [f"{(row.measured + row.apportioned) / 1000:.0f}" for row in sessions]
    total = observation.booked.state.energy.totals.get(device.gpu.uuid, 0) / 1000
    power = None if watts is None else f"{watts:.0f}"
    return title, power, *shown, f"{total:.0f}", len(sessions), ", ".join(joules)


def device_under_test(snapshot: Snapshot) -> Device:
    """Where loads run: the GPU, or its first instance in MIG mode."""
    devices = [reading.device for reading in snapshot.process_readings if reading.up]
    instances = [device for device in devices if isinstance(device, Instance)]
    return (instances or devices or [reading.device for reading in snapshot.readings])[0]


def _say(text: str) -> None:
    # At once: a part that hangs must be known.
    print(text, flush=True)  # noqa: T201  (progress, for the one who waits)


def why_not_here(gpu: str) -> str:
    """Why this machine cannot run the test; empty if it can."""
    from gpuledger.model.errors import SourceUnavailable
    from gpuledger.sources.nvml.source import NvmlSource

    source = NvmlSource(SourceSettings(devices=(gpu,)), ProcFs("/proc"), SystemClock())
    try:
        snapshot = source.read(frozenset())
    except SourceUnavailable as error:
        return str(error)
    finally:
        source.close()
    return (
        ""
        if any(isinstance(each.device, Gpu) and each.up for each in snapshot.readings)
        else "no GPU answers"
    )


def run(arguments: Iterable[str] = (), say: Callable[[str], None] = _say) -> tuple[int, list[Finding], str]:
    """Run the test. Return the exit code, the findings, and why it cannot run here (empty if it can)."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "hardware", help="folder of the results")
    parser.add_argument("--gpu", default="0", help="index, UUID or PCI bus id of the GPU (default: 0)")
    parser.add_argument("--seconds", type=float, default=12.0, help="length of a phase (default: 12)")
    parser.add_argument("--processes", type=int, default=8, help="processes in the longest list (default: 8)")
    parser.add_argument("--nvidia-smi", default="nvidia-smi", help="the command of nvidia-smi")
    options = parser.parse_args(list(arguments))
    logging.getLogger("gpuledger").addHandler(logging.NullHandler())
    why = why_not_here(options.gpu)
    if why:
        return CANNOT_RUN, [], why
    options.out.mkdir(parents=True, exist_ok=True)
    smi = SmiSettings(command=options.nvidia_smi)
    test = HardwareRun(options.out, options.gpu, options.seconds, options.processes, smi, say)
    return test.run(), test.findings, ""


def main() -> int:
    # A crash inside the driver's library shows the call. SIGTERM ends loads, recording and MPS, like Ctrl-C.
    faulthandler.enable()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    code, findings, why = run(sys.argv[1:])
    if why:
        sys.stderr.write(f"this machine cannot run the hardware test: {why}\n")
    else:
        shown = [one for one in findings if one.verdict not in (Verdict.WORKS, Verdict.SKIPPED)]
        sys.stdout.write(findings_table(shown, sys.stdout, environ))
        sys.stdout.write(
            f"{len(findings)} findings, of which {len(shown)} are shown. All are in the report.\n"
        )
    return code


if __name__ == "__main__":
    sys.exit(main())
