"""What `doctor` says of the GPUs: which there are, in what modes, and what is readable of each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from gpuledger.model.checks import Finding, because, fails, skipped, unknown, warning, works
from gpuledger.model.devices import Gpu, is_chosen
from gpuledger.sources.nvml.kernel import Kernel, PciGpu, same_slot
from gpuledger.sources.nvml.probe import Answer, GpuAnswer


def numbered(gpus: Iterable[GpuAnswer]) -> str:
    """`GPU 0`, or `GPUs 0-3, 5`."""
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


def health_findings(gpus: Sequence[GpuAnswer]) -> Iterator[Finding]:
    """Of GPUs that answer; nothing of one that told nothing of these."""
    yield from _profiling(gpus)
    yield from _memory(gpus)


def _profiling(gpus: Sequence[GpuAnswer]) -> Iterator[Finding]:
    have = [gpu for gpu in gpus if gpu.profiling]
    lack = [gpu for gpu in gpus if gpu.profiling is False]
    unread = [gpu for gpu in gpus if gpu.profiling_error]
    if have:
        yield works(PROFILING, _PROFILING, f"readable: {numbered(have)}")
    if lack:
        yield skipped(
            PROFILING,
            _PROFILING,
            f"NVML tells none of cards before Hopper: {numbered(lack)}; activity of SMs, pipes and DRAM is "
            "absent there, and field_supported says 0",
        )
    if unread:
        reasons = sorted({gpu.profiling_error for gpu in unread})
        yield unknown(PROFILING, _PROFILING, f"{numbered(unread)}: {'; '.join(reasons)}")


def _memory(gpus: Sequence[GpuAnswer]) -> Iterator[Finding]:
    well = [gpu for gpu in gpus if gpu.repair_pending is False and not gpu.repair_failed]
    if well:
        yield works(MEMORY, _MEMORY, f"nothing of it waits to be taken out of use: {numbered(well)}")
    for gpu in gpus:
        what = f"memory of GPU {gpu.index}"
        if gpu.repair_failed:
            yield fails(
                MEMORY,
                what,
                "a row with errors could not be replaced by a spare one",
                "drain the node and test the card with NVIDIA's field diagnostic: it counts as worn out",
            )
        elif gpu.repair_pending:
            yield warning(
                MEMORY,
                what,
                "a row or page with errors is taken out of use at the next reset",
                f"end what uses it, then `nvidia-smi --gpu-reset -i {gpu.index}`, or reboot",
            )


LISTED: Final = "gpu.listed"
PERSISTENCE: Final = "gpu.persistence"
ACCOUNTING: Final = "gpu.accounting"
MIG: Final = "gpu.mig"
PROCESSES: Final = "gpu.processes"
UTILIZATION: Final = "gpu.utilization"
PCI: Final = "gpu.pci"
POWER: Final = "gpu.power"

_WHAT: Final = {
    LISTED: "GPUs",
    PERSISTENCE: "persistence mode",
    ACCOUNTING: "accounting mode",
    MIG: "MIG",
    PROCESSES: "process lists",
    UTILIZATION: "per-process utilization",
    PCI: "GPUs on the PCI bus",
    POWER: "GPU sleep",
}
_NOT_THERE: Final = ("NOT_SUPPORTED", "FUNCTION_NOT_FOUND")
_NO_MODE: Final = "the driver tells of no such mode on this card"
_LOST: Final = {
    "GPU_IS_LOST": (
        "it fell off the bus: look for the Xid in `dmesg | grep -i xid`, drain the node and reboot; "
        "if it comes back, reseat or replace the card"
    ),
    "RESET_REQUIRED": "end what uses it, then `nvidia-smi --gpu-reset -i {index}`, or reboot",
    "NO_PERMISSION": "run as root, or as a user who may read and write /dev/nvidia{index}",
    "UNKNOWN": (
        "in a container, access to the device may have been lost (`systemctl daemon-reload` on the machine "
        "does that): restart the container; else look into `dmesg | grep -i nvrm`"
    ),
}


def gpu_findings(answer: Answer, chosen: tuple[str, ...], cause: str) -> Iterator[Finding]:
    """What the driver told of its GPUs; with a `cause` for which it told nothing, all is skipped."""
    if cause:
        for check in (LISTED, PERSISTENCE, ACCOUNTING, MIG, PROCESSES, UTILIZATION):
            yield skipped(check, _WHAT[check], because(cause))
        return
    if not answer.gpus:
        yield fails(
            LISTED,
            _WHAT[LISTED],
            f"the driver tells of none ({answer.refused or 'NO_DEVICES'})",
            "in a container set NVIDIA_VISIBLE_DEVICES=all; on the machine itself compare `lspci -d 10de:` "
            "and look into `dmesg | grep -i nvrm`",
        )
        return
    everything = sorted(answer.gpus, key=lambda gpu: gpu.index)
    gpus = [gpu for gpu in everything if not gpu.uuid or is_chosen(_gpu(gpu), chosen)]
    alive = [gpu for gpu in gpus if not gpu.error]
    yield from _listed(everything, alive, gpus, chosen)
    if alive:
        yield from _persistence(alive)
        yield from _accounting(alive)
        yield from _mig(alive)
        yield _processes(alive)
        yield from _utilization(alive)
        yield from health_findings(alive)


def _gpu(told: GpuAnswer) -> Gpu:
    return Gpu(told.uuid, told.index, told.name, told.address)


def _listed(
    everything: Sequence[GpuAnswer],
    alive: Sequence[GpuAnswer],
    gpus: Sequence[GpuAnswer],
    chosen: tuple[str, ...],
) -> Iterator[Finding]:
    if alive:
        names = ", ".join(f"{gpu.index}: {gpu.name or gpu.uuid}" for gpu in alive)
        yield works(LISTED, _WHAT[LISTED], f"{len(alive)} of {len(everything)} read ({names})")
    for gpu in gpus:
        if gpu.error:
            remedy = _LOST.get(gpu.error, "look into `dmesg | grep -i nvrm`").format(index=gpu.index)
            yield fails(LISTED, f"GPU {gpu.index}", f"does not answer: {gpu.error}", remedy)
    for name in chosen:
        if not any(gpu.uuid and is_chosen(_gpu(gpu), (name,)) for gpu in everything):
            known = ", ".join(f"{gpu.index} ({gpu.uuid})" for gpu in everything if gpu.uuid)
            yield fails(
                LISTED,
                _WHAT[LISTED],
                f"--devices names {name}, and no GPU that answers has this index, UUID or PCI bus id",
                f"name one of: {known}" if known else "leave --devices out",
            )


def _persistence(gpus: Sequence[GpuAnswer]) -> Iterator[Finding]:
    what = _WHAT[PERSISTENCE]
    off = [gpu for gpu in gpus if gpu.persistence == 0]
    on = [gpu for gpu in gpus if gpu.persistence == 1]
    if on:
        yield works(PERSISTENCE, what, f"on: {numbered(on)}")
    if off:
        yield warning(
            PERSISTENCE,
            what,
            f"off: {numbered(off)}; a GPU that nothing uses is set up anew at each use, which takes "
            "seconds, and forgets its modes and energy count",
            "`systemctl enable --now nvidia-persistenced`, or `nvidia-smi -pm 1` as root",
        )
    yield from _untold(PERSISTENCE, [(gpu, gpu.persistence_error) for gpu in gpus if gpu.persistence is None])


def _accounting(gpus: Sequence[GpuAnswer]) -> Iterator[Finding]:
    what = _WHAT[ACCOUNTING]
    cut = [gpu for gpu in gpus if gpu.mig]
    whole = [gpu for gpu in gpus if not gpu.mig]
    on = [gpu for gpu in whole if gpu.accounting == 1]
    off = [gpu for gpu in whole if gpu.accounting == 0]
    if on:
        yield works(ACCOUNTING, what, f"on: {numbered(on)}")
    if off:
        yield warning(
            ACCOUNTING,
            what,
            f"off: {numbered(off)}; processes that begin and end between two readings are lost, and of the "
            "others it is not known to the moment when they came to the GPU and left it",
            "`nvidia-smi -am 1` as root, or `--enable-accounting` with gpuledger run as root, before the "
            "processes start that it shall record; it holds until the driver is unloaded",
        )
    if cut:
        yield skipped(ACCOUNTING, what, f"the driver allows none while MIG is on: {numbered(cut)}")
    yield from _untold(ACCOUNTING, [(gpu, gpu.accounting_error) for gpu in whole if gpu.accounting is None])


def _untold(check: str, untold: Iterable[tuple[GpuAnswer, str]]) -> Iterator[Finding]:
    by_reason: dict[str, list[GpuAnswer]] = {}
    for gpu, reason in untold:
        by_reason.setdefault(reason, []).append(gpu)
    for reason, gpus in by_reason.items():
        if reason in _NOT_THERE:
            yield skipped(check, _WHAT[check], f"{_NO_MODE}: {numbered(gpus)}")
        else:
            yield unknown(check, _WHAT[check], f"{numbered(gpus)}: {reason}")


def _mig(gpus: Sequence[GpuAnswer]) -> Iterator[Finding]:
    if not any(gpu.mig or gpu.mig_error for gpu in gpus):
        yield works(MIG, _WHAT[MIG], "no GPU is cut by MIG")
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
            cut = "; ".join(f"{each.gi}_{each.ci} {each.profile} {each.uuid}" for each in gpu.instances)
            yield works(MIG, what, f"mapped by UUID (gi_ci, profile, UUID): {cut}")
        elif gpu.mig:
            yield warning(
                MIG,
                what,
                "MIG is on but the card is not cut, so no process can use it",
                f"cut it (`nvidia-smi mig -i {gpu.index} -lgip` lists profiles, `nvidia-smi mig -i "
                f"{gpu.index} -cgi PROFILE -C` cuts), or `nvidia-smi -i {gpu.index} -mig 0`",
            )


def _processes(gpus: Sequence[GpuAnswer]) -> Finding:
    unread = [gpu for gpu in gpus if gpu.processes is None]
    if not unread:
        total = sum(gpu.processes or 0 for gpu in gpus)
        return works(PROCESSES, _WHAT[PROCESSES], f"readable, {total} entries on {numbered(gpus)}")
    reasons = sorted({gpu.processes_error for gpu in unread})
    return fails(
        PROCESSES,
        _WHAT[PROCESSES],
        f"not readable on {numbered(unread)}: {'; '.join(reasons)}",
        "run as root (NO_PERMISSION), or update the driver (NOT_SUPPORTED, FUNCTION_NOT_FOUND); a vGPU host "
        "tells none for whole cards",
    )


def _utilization(gpus: Sequence[GpuAnswer]) -> Iterator[Finding]:
    what = _WHAT[UTILIZATION]
    cut = [gpu for gpu in gpus if gpu.mig]
    readable = [gpu for gpu in gpus if not gpu.mig and not gpu.utilization_error]
    unread = [gpu for gpu in gpus if not gpu.mig and gpu.utilization_error]
    if readable:
        yield works(UTILIZATION, what, f"readable: {numbered(readable)}")
    if cut:
        yield skipped(UTILIZATION, what, f"the driver tells none while MIG is on: {numbered(cut)}")
    if unread:
        reasons = sorted({gpu.utilization_error for gpu in unread})
        yield warning(
            UTILIZATION,
            what,
            f"not readable: {numbered(unread)}: {'; '.join(reasons)}; who is active cannot be told there",
            "run as root (NO_PERMISSION); cards before Maxwell and vGPU guests have none (NOT_SUPPORTED)",
        )


def pci_findings(answer: Answer, kernel: Kernel) -> Iterator[Finding]:
    """The driver's GPUs against those on the PCI bus: a card can drop out without any error."""
    what = _WHAT[PCI]
    asleep = [gpu.address for gpu in kernel.pci or () if gpu.power == "suspended"]
    if kernel.pci is None:
        yield unknown(PCI, what, "/sys/bus/pci/devices cannot be read")
    elif kernel.pci:
        yield from _compare(answer, kernel, kernel.pci)
    elif answer.gpus or kernel.wsl or kernel.tegra:
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
            _WHAT[POWER],
            f"{', '.join(asleep)} sleeps (runtime_status suspended), and each reading wakes it",
            "read seldom (`--interval 1m`), or stop gpuledger while on battery",
        )
    elif any(gpu.power for gpu in kernel.pci or ()):
        yield works(POWER, _WHAT[POWER], "no GPU is asleep, so reading wakes none")


def _compare(answer: Answer, kernel: Kernel, pci: Sequence[PciGpu]) -> Iterator[Finding]:
    what = _WHAT[PCI]
    told = {same_slot(gpu.address) for gpu in answer.gpus if gpu.address}
    nameless = any(not gpu.address for gpu in answer.gpus)
    absent = [gpu for gpu in pci if same_slot(gpu.address) not in told]
    if not answer.done or not answer.gpus or nameless:
        names = ", ".join(f"{gpu.address} ({gpu.driver or 'no driver'})" for gpu in pci)
        lost = ", ".join(gpu.address for gpu in absent)
        more = f"; the driver tells nothing of {lost}" if told and lost else ""
        yield works(PCI, what, f"{len(pci)} found: {names}{more}")
        return
    if len(absent) < len(pci):
        yield works(PCI, what, f"{len(pci) - len(absent)} of {len(pci)} are told by the driver")
    for gpu in absent:
        yield _absent(gpu, kernel, len(pci))


def _absent(gpu: PciGpu, kernel: Kernel, total: int) -> Finding:
    what = f"GPU at {gpu.address}"
    if gpu.driver and gpu.driver != "nvidia":
        if gpu.driver == "vfio-pci":
            return skipped(PCI, what, "given to a virtual machine (vfio-pci)")
        return fails(
            PCI,
            what,
            f"the kernel driver {gpu.driver} holds it, so NVIDIA's cannot",
            f"blacklist {gpu.driver} (`echo blacklist {gpu.driver} > "
            f"/etc/modprobe.d/blacklist-{gpu.driver}.conf`), rebuild the initramfs and reboot",
        )
    node_missing = gpu.minor not in kernel.minors if gpu.minor is not None else len(kernel.minors) < total
    if node_missing and not kernel.wsl:
        node = "its /dev/nvidiaN" if gpu.minor is None else f"/dev/nvidia{gpu.minor}"
        return skipped(PCI, what, f"{node} is not given to this container, so it is not read")
    return fails(
        PCI,
        what,
        "on the PCI bus, but the driver does not tell of it",
        f"look for {gpu.address} in `dmesg | grep -iE 'nvrm|xid'`; reboot; if it comes back, reseat or "
        "replace the card",
    )
