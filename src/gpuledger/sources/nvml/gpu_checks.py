"""Checks of `doctor` for GPUs: which are present, their modes, and what is readable of each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from gpuledger.model.checks import Finding, caused_by, fails, skipped, unknown, warning, works
from gpuledger.model.devices import Gpu, is_selected
from gpuledger.sources.nvml.kernel_facts import KernelFacts, PciGpu, pci_slot
from gpuledger.sources.nvml.probe import GpuProbeResult, ProbeResult


def format_gpu_indexes(gpus: Iterable[GpuProbeResult]) -> str:
    """Format indexes as `GPU 0` or `GPUs 0-3, 5`."""
    indexes = sorted(gpu.index for gpu in gpus)
    spans: list[list[int]] = []
    for index in indexes:
        if spans and spans[-1][1] == index - 1:
            spans[-1][1] = index
        else:
            spans.append([index, index])
    text = ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in spans)
    return f"GPU{'s' if len(indexes) > 1 else ''} {text}"


PROFILING: Final = "gpu.profiling"
MEMORY: Final = "gpu.memory"

_PROFILING: Final = "profiling metrics (GPM)"
_MEMORY: Final = "GPU memory"


def find_gpu_health_problems(gpus: Sequence[GpuProbeResult]) -> Iterator[Finding]:
    """Check profiling and memory of GPUs that answer; GPUs with unknown results are skipped."""
    yield from _check_profiling(gpus)
    yield from _check_memory(gpus)


def _check_profiling(gpus: Sequence[GpuProbeResult]) -> Iterator[Finding]:
    supported = [gpu for gpu in gpus if gpu.profiling]
    unsupported = [gpu for gpu in gpus if gpu.profiling is False]
    unread = [gpu for gpu in gpus if gpu.profiling_error]
    if supported:
        yield works(PROFILING, _PROFILING, f"readable: {format_gpu_indexes(supported)}")
    if unsupported:
        yield skipped(
            PROFILING,
            _PROFILING,
            f"not supported by NVML before Hopper: {format_gpu_indexes(unsupported)}; metrics of SM, pipe "
            "and DRAM activity are omitted, and field_supported is 0",
        )
    if unread:
        reasons = sorted({gpu.profiling_error for gpu in unread})
        yield unknown(PROFILING, _PROFILING, f"{format_gpu_indexes(unread)}: {'; '.join(reasons)}")


def _check_memory(gpus: Sequence[GpuProbeResult]) -> Iterator[Finding]:
    healthy = [gpu for gpu in gpus if gpu.repair_pending is False and not gpu.repair_failed]
    if healthy:
        yield works(MEMORY, _MEMORY, f"no repair is pending: {format_gpu_indexes(healthy)}")
    for gpu in gpus:
        what = f"memory of GPU {gpu.index}"
        if gpu.repair_failed:
            yield fails(
                MEMORY,
                what,
                "a memory row with errors could not be remapped to a spare row",
                "drain the node, test the card with NVIDIA's field diagnostic and replace it",
            )
        elif gpu.repair_pending:
            yield warning(
                MEMORY,
                what,
                "a memory row or page with errors will be retired at the next reset",
                f"stop all processes on it and run `nvidia-smi --gpu-reset -i {gpu.index}`, or reboot",
            )


LISTED: Final = "gpu.listed"
PERSISTENCE: Final = "gpu.persistence"
ACCOUNTING: Final = "gpu.accounting"
MIG: Final = "gpu.mig"
PROCESSES: Final = "gpu.processes"
UTILIZATION: Final = "gpu.utilization"
PCI: Final = "gpu.pci"
POWER: Final = "gpu.power"

_TITLES: Final = {
    LISTED: "GPUs",
    PERSISTENCE: "persistence mode",
    ACCOUNTING: "accounting mode",
    MIG: "MIG",
    PROCESSES: "process lists",
    UTILIZATION: "per-process utilization",
    PCI: "GPUs on the PCI bus",
    POWER: "GPU sleep",
}

_REMEDIES: Final = {
    "GPU_IS_LOST": (
        "it fell off the bus: look for the Xid in `dmesg | grep -i xid`, drain the node and reboot; "
        "if it happens again, reseat or replace the card"
    ),
    "RESET_REQUIRED": "stop all processes on it and run `nvidia-smi --gpu-reset -i {index}`, or reboot",
    "NO_PERMISSION": "run as root, or as a user with read and write access to /dev/nvidia{index}",
    "UNKNOWN": (
        "in a container, access to the device may have been lost (`systemctl daemon-reload` on the machine "
        "causes this): restart the container; otherwise check `dmesg | grep -i nvrm`"
    ),
}


def find_gpu_problems(result: ProbeResult, selected: tuple[str, ...], cause: str) -> Iterator[Finding]:
    """Check the GPUs that the driver reports; with a `cause` for which there are none, skip all checks."""
    if cause:
        for check in (LISTED, PERSISTENCE, ACCOUNTING, MIG, PROCESSES, UTILIZATION):
            yield skipped(check, _TITLES[check], caused_by(cause))
        return
    if not result.gpus:
        yield fails(
            LISTED,
            _TITLES[LISTED],
            f"the driver reports no GPU ({result.refused or 'NO_DEVICES'})",
            "in a container set NVIDIA_VISIBLE_DEVICES=all; on the machine itself compare `lspci -d 10de:` "
            "and check `dmesg | grep -i nvrm`",
        )
        return
    everything = sorted(result.gpus, key=lambda gpu: gpu.index)
    gpus = [gpu for gpu in everything if not gpu.uuid or is_selected(_gpu(gpu), selected)]
    alive = [gpu for gpu in gpus if not gpu.error]
    yield from _check_listed(everything, alive, gpus, selected)
    if alive:
        yield from _check_persistence(alive)
        yield from _check_accounting(alive)
        yield from _check_mig(alive)
        yield _check_processes(alive)
        yield from _check_utilization(alive)
        yield from find_gpu_health_problems(alive)


def _gpu(result: GpuProbeResult) -> Gpu:
    return Gpu(result.uuid, result.index, result.name, result.address)


def _check_listed(
    everything: Sequence[GpuProbeResult],
    alive: Sequence[GpuProbeResult],
    gpus: Sequence[GpuProbeResult],
    selected: tuple[str, ...],
) -> Iterator[Finding]:
    if alive:
        names = ", ".join(f"{gpu.index}: {gpu.name or gpu.uuid}" for gpu in alive)
        yield works(LISTED, _TITLES[LISTED], f"{len(alive)} of {len(everything)} read ({names})")
    for gpu in gpus:
        if gpu.error:
            remedy = _REMEDIES.get(gpu.error, "check `dmesg | grep -i nvrm`").format(index=gpu.index)
            yield fails(LISTED, f"GPU {gpu.index}", f"does not answer: {gpu.error}", remedy)
    for name in selected:
        if not any(gpu.uuid and is_selected(_gpu(gpu), (name,)) for gpu in everything):
            known = ", ".join(f"{gpu.index} ({gpu.uuid})" for gpu in everything if gpu.uuid)
            yield fails(
                LISTED,
                _TITLES[LISTED],
                f"--devices: no GPU that answers has the index, UUID or PCI bus id {name}",
                f"use one of: {known}" if known else "remove --devices",
            )


def _check_persistence(gpus: Sequence[GpuProbeResult]) -> Iterator[Finding]:
    what = _TITLES[PERSISTENCE]
    off = [gpu for gpu in gpus if gpu.persistence == 0]
    on = [gpu for gpu in gpus if gpu.persistence == 1]
    if on:
        yield works(PERSISTENCE, what, f"on: {format_gpu_indexes(on)}")
    if off:
        yield warning(
            PERSISTENCE,
            what,
            f"off: {format_gpu_indexes(off)}; an unused GPU is initialized again at each use, which takes "
            "seconds and resets its modes and energy counter",
            "`systemctl enable --now nvidia-persistenced`, or `nvidia-smi -pm 1` as root",
        )
    yield from _report_unread_modes(
        PERSISTENCE, [(gpu, gpu.persistence_error) for gpu in gpus if gpu.persistence is None]
    )


def _check_accounting(gpus: Sequence[GpuProbeResult]) -> Iterator[Finding]:
    what = _TITLES[ACCOUNTING]
    mig_gpus = [gpu for gpu in gpus if gpu.mig]
    whole = [gpu for gpu in gpus if not gpu.mig]
    on = [gpu for gpu in whole if gpu.accounting == 1]
    off = [gpu for gpu in whole if gpu.accounting == 0]
    if on:
        yield works(ACCOUNTING, what, f"on: {format_gpu_indexes(on)}")
    if off:
        yield warning(
            ACCOUNTING,
            what,
            f"off: {format_gpu_indexes(off)}; processes that start and end between two readings are not "
            "recorded, and the exact start and end of other processes on the GPU are unknown",
            "`nvidia-smi -am 1` as root, or `--enable-accounting` with gpuledger run as root, before the "
            "processes start; the mode is kept until the driver is unloaded",
        )
    if mig_gpus:
        yield skipped(ACCOUNTING, what, f"not available while MIG is on: {format_gpu_indexes(mig_gpus)}")
    yield from _report_unread_modes(
        ACCOUNTING, [(gpu, gpu.accounting_error) for gpu in whole if gpu.accounting is None]
    )


def _report_unread_modes(check: str, unread: Iterable[tuple[GpuProbeResult, str]]) -> Iterator[Finding]:
    by_reason: dict[str, list[GpuProbeResult]] = {}
    for gpu, reason in unread:
        by_reason.setdefault(reason, []).append(gpu)
    for reason, gpus in by_reason.items():
        if reason:
            yield unknown(check, _TITLES[check], f"{format_gpu_indexes(gpus)}: {reason}")
        else:
            why = f"this card does not support the mode: {format_gpu_indexes(gpus)}"
            yield skipped(check, _TITLES[check], why)


def _check_mig(gpus: Sequence[GpuProbeResult]) -> Iterator[Finding]:
    if not any(gpu.mig or gpu.mig_error for gpu in gpus):
        yield works(MIG, _TITLES[MIG], "no GPU has MIG enabled")
    for gpu in gpus:
        what = f"MIG of GPU {gpu.index}"
        if gpu.mig_error:
            yield fails(
                MIG,
                what,
                f"its instances cannot be read: {gpu.mig_error}",
                "run as root; in a container also set NVIDIA_MIG_MONITOR_DEVICES=all",
            )
        elif gpu.instances:
            instances = "; ".join(f"{each.gi}_{each.ci} {each.profile} {each.uuid}" for each in gpu.instances)
            yield works(MIG, what, f"MIG devices (gi_ci, profile, UUID): {instances}")
        elif gpu.mig:
            yield warning(
                MIG,
                what,
                "MIG is on but there are no instances, so no process can use the GPU",
                f"create instances (`nvidia-smi mig -i {gpu.index} -lgip` lists profiles, `nvidia-smi mig -i "
                f"{gpu.index} -cgi PROFILE -C` creates them), or `nvidia-smi -i {gpu.index} -mig 0`",
            )


def _check_processes(gpus: Sequence[GpuProbeResult]) -> Finding:
    unread = [gpu for gpu in gpus if gpu.processes is None]
    if not unread:
        total = sum(gpu.processes or 0 for gpu in gpus)
        return works(
            PROCESSES, _TITLES[PROCESSES], f"readable, {total} entries on {format_gpu_indexes(gpus)}"
        )
    reasons = sorted({gpu.processes_error for gpu in unread})
    return fails(
        PROCESSES,
        _TITLES[PROCESSES],
        f"not readable on {format_gpu_indexes(unread)}: {'; '.join(reasons)}",
        "run as root (NO_PERMISSION), or update the driver (NOT_SUPPORTED, FUNCTION_NOT_FOUND); vGPU hosts "
        "have no process lists for whole cards",
    )


def _check_utilization(gpus: Sequence[GpuProbeResult]) -> Iterator[Finding]:
    what = _TITLES[UTILIZATION]
    mig_gpus = [gpu for gpu in gpus if gpu.mig]
    readable = [gpu for gpu in gpus if not gpu.mig and not gpu.utilization_error]
    unread = [gpu for gpu in gpus if not gpu.mig and gpu.utilization_error]
    if readable:
        yield works(UTILIZATION, what, f"readable: {format_gpu_indexes(readable)}")
    if mig_gpus:
        yield skipped(UTILIZATION, what, f"not available while MIG is on: {format_gpu_indexes(mig_gpus)}")
    if unread:
        reasons = sorted({gpu.utilization_error for gpu in unread})
        yield warning(
            UTILIZATION,
            what,
            f"not readable: {format_gpu_indexes(unread)}: {'; '.join(reasons)}; process activity is unknown",
            "run as root (NO_PERMISSION); cards before Maxwell and vGPU guests have none (NOT_SUPPORTED)",
        )


def find_pci_problems(result: ProbeResult, kernel: KernelFacts) -> Iterator[Finding]:
    """Compare the driver's GPUs with those on the PCI bus: a GPU can disappear without an error."""
    what = _TITLES[PCI]
    asleep = [gpu.address for gpu in kernel.pci or () if gpu.power == "suspended"]
    if kernel.pci is None:
        yield unknown(PCI, what, "/sys/bus/pci/devices cannot be read")
    elif kernel.pci:
        yield from _compare_with_pci(result, kernel, kernel.pci)
    elif result.gpus or kernel.wsl or kernel.tegra:
        yield skipped(PCI, what, "this machine's PCI bus shows no NVIDIA GPU (usual in WSL and on a Jetson)")
    else:
        yield fails(
            PCI,
            what,
            "no device of vendor 10de (NVIDIA), class 03 (display)",
            "use a machine with an NVIDIA GPU, or pass one through to this virtual machine",
        )
    if asleep:
        yield warning(
            POWER,
            _TITLES[POWER],
            f"{', '.join(asleep)} is asleep (runtime_status suspended), and each reading wakes it",
            "read less often (`--interval 1m`), or stop gpuledger while on battery",
        )
    elif any(gpu.power for gpu in kernel.pci or ()):
        yield works(POWER, _TITLES[POWER], "no GPU is asleep")


def _compare_with_pci(result: ProbeResult, kernel: KernelFacts, pci: Sequence[PciGpu]) -> Iterator[Finding]:
    what = _TITLES[PCI]
    counted_slots = {pci_slot(gpu.address) for gpu in result.gpus if gpu.address}
    nameless = any(not gpu.address for gpu in result.gpus)
    absent = [gpu for gpu in pci if pci_slot(gpu.address) not in counted_slots]
    if not result.done or not result.gpus or nameless:
        names = ", ".join(f"{gpu.address} ({gpu.driver or 'no driver'})" for gpu in pci)
        lost = ", ".join(gpu.address for gpu in absent)
        more = f"; the driver does not report {lost}" if counted_slots and lost else ""
        yield works(PCI, what, f"{len(pci)} found: {names}{more}")
        return
    if len(absent) < len(pci):
        yield works(PCI, what, f"{len(pci) - len(absent)} of {len(pci)} are reported by the driver")
    for gpu in absent:
        yield _explain_absent(gpu, kernel, len(pci))


def _explain_absent(gpu: PciGpu, kernel: KernelFacts, total: int) -> Finding:
    what = f"GPU at {gpu.address}"
    if gpu.driver and gpu.driver != "nvidia":
        if gpu.driver == "vfio-pci":
            return skipped(PCI, what, "passed through to a virtual machine (vfio-pci)")
        return fails(
            PCI,
            what,
            f"the kernel driver {gpu.driver} is bound to it, so NVIDIA's cannot use it",
            f"blacklist {gpu.driver} (`echo blacklist {gpu.driver} > "
            f"/etc/modprobe.d/blacklist-{gpu.driver}.conf`), rebuild the initramfs and reboot",
        )
    node_missing = gpu.minor not in kernel.minors if gpu.minor is not None else len(kernel.minors) < total
    if node_missing and not kernel.wsl:
        node = "its /dev/nvidiaN" if gpu.minor is None else f"/dev/nvidia{gpu.minor}"
        return skipped(PCI, what, f"this container has no access to {node}, so the GPU is not read")
    return fails(
        PCI,
        what,
        "on the PCI bus, but not reported by the driver",
        f"look for {gpu.address} in `dmesg | grep -iE 'nvrm|xid'`; reboot; if it happens again, reseat or "
        "replace the card",
    )
