"""Checks of `doctor` for AMD and Intel GPUs: what each reports, and which permission the rest needs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gpuledger.model import quantities as q
from gpuledger.model.checks import Check, Finding, Subject, fails, split_remedy, warning, works
from gpuledger.model.devices import Gpu
from gpuledger.model.errors import SourceUnavailable
from gpuledger.model.gpu_problems import health_findings, judge_gpu
from gpuledger.model.process import ProcessType
from gpuledger.model.snapshot import Reading, Snapshot
from gpuledger.model.throttle_reasons import throttling_now
from gpuledger.sources.device_selection import REMEDY
from gpuledger.sources.drm.cards import has_machine
from gpuledger.sources.drm.source import DrmSource

_LISTED: Final = Subject("drm.gpus", "AMD and Intel GPUs")
_FILES: Final = Subject("drm.files", "files of the kernel")
_ENERGY: Final = Subject("drm.energy", "energy")
_CLIENTS: Final = Subject("drm.processes", "engine time of processes")
_ROCM: Final = Subject("drm.rocm", "ROCm processes")
_WANTED: Final = frozenset(
    {
        q.ENERGY,
        q.POWER,
        q.POWER_LIMIT,
        q.UTILIZATION,
        q.MEMORY_TOTAL,
        q.MEMORY_USED,
        q.TEMPERATURE,
        q.CLOCK_EVENT_REASONS,
        q.ECC_UNCORRECTED_VOLATILE,
    }
)
_SEE_ALL: Final = (
    "run as root, or give gpuledger CAP_SYS_PTRACE; in a container also the host's pids (`hostPID: true`, "
    "`--pid=host`)"
)


def drm_check(source: DrmSource) -> Check:
    """Build the check; it reads the GPUs once."""
    return Check(*_LISTED, lambda: find_drm_problems(source))


def find_drm_problems(source: DrmSource) -> Iterator[Finding]:
    """Read once as the source does, and judge what each GPU reports."""
    try:
        snapshot = source.read(_WANTED)
    except SourceUnavailable as error:
        cause, remedy = split_remedy(str(error).replace(": ", "; ", 1))
        yield fails(*_LISTED, cause, remedy)
        return
    gpus = [reading for reading in snapshot.readings if isinstance(reading.device, Gpu)]
    names = ", ".join(f"{gpu.device.gpu.index}: {gpu.device.gpu.name}" for gpu in gpus)
    if gpus or source.selection.omission:
        yield works(*_LISTED, f"{len(gpus)} read ({names})")
    else:
        yield works(*_LISTED, "only integrated ones, which are left out beside GPUs of NVIDIA")
    if source.selection.omission:
        yield warning(*_LISTED, source.selection.omission, REMEDY)
    yield from _check_identities(gpus)
    yield from _check_files(snapshot)
    for reading in gpus:
        yield _check_energy(reading)
        judged = judge_gpu(reading, throttling_now(reading.values, snapshot.unix))
        yield from health_findings(
            reading.device.gpu.index, [problem for problem in judged.values() if problem]
        )
    yield _check_clients(*source.hidden_processes, lists_all=source.lists_all_processes)
    yield from _check_rocm(source, snapshot)


def _check_identities(gpus: list[Reading]) -> Iterator[Finding]:
    local = [reading.device.gpu for reading in gpus if reading.device.uuid.startswith("PCI-")]
    if not local:
        return
    what = f"GPU {', '.join(str(gpu.index) for gpu in local)}"
    if has_machine(local[0].uuid):
        yield works(_LISTED.check, what, "no unique id in the kernel: named by PCI address and machine")
        return
    yield warning(
        _LISTED.check,
        what,
        "neither the kernel nor this machine has a unique id: GPUs in the same slot of other nodes have the "
        "same uuid, and count as one in Prometheus and in the fleet view",
        "set the variable NODE_NAME to the node's name, or mount /etc/machine-id of the host read-only",
    )


def _check_files(snapshot: Snapshot) -> Iterator[Finding]:
    failures = [failure for failure in snapshot.failures if failure.part == "readings"]
    for failure in failures:
        remedy = (
            "run as root, or let the device cgroup of the container allow the GPU"
            if failure.reason == "NO_PERMISSION"
            else "check the kernel log (`dmesg | grep -iE 'amdgpu|i915|xe '`); reboot if the GPU is lost"
        )
        yield warning(*_FILES, failure.detail, remedy)
    if not failures:
        yield works(*_FILES, "all files of the GPUs can be read")


def _check_energy(reading: Reading) -> Finding:
    what = f"energy of GPU {reading.device.gpu.index}"
    if reading.get(q.ENERGY) is not None:
        label = reading.rules.epoch
        of = f" ({label} in hwmon)" if label in ("card", "pkg") else ""
        return works(_ENERGY.check, what, f"has a counter{of}")
    if reading.get(q.POWER) is not None:
        return works(_ENERGY.check, what, "no counter: joules are power, summed over time")
    if q.ENERGY.key not in reading.supported:
        return works(_ENERGY.check, what, "the GPU sleeps: nothing was read")
    return warning(
        _ENERGY.check,
        what,
        "the kernel reports neither energy nor power of this GPU: its energy is not booked",
        "nothing to do for integrated GPUs; else use a newer kernel (xe on B580: 6.15)",
    )


def _check_clients(hidden: int, total: int, *, lists_all: bool) -> Finding:
    if not lists_all:
        return warning(
            *_CLIENTS,
            f"only {total} processes are visible here, not those of the whole machine: others that use a GPU "
            "are missing, and Intel's GPUs have no utilization and no used memory",
            _SEE_ALL,
        )
    if hidden:
        return warning(
            *_CLIENTS,
            f"{hidden} of {total} processes may not be looked at: those that use a GPU are missing, and "
            "their energy goes to others or to unattributed",
            _SEE_ALL,
        )
    return works(*_CLIENTS, "the open files of all processes can be read")


def _check_rocm(source: DrmSource, snapshot: Snapshot) -> Iterator[Finding]:
    if not any(card.driver == "amdgpu" for card in source.cards()):
        return
    if not any(card.nodes for card in source.cards()):
        yield warning(
            *_ROCM,
            "/sys/class/kfd cannot be read: memory and compute units of ROCm processes are not known",
            "load amdgpu with KFD; in a container, allow /dev/kfd (the device cgroup hides its nodes)",
        )
        return
    if not source.sees_host_pids:
        yield warning(*_ROCM, "KFD lists pids of the host, which are not visible here", _SEE_ALL)
        return
    found = [
        process
        for reading in snapshot.process_readings
        for process in reading.processes or ()
        if ProcessType.COMPUTE in process.types
    ]
    yield works(*_ROCM, f"{len(found)} processes compute; ROCm reports memory, but no engine time")
