"""Judge what the driver's library offers: functions, values, samples, process lists, profiling metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import pairwise
from statistics import median
from typing import Final

from gpuledger.model.checks import Finding, Subject, Verdict, fails, skipped, warning, works
from gpuledger.model.devices import Device, Gpu
from gpuledger.model.process import ProcessType
from gpuledger.model.quantities import ENGINE_ACTIVITY, PROFILING, UTILIZATION
from gpuledger.model.snapshot import Reading, Snapshot
from gpuledger.model.text import list_some
from gpuledger.selftest.folding import GpuVerdict, fold
from gpuledger.selftest.meters import format_time
from gpuledger.selftest.observation import Observation
from gpuledger.sources.nvml.measurements import KeptSamples, ListGrowth

FUNCTIONS: Final = Subject("selftest.functions", "driver functions")
VALUES: Final = Subject("selftest.values", "readings")
SAMPLES: Final = Subject("selftest.samples", "utilization samples")
LISTS: Final = Subject("selftest.lists", "process lists")
TYPES: Final = Subject("selftest.types", "process types")
MPS: Final = Subject("selftest.mps", "MPS")
PROFILING_METRICS: Final = Subject("selftest.profiling", "profiling metrics (GPM)")
# The MPS server and its control daemon.
_MPS_PROGRAMS: Final = "nvidia-cuda-mps"
# Functions for which gpuledger has an older one, and two that only show a version of the driver.
_REPLACED: Final = (
    "nvmlInitWithFlags",
    "nvmlDeviceGetComputeRunningProcesses_v",
    "nvmlDeviceGetGraphicsRunningProcesses_v",
    "nvmlDeviceGetMPSComputeRunningProcesses_v",
    "nvmlDeviceGetProcessesUtilizationInfo",
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetSupportedClocksEventReasons",
    "nvmlDeviceGetConfComputeMemSizeInfo",
    "nvmlDeviceGetRunningProcessDetailList",
)
_NO_GPM: Final = "NVML has none (before Hopper, and in some vGPU guests); --dcgm-exporter-url reads DCGM's"
MOST_NAMED: Final = 6
_REPORT: Final = "attach the report (--report FILE) to an issue"
# The remedy of `doctor` for calls that return NO_PERMISSION.
_AS_ROOT: Final = "run as root; in a container also without dropped capabilities"


def check_functions(observation: Observation) -> Iterator[Finding]:
    """Name the functions that gpuledger uses and this driver's library lacks."""
    version = observation.info.driver_version or "unknown"
    lost = [name for name in observation.missing if not name.startswith(_REPLACED)]
    if lost:
        yield warning(
            *FUNCTIONS,
            f"driver {version} lacks {list_some(lost, MOST_NAMED)}: the values that they return are omitted",
            "to get these values, use a driver that has the functions; nothing else depends on them",
        )
    elif observation.missing:
        why = f"driver {version} lacks {len(observation.missing)}, and older functions return the same values"
        yield works(*FUNCTIONS, why)
    else:
        yield works(*FUNCTIONS, f"driver {version} has every function that gpuledger looked for")


def device_name(device: Device) -> str:
    """`GPU 0`, or `GPU 0 instance 1_0`: without its UUID, because reports are public."""
    return f"GPU {device.gpu.index}" + (f" instance {device.instance}" if device.instance else "")


def failures_of(snapshots: tuple[Snapshot, ...]) -> Counter[str]:
    """The failures of all ticks without identifiers, and in how many ticks each occurred."""
    found: Counter[str] = Counter()
    for snapshot in snapshots:
        found.update(
            {
                f"{device_name(failure.device)}: {failure.detail.removeprefix(f'{failure.device.uuid}: ')}"
                if failure.device
                else failure.detail
                for failure in snapshot.failures
            }
        )
    return found


def check_values(observation: Observation) -> Iterator[Finding]:
    """Report impossible values, failed calls and Gpus that are down."""
    down = [reading for reading in observation.last.values() if not reading.up]
    for reading in down:
        why = f"does not answer ({reading.down_reason or 'unknown reason'}) at the end of the test"
        yield fails(VALUES.check, device_name(reading.device), why, "run `gpuledger doctor`")
    invalid = sum(snapshot.invalid for snapshot in observation.snapshots)
    failed = failures_of(observation.snapshots)
    if invalid:
        why = f"{invalid} impossible values in {len(observation.snapshots)} readings; they are left out"
        yield warning(*VALUES, why, f"update the driver; {_REPORT}")
    if failed:
        yield warning(*VALUES, f"calls failed: {list_some(failed, MOST_NAMED)}", _remedy_of(failed))
    if not (invalid or failed or down):
        values = sum(len(reading.values) for reading in observation.last.values())
        yield works(
            *VALUES, f"{values} values of {len(observation.last)} devices, all possible, no call failed"
        )


def _remedy_of(failed: Iterable[str]) -> str:
    reasons = {text.rpartition(": ")[2] for text in failed}
    if reasons == {"NO_PERMISSION"}:
        return _AS_ROOT
    if reasons <= {"NOT_SUPPORTED", "FUNCTION_NOT_FOUND"}:
        return "none: this GPU, driver or virtual machine does not have them"
    return _REPORT


def check_samples(observation: Observation) -> Iterator[Finding]:
    """Judge whether a tick gets every utilization sample before the driver discards it."""
    yield from fold(
        SAMPLES,
        [
            _judge_samples(_gpu(observation, uuid), kept, observation.interval)
            for uuid, kept in observation.kept.items()
        ],
    )


def _gpu(observation: Observation, uuid: str) -> Gpu:
    return observation.last[uuid].device.gpu


def sample_period(kept: KeptSamples) -> float | None:
    """Seconds between two samples; None with fewer than two."""
    gaps = [(after - before) / 1e6 for before, after in pairwise(kept.timestamps)]
    return median(gaps) if gaps else None


def _judge_samples(gpu: Gpu, kept: KeptSamples, interval: float) -> GpuVerdict:
    if kept.error == "NOT_FOUND":
        why = "no process used an engine lately; run the test while the GPU works"
        return GpuVerdict(gpu, Verdict.SKIPPED, why)
    if kept.error in ("NOT_SUPPORTED", "FUNCTION_NOT_FOUND"):
        why = "the driver has none (MIG is on, vGPU guest, or before Maxwell): energy is split by time"
        return GpuVerdict(gpu, Verdict.SKIPPED, why)
    if kept.error:
        return GpuVerdict(gpu, Verdict.WARNING, f"{kept.call}: {kept.error}", _remedy_of([kept.error]))
    period = sample_period(kept)
    if period is None:
        return GpuVerdict(gpu, Verdict.SKIPPED, "a single sample; run the test while the GPU works")
    span = (kept.timestamps[-1] - kept.timestamps[0]) / 1e6 + period
    if span < interval:
        why = f"the driver keeps {format_time(span)} of samples, less than a tick of {interval:g} s"
        return GpuVerdict(gpu, Verdict.WARNING, why, f"read more often: --interval {span / 2:.1f}s")
    clock = f"timestamps of the {kept.clock} clock" if kept.clock != "unknown" else "an own clock"
    return GpuVerdict(gpu, Verdict.WORKS, f"one about every {format_time(period)}, {clock}")


def check_lists(observation: Observation) -> Iterator[Finding]:
    """Judge whether process lists longer than the buffer are read completely."""
    devices = {uuid: reading.device.gpu for uuid, reading in observation.last.items()}
    yield from fold(
        LISTS,
        [_judge_list(devices[uuid], growth) for uuid, growth in observation.lists.items() if uuid in devices],
    )


def _judge_list(gpu: Gpu, growth: ListGrowth) -> GpuVerdict:
    if growth.error:
        # What this machine cannot do is no failure of the test.
        lacking = growth.error in ("NOT_SUPPORTED", "FUNCTION_NOT_FOUND")
        why = f"not readable: {growth.error}; the energy of this GPU has no owners"
        return GpuVerdict(gpu, Verdict.WARNING if lacking else Verdict.FAILS, why, _remedy_of([growth.error]))
    if not growth.same:
        why = "a list that is longer than the first buffer has other processes than one that fits"
        return GpuVerdict(gpu, Verdict.FAILS, why, _REPORT)
    if not growth.grown:
        return GpuVerdict(gpu, Verdict.WORKS, "readable; with fewer than two processes no list was too long")
    return GpuVerdict(gpu, Verdict.WORKS, "complete, also if they are longer than the first buffer")


def check_types(observation: Observation) -> Iterator[Finding]:
    """Count processes by type, and report how clients of MPS appear."""
    last = observation.snapshots[-1]
    counts = Counter(process.type_text for process in last.processes)
    if not counts:
        yield skipped(*TYPES, "no process is on a GPU")
    else:
        yield works(*TYPES, ", ".join(f"{number} {kind}" for kind, number in sorted(counts.items())))
    servers = [process for process in last.processes if process.command.startswith(_MPS_PROGRAMS)]
    clients = [process for process in last.processes if ProcessType.MPS in process.types]
    if not servers and not clients:
        yield skipped(*MPS, "no MPS server and no client is on a GPU")
    elif servers and not clients:
        yield works(*MPS, f"{len(servers)} server(s), no client in the driver's list of MPS clients")
    else:
        # In any reading: one that follows the last immediately has no new samples.
        used = {one.key for each in observation.snapshots for one in each.processes if one.usage.sm}
        active = sum(process.key in used for process in clients)
        yield works(
            *MPS, f"{len(servers)} server(s), {len(clients)} client(s), {active} with own utilization"
        )


def check_profiling(observation: Observation) -> Iterator[Finding]:
    """Judge whether GPM has values, and whether its engine activity agrees with utilization."""
    whole = [
        reading for reading in observation.last.values() if reading.device.uuid == reading.device.gpu.uuid
    ]
    yield from fold(
        PROFILING_METRICS, [_judge_profiling(observation, reading) for reading in whole if reading.up]
    )


def _judge_profiling(observation: Observation, reading: Reading) -> GpuVerdict:
    gpu = reading.device.gpu
    parts = [each for each in observation.last.values() if each.device.gpu == gpu]
    if reading.supported.get(ENGINE_ACTIVITY.key) is False and len(parts) == 1:
        return GpuVerdict(gpu, Verdict.SKIPPED, _NO_GPM)
    if not any(value in each.values for each in parts for value in PROFILING):
        why = "no value in any reading: confidential computing or another profiler may block them"
        return GpuVerdict(gpu, Verdict.WARNING, why, f"stop other profilers; {_REPORT}")
    means = activity_and_utilization(observation, gpu.uuid)
    if means and abs(means[0] - means[1]) > max(0.15, 0.3 * means[1]):
        why = f"engine activity is {means[0]:.0%}, utilization {means[1]:.0%}"
        return GpuVerdict(gpu, Verdict.WARNING, why, f"run the test again under a steady load; {_REPORT}")
    return GpuVerdict(
        gpu, Verdict.WORKS, "readable, and in agreement with utilization" if means else "readable"
    )


def activity_and_utilization(observation: Observation, uuid: str) -> tuple[float, float] | None:
    """Means of GPM's engine activity and of utilization over the same ticks; None if one is missing."""
    pairs = [
        (activity, utilization)
        for snapshot in observation.snapshots
        for reading in snapshot.readings
        if reading.device.uuid == uuid
        and (activity := reading.get(ENGINE_ACTIVITY)) is not None
        and (utilization := reading.get(UTILIZATION)) is not None
    ]
    if not pairs:
        return None
    return sum(pair[0] for pair in pairs) / len(pairs), sum(pair[1] for pair in pairs) / len(pairs)
