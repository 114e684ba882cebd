"""Checks of `doctor` for nvidia-smi: the command, and if it is the source, all that a reading shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from gpuledger.host.clock import SystemClock
from gpuledger.host.commands import CommandResult, CommandRunner, RunCommand
from gpuledger.host.procfs import RemoteHost
from gpuledger.model import quantities as q
from gpuledger.model.checks import Check, Finding, Subject, fails, split_remedy, unknown, warning, works
from gpuledger.model.devices import Gpu
from gpuledger.model.down_reasons import describe_down, down_remedy
from gpuledger.model.errors import SourceUnavailable
from gpuledger.model.gpu_problems import health_findings, judge_gpu
from gpuledger.model.snapshot import Failure, Reading, Snapshot
from gpuledger.model.source import Clock
from gpuledger.model.text import clean_name
from gpuledger.model.throttle_reasons import throttling_now
from gpuledger.sources.device_selection import REMEDY
from gpuledger.sources.smi.cell_names import SUCCESSORS
from gpuledger.sources.smi.columns import PART as COLUMNS_PART
from gpuledger.sources.smi.command import Command
from gpuledger.sources.smi.csv import rejected_field
from gpuledger.sources.smi.failures import describe_failure, unavailable_error
from gpuledger.sources.smi.parsed_output import decode_output, without_note
from gpuledger.sources.smi.settings import SmiSettings
from gpuledger.sources.smi.source import SmiSource

_SMI: Final = Subject("driver.nvidia_smi", "nvidia-smi")
_LISTED: Final = Subject("gpu.listed", "GPUs")
_PERSISTENCE: Final = Subject("gpu.persistence", "persistence mode")
_PROCESSES: Final = Subject("gpu.processes", "process lists")
_UTILIZATION: Final = Subject("gpu.utilization", "per-process utilization")
_FIELDS: Final = Subject("gpu.fields", "nvidia-smi fields")
_ENERGY: Final = Subject("gpu.energy", "energy")
_VERSION: Final = "driver_version"
# If one of these fails, nvidia-smi fails for the same reason.
_NEEDS: Final = ("driver.environment", "driver.library", "driver.kernel", "driver.answers")
# Calls of one reading.
_CALLS: Final = 4
# Seconds that a reading may take until `serve` cannot keep its default interval.
_SLOW: Final = 1.0
_PERSIST: Final = "`systemctl enable --now nvidia-persistenced`, or `nvidia-smi -pm 1` as root"


def smi_check(
    settings: SmiSettings,
    devices: tuple[str, ...],
    kernel_version: Callable[[], str],
    *,
    is_only_source: bool,
) -> Check:
    """Build the check. With `is_only_source`, NVML is not read; `kernel_version` is the loaded driver's."""
    calls = _CALLS if is_only_source else 2
    return Check(
        *_SMI,
        lambda: find_smi_problems(settings, kernel_version(), devices=devices, is_only_source=is_only_source),
        needs=() if is_only_source else _NEEDS,
        limit=calls * settings.timeout + 5.0,
    )


def find_smi_problems(
    settings: SmiSettings,
    kernel_version: str,
    *,
    is_only_source: bool,
    devices: tuple[str, ...] = (),
    run: RunCommand | None = None,
    clock: Clock | None = None,
) -> Iterator[Finding]:
    """Read once as the source does; beside NVML, only query the driver version.

    A command that cannot be run is a warning if NVML is read, else a failure.
    """
    if is_only_source:
        yield from _check_reading(settings, kernel_version, devices, run, clock or SystemClock())
        return
    command = Command(settings.command)
    result = _query_field(_VERSION, command, settings.timeout, run or CommandRunner())
    if result.not_started:
        yield warning(
            *_SMI,
            f"{command.program} cannot be run ({result.detail}); gpuledger does not need it, but people may",
            "in a container set NVIDIA_DRIVER_CAPABILITIES=utility; on the machine itself install nvidia-smi "
            "(Ubuntu: nvidia-utils), or set --nvidia-smi-command",
        )
    elif describe_failure(result, command):
        cause, remedy = split_remedy(unavailable_error(result, command, settings.timeout))
        yield fails(*_SMI, cause, remedy or "run `nvidia-smi -q` for details")
    else:
        yield _check_driver_version(command, result, kernel_version)


def _query_field(field: str, command: Command, timeout: float, run: RunCommand) -> CommandResult:
    """Query one field, under its newer name if nvidia-smi rejects it."""
    result = run(command.argv(f"--query-gpu={field}", "--format=csv,noheader"), timeout)
    newer = SUCCESSORS.get(field)
    return _query_field(newer, command, timeout, run) if newer and rejected_field(result) == field else result


def _check_driver_version(command: Command, result: CommandResult, kernel_version: str) -> Finding:
    lines = [without_note(line.strip()) for line in decode_output(result.stdout).splitlines() if line.strip()]
    versions = {line for line in lines if line.replace(".", "").isdigit()}
    if not versions:
        output = clean_name(lines[0]) if lines else "no output"
        return unknown(*_SMI, f"{command.program} did not report a driver version: {output}")
    version = min(versions)
    return _find_other_version(command, version, kernel_version) or works(
        *_SMI, f"{command.program} answers, driver {version}"
    )


def _find_other_version(command: Command, version: str, kernel_version: str) -> Finding | None:
    if not kernel_version or kernel_version == version or command.is_remote:
        return None
    return warning(
        *_SMI,
        f"{command.program} reports driver {version}, but the kernel has loaded {kernel_version}",
        "to complete the driver update, reboot or reload the driver",
    )


def _check_reading(
    settings: SmiSettings, kernel_version: str, devices: tuple[str, ...], run: RunCommand | None, clock: Clock
) -> Iterator[Finding]:
    command = Command(settings.command)
    source = SmiSource(settings, devices, RemoteHost(), clock, run)
    wanted = frozenset(q.QUANTITIES.values())
    if settings.query_field_names != SmiSettings().query_field_names:
        wanted |= {q.COLUMNS}
    try:
        snapshot = source.read(wanted)
    except SourceUnavailable as error:
        cause, _, remedy = str(error).partition("; ")
        if not remedy:
            cause, _, remedy = str(error).partition(": ")
        yield fails(*_SMI, cause, remedy or "run `nvidia-smi -q` for details")
        return
    info, seconds = snapshot.source, clock.elapsed() - snapshot.elapsed
    versions = ", ".join(
        f"{name} {version}"
        for name, version in (("driver", info.driver_version), ("CUDA", info.cuda_version))
        if version
    )
    where = " on another machine: pids there have no owners here" if command.is_remote else ""
    yield works(*_SMI, f"{command.program} answers in {seconds:.1f} s{where}, {versions or 'no version'}")
    if info.driver_version and (other := _find_other_version(command, info.driver_version, kernel_version)):
        yield other
    if source.selection.omission:
        yield warning(*_LISTED, source.selection.omission, REMEDY)
    yield from _check_gpus(snapshot)
    yield from _check_pace(snapshot, seconds)
    yield from _check_parts(snapshot)


def _check_gpus(snapshot: Snapshot) -> Iterator[Finding]:
    readings = [reading for reading in snapshot.readings if isinstance(reading.device, Gpu)]
    up = [reading.device.gpu for reading in readings if reading.up]
    if up:
        names = ", ".join(f"{gpu.index}: {gpu.name or gpu.uuid}" for gpu in up)
        yield works(*_LISTED, f"{len(up)} of {len(readings)} read ({names})")
    elif not readings and not snapshot.failures:
        yield fails(*_LISTED, "no GPU is selected", "correct --devices, or remove it")
    for reading in readings:
        yield from _check_gpu(reading, snapshot.unix)
    down = {reading.device for reading in readings if not reading.up}
    for failure in snapshot.failures:
        if failure.part == "devices" and failure.device not in down:
            yield fails(*_LISTED, failure.detail, down_remedy(failure.reason))


def _check_gpu(reading: Reading, unix: float) -> Iterator[Finding]:
    gpu = reading.device.gpu
    what, where = f"GPU {gpu.index}", gpu.pci_bus_id or gpu.uuid
    if not reading.up:
        why = f"{describe_down(reading.down_reason)} ({gpu.uuid}, {where})"
        yield fails(_LISTED.check, what, why, down_remedy(reading.down_reason, gpu.pci_bus_id))
        return
    judged = judge_gpu(reading, throttling_now(reading.values, unix))
    yield from health_findings(gpu.index, [problem for problem in judged.values() if problem])


def _check_pace(snapshot: Snapshot, seconds: float) -> Iterator[Finding]:
    """Slow readings, and the mode that makes them slow."""
    off = [reading for reading in snapshot.readings if reading.get(q.PERSISTENCE_MODE) == 0]
    gpus = ", ".join(str(reading.device.gpu.index) for reading in off)
    if seconds > _SLOW:
        why = f"a reading takes {seconds:.1f} s: `serve` reads about that often, whatever --interval says"
        why += f"; persistence mode is off on GPU {gpus}" if off else ""
        yield warning(*_PERSISTENCE, why, _PERSIST if off else "read NVML instead (--source nvml)")
    elif off:
        why = f"off on GPU {gpus}: an unused GPU is initialized again at each call, which can take seconds"
        yield warning(*_PERSISTENCE, why, _PERSIST)


def _check_parts(snapshot: Snapshot) -> Iterator[Finding]:
    down = {reading.device for reading in snapshot.readings if not reading.up}
    failures = [failure for failure in snapshot.failures if failure.device not in down]
    for subject, part, remedy in (
        (_PROCESSES, "processes", "run as root, or as a user who may see all processes"),
        (_UTILIZATION, "utilization", "gpuledger works without it; `nvidia-smi pmon -c 1` shows the reason"),
        (_FIELDS, COLUMNS_PART, "correct --query-field-names (see `nvidia-smi --help-query-gpu`)"),
        (_LISTED, "readings", "look for NVRM and Xid lines in the kernel log"),
    ):
        yield from _report_part(subject, [failure for failure in failures if failure.part == part], remedy)
    if any(reading.up for reading in snapshot.readings):
        yield works(*_ENERGY, "nvidia-smi has no energy counter: joules are power, summed over time")


def _report_part(subject: Subject, failures: list[Failure], remedy: str) -> Iterator[Finding]:
    if failures:
        more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
        yield warning(*subject, f"{failures[0].detail}{more}", remedy)
