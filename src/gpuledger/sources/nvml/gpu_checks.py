"""Checks of `doctor` for GPUs: which are present, their modes, and what is readable of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from gpuledger.model.checks import Finding, Subject, caused_by, fails, skipped, unknown, warning, works
from gpuledger.model.devices import Gpu, is_selected
from gpuledger.model.gpu_problems import HEALTH_CHECK, health_findings
from gpuledger.sources.device_selection import REMEDY, format_indexes
from gpuledger.sources.nvml.kernel_facts import KernelFacts, PciGpu, pci_slot
from gpuledger.sources.nvml.probe import GpuProbeResult, ProbeResult

_LISTED: Final = Subject("gpu.listed", "GPUs")
_PERSISTENCE: Final = Subject("gpu.persistence", "persistence mode")
_ACCOUNTING: Final = Subject("gpu.accounting", "accounting mode")
_MIG: Final = Subject("gpu.mig", "MIG")
_PROCESSES: Final = Subject("gpu.processes", "process lists")
_UTILIZATION: Final = Subject("gpu.utilization", "per-process utilization")
_PROFILING: Final = Subject("gpu.profiling", "profiling metrics (GPM)")
_HEALTH: Final = Subject(HEALTH_CHECK, "GPU health")
_PCI: Final = Subject("gpu.pci", "GPUs on the PCI bus")
_POWER: Final = Subject("gpu.power", "GPU sleep")

# Ends of the names of drivers that reserve a card for a virtual machine.
_PASSTHROUGH: Final = ("vfio-pci", "pci-stub", "pciback")
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
        for subject in (_LISTED, _PERSISTENCE, _ACCOUNTING, _MIG, _PROCESSES, _UTILIZATION):
            yield skipped(*subject, caused_by(cause))
        return
    if not result.gpus:
        yield fails(
            *_LISTED,
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
        yield from _check_profiling(alive)
        yield from _check_health(alive)


def _gpu(result: GpuProbeResult) -> Gpu:
    return Gpu(result.uuid, result.index, result.name, result.address)


def _report(
    subject: Subject, verdict: Callable[..., Finding], gpus: Sequence[GpuProbeResult], why: str, *remedy: str
) -> Iterator[Finding]:
    """Yield a Finding if there are such GPUs; `{gpus}` in `why` becomes their indexes."""
    if gpus:
        yield verdict(*subject, why.replace("{gpus}", _format_indexes(gpus)), *remedy)


def _format_indexes(gpus: Iterable[GpuProbeResult]) -> str:
    return format_indexes(gpu.index for gpu in gpus)


def _join_reasons(reasons: Iterable[str]) -> str:
    return "; ".join(sorted(set(reasons)))


def _check_listed(
    everything: Sequence[GpuProbeResult],
    alive: Sequence[GpuProbeResult],
    gpus: Sequence[GpuProbeResult],
    selected: tuple[str, ...],
) -> Iterator[Finding]:
    if alive:
        names = ", ".join(f"{gpu.index}: {gpu.name or gpu.uuid}" for gpu in alive)
        yield works(*_LISTED, f"{len(alive)} of {len(everything)} read ({names})")
    for gpu in gpus:
        if gpu.error:
            remedy = _REMEDIES.get(gpu.error, "check `dmesg | grep -i nvrm`").format(index=gpu.index)
            yield fails(_LISTED.check, f"GPU {gpu.index}", f"does not answer: {gpu.error}", remedy)
    omitted = [gpu.index for gpu in everything if gpu.uuid and not is_selected(_gpu(gpu), selected)]
    if omitted:
        why = f"--devices leaves out {format_indexes(omitted)} of {len(everything)}"
        yield warning(*_LISTED, why, REMEDY)
    for name in selected:
        if not any(gpu.uuid and is_selected(_gpu(gpu), (name,)) for gpu in everything):
            known = ", ".join(f"{gpu.index} ({gpu.uuid})" for gpu in everything if gpu.uuid)
            yield fails(
                *_LISTED,
                f"--devices: no GPU that answers has the index, UUID or PCI bus id {name}",
                f"use one of: {known}" if known else "remove --devices",
            )


def _check_persistence(gpus: Sequence[GpuProbeResult]) -> Iterator[Finding]:
    yield from _report(_PERSISTENCE, works, [gpu for gpu in gpus if gpu.persistence == 1], "on: {gpus}")
    yield from _report(
        _PERSISTENCE,
        warning,
        [gpu for gpu in gpus if gpu.persistence == 0],
        "off: {gpus}; an unused GPU is initialized again at each use, which takes seconds and resets its "
        "modes and energy counter",
        "`systemctl enable --now nvidia-persistenced`, or `nvidia-smi -pm 1` as root",
    )
    yield from _report_unread_modes(
        _PERSISTENCE, [(gpu, gpu.persistence_error) for gpu in gpus if gpu.persistence is None]
    )


def _check_accounting(gpus: Sequence[GpuProbeResult]) -> Iterator[Finding]:
    whole = [gpu for gpu in gpus if not gpu.mig]
    yield from _report(_ACCOUNTING, works, [gpu for gpu in whole if gpu.accounting == 1], "on: {gpus}")
    yield from _report(
        _ACCOUNTING,
        warning,
        [gpu for gpu in whole if gpu.accounting == 0],
        "off: {gpus}; processes that start and end between two readings are not recorded, and the exact "
        "start and end of other processes on the GPU are unknown",
        "`nvidia-smi -am 1` as root, or `--enable-accounting` with gpuledger run as root, before the "
        "processes start; the mode is kept until the driver is unloaded",
    )
    yield from _report_mig(_ACCOUNTING, gpus)
    yield from _report_unread_modes(
        _ACCOUNTING, [(gpu, gpu.accounting_error) for gpu in whole if gpu.accounting is None]
    )


def _report_mig(subject: Subject, gpus: Sequence[GpuProbeResult]) -> Iterator[Finding]:
    return _report(
        subject, skipped, [gpu for gpu in gpus if gpu.mig], "not available while MIG is on: {gpus}"
    )


def _report_unread_modes(subject: Subject, unread: list[tuple[GpuProbeResult, str]]) -> Iterator[Finding]:
    for reason in dict.fromkeys(reason for _, reason in unread):
        indexes = _format_indexes(gpu for gpu, given in unread if given == reason)
        if reason:
            yield unknown(*subject, f"{indexes}: {reason}")
        else:
            yield skipped(*subject, f"this card does not support the mode: {indexes}")


def _check_mig(gpus: Sequence[GpuProbeResult]) -> Iterator[Finding]:
    if not any(gpu.mig or gpu.mig_error for gpu in gpus):
        yield works(*_MIG, "no GPU has MIG enabled")
    for gpu in gpus:
        subject = _MIG._replace(what=f"MIG of GPU {gpu.index}")
        if gpu.mig_error:
            yield fails(
                *subject,
                f"its instances cannot be read: {gpu.mig_error}",
                "run as root; in a container also set NVIDIA_MIG_MONITOR_DEVICES=all",
            )
        elif gpu.instances:
            instances = "; ".join(f"{each.gi}_{each.ci} {each.profile} {each.uuid}" for each in gpu.instances)
            yield works(*subject, f"MIG devices (gi_ci, profile, UUID): {instances}")
        elif gpu.mig:
            yield warning(
                *subject,
                "MIG is on but there are no instances, so no process can use the GPU",
                f"create instances (`nvidia-smi mig -i {gpu.index} -lgip` lists profiles, `nvidia-smi mig -i "
                f"{gpu.index} -cgi PROFILE -C` creates them), or `nvidia-smi -i {gpu.index} -mig 0`",
            )


def _check_processes(gpus: Sequence[GpuProbeResult]) -> Finding:
    unread = [gpu for gpu in gpus if gpu.processes is None]
    if not unread:
        total = sum(gpu.processes or 0 for gpu in gpus)
        return works(*_PROCESSES, f"readable, {total} entries on {_format_indexes(gpus)}")
    reasons = _join_reasons(gpu.processes_error for gpu in unread)
    return fails(
        *_PROCESSES,
        f"not readable on {_format_indexes(unread)}: {reasons}",
        "run as root (NO_PERMISSION), or update the driver (NOT_SUPPORTED, FUNCTION_NOT_FOUND); vGPU hosts "
        "have no process lists for whole cards",
    )


def _check_utilization(gpus: Sequence[GpuProbeResult]) -> Iterator[Finding]:
    whole = [gpu for gpu in gpus if not gpu.mig]
    unread = [gpu for gpu in whole if gpu.utilization_error]
    readable = [gpu for gpu in whole if not gpu.utilization_error]
    yield from _report(_UTILIZATION, works, readable, "readable: {gpus}")
    yield from _report_mig(_UTILIZATION, gpus)
    reasons = _join_reasons(gpu.utilization_error for gpu in unread)
    yield from _report(
        _UTILIZATION,
        warning,
        unread,
        f"not readable: {{gpus}}: {reasons}; process activity is unknown",
        "run as root (NO_PERMISSION); cards before Maxwell and vGPU guests have none (NOT_SUPPORTED)",
    )


def _check_profiling(gpus: Sequence[GpuProbeResult]) -> Iterator[Finding]:
    yield from _report(_PROFILING, works, [gpu for gpu in gpus if gpu.profiling], "readable: {gpus}")
    yield from _report(
        _PROFILING,
        skipped,
        [gpu for gpu in gpus if gpu.profiling is False],
        "not supported by NVML before Hopper: {gpus}; metrics of SM, pipe and DRAM activity are omitted, and "
        "field_supported is 0",
    )
    unread = [gpu for gpu in gpus if gpu.profiling_error]
    reasons = _join_reasons(gpu.profiling_error for gpu in unread)
    yield from _report(_PROFILING, unknown, unread, f"{{gpus}}: {reasons}")


def _check_health(gpus: Sequence[GpuProbeResult]) -> Iterator[Finding]:
    healthy = [gpu for gpu in gpus if gpu.judged and not gpu.problems]
    yield from _report(_HEALTH, works, healthy, "no fault of memory, links, power or cooling: {gpus}")
    for gpu in gpus:
        yield from health_findings(gpu.index, gpu.problems)


def find_pci_problems(result: ProbeResult, kernel: KernelFacts) -> Iterator[Finding]:
    """Compare the driver's GPUs with those on the PCI bus: a GPU can disappear without an error."""
    asleep = [gpu.address for gpu in kernel.pci or () if gpu.power == "suspended"]
    if kernel.pci is None:
        yield unknown(*_PCI, "/sys/bus/pci/devices cannot be read")
    elif kernel.pci:
        yield from _compare_with_pci(result, kernel, kernel.pci)
    elif result.gpus or kernel.wsl or kernel.tegra:
        yield skipped(*_PCI, "this machine's PCI bus shows no NVIDIA GPU (usual in WSL and on a Jetson)")
    else:
        yield fails(
            *_PCI,
            "no device of vendor 10de (NVIDIA), class 03 (display)",
            "use a machine with an NVIDIA GPU, or pass one through to this virtual machine",
        )
    if asleep:
        yield warning(
            *_POWER,
            f"{', '.join(asleep)} is asleep (runtime_status suspended), and each reading wakes it",
            "read less often (`--interval 1m`), or stop gpuledger while on battery",
        )
    elif any(gpu.power for gpu in kernel.pci or ()):
        yield works(*_POWER, "no GPU is asleep")


def _compare_with_pci(result: ProbeResult, kernel: KernelFacts, pci: Sequence[PciGpu]) -> Iterator[Finding]:
    counted_slots = {pci_slot(gpu.address) for gpu in result.gpus if gpu.address}
    nameless = any(not gpu.address for gpu in result.gpus)
    absent = [gpu for gpu in pci if pci_slot(gpu.address) not in counted_slots]
    if not result.done or not result.gpus or nameless:
        names = ", ".join(f"{gpu.address} ({gpu.driver or 'no driver'})" for gpu in pci)
        lost = ", ".join(gpu.address for gpu in absent)
        more = f"; the driver does not report {lost}" if counted_slots and lost else ""
        yield works(*_PCI, f"{len(pci)} found: {names}{more}")
        return
    if len(absent) < len(pci):
        yield works(*_PCI, f"{len(pci) - len(absent)} of {len(pci)} are reported by the driver")
    bound = sum(gpu.driver == "nvidia" for gpu in pci)
    for gpu in absent:
        yield _explain_absent(gpu, kernel, bound)


def _explain_absent(gpu: PciGpu, kernel: KernelFacts, bound: int) -> Finding:
    """Explain why the driver does not report a GPU, if it has `bound` GPUs."""
    subject = _PCI._replace(what=f"GPU at {gpu.address}")
    if not gpu.driver:
        return warning(
            *subject,
            "no kernel driver is bound to it: it is not read",
            f"if it is not left out on purpose: look for {gpu.address} in `dmesg | grep -i nvrm`, and run "
            f"`echo {gpu.address} > /sys/bus/pci/drivers/nvidia/bind`",
        )
    if gpu.driver and gpu.driver != "nvidia":
        # Such as nvgrace_gpu_vfio_pci.
        if gpu.driver.replace("_", "-").endswith(_PASSTHROUGH):
            return skipped(*subject, f"passed through to a virtual machine ({gpu.driver})")
        return fails(
            *subject,
            f"the kernel driver {gpu.driver} is bound to it, so NVIDIA's cannot use it",
            f"blacklist {gpu.driver} (`echo blacklist {gpu.driver} > "
            f"/etc/modprobe.d/blacklist-{gpu.driver}.conf`), rebuild the initramfs and reboot",
        )
    node_missing = gpu.minor not in kernel.minors if gpu.minor is not None else len(kernel.minors) < bound
    if node_missing and not kernel.wsl:
        node = "its /dev/nvidiaN" if gpu.minor is None else f"/dev/nvidia{gpu.minor}"
        return skipped(*subject, f"this container has no access to {node}, so the GPU is not read")
    return fails(
        *subject,
        "on the PCI bus, but not reported by the driver",
        f"look for {gpu.address} in `dmesg | grep -iE 'nvrm|xid'`; reboot; if it happens again, reseat or "
        "replace the card",
    )
