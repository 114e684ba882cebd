"""Rules of advice on work that does not fill its GPU or the memory of its node, and on reduced clocks."""

from __future__ import annotations

from fractions import Fraction
from typing import Final

from gpuledger.ledger.report.receipt.advice_case import AdviceCase, device_seconds, is_exclusive
from gpuledger.ledger.report.receipt.content import ABOUT, AT_MOST, ReceiptAdvice, ReceiptGpu, ReceiptHost
from gpuledger.ledger.report.receipt.settings import HOST_MEMORY, SMALLER_GPU, THROTTLED, WAITING
from gpuledger.ledger.report.receipt.smaller_devices import find_smaller_device
from gpuledger.ledger.report.receipt.wording import bytes_text, duration_text, join_words, ratio_text
from gpuledger.ledger.watched_time import MICRO

# Samples of at least this part of the time are enough for a mean.
_KNOWN_PART: Final = 0.5
_STEADY_MEMORY: Final = 0.8
_BUSY_CPUS: Final = 0.7
_MOST_CPUS: Final = 1.05
# Unused memory of a node that is worth advice.
_LEAST_HOST_MEMORY: Final = 16 << 30
# Beyond the highest use that was seen.
_HOST_MARGIN: Final = 1.2
# Reasons that slow a GPU with work, as people name them.
_THROTTLING: Final = {
    "power": "the power limit",
    "power_brake": "the power brake of the server",
    "thermal": "heat",
    "hardware_slowdown": "a slowdown by the hardware",
}


def judge_smaller_gpu(case: AdviceCase) -> ReceiptAdvice | None:
    """Work of one owner on one whole GPU that would fit into a MIG profile or onto a smaller card."""
    used = case.used()
    if len(used) != 1 or case.receipt["owner"] is None or _waiting_gpus(case):
        return None
    (gpu,) = used
    memory, peak, mean = gpu["memory_bytes"], gpu["memory_peak_bytes"], gpu["sm_mean"]
    if gpu["instance"] or not memory or not peak or mean is None or mean > case.settings.smaller_gpu:
        return None
    if not gpu["usage_complete"] or not _has_samples(gpu) or not is_exclusive(gpu):
        return None
    smaller = find_smaller_device(gpu["model"], memory, peak, mean)
    if smaller is None:
        return None
    name = case.names([gpu])
    text = f"{name} is larger than this work needs: {smaller.name} would be enough."
    evidence = (
        f"{name}: SM utilization {ratio_text(mean)} on average, {ratio_text(gpu['sm_peak'])} at most; "
        f"{bytes_text(peak)} of {bytes_text(memory)} memory at most"
    )
    values = {
        "device": smaller.name,
        "sm_mean": mean,
        "memory_peak_bytes": peak,
        "memory_bytes": memory,
    }
    saved = [] if smaller.part is None else [1 - smaller.part]
    return case.advice(SMALLER_GPU, text, [evidence], [gpu], values, saved, ABOUT)


def _has_samples(gpu: ReceiptGpu) -> bool:
    """Whether the SM utilization is known for enough of the time with a process."""
    known = gpu["sm_known_seconds"]
    return known > 0 and known >= _KNOWN_PART * device_seconds(gpu, gpu["resident_seconds"])


def judge_waiting(case: AdviceCase) -> ReceiptAdvice | None:
    """Low SM utilization and steady memory while the CPUs of the job are busy."""
    found = _waiting_gpus(case)
    if not found:
        return None
    gpus = [gpu for gpu, _ in found]
    text = (
        f"{case.names(gpus)} waited for input: the CPUs were busy and the SMs were not. Use more CPUs or "
        "loader workers, faster storage or decoding on the GPU, or fewer GPUs."
    )
    evidence = [f"{case.names([gpu])}: {_waiting_text(gpu, busy)}" for gpu, busy in found]
    means = [gpu["sm_mean"] or 0.0 for gpu in gpus]
    values = {"sm_mean": means, "cpu_ratio": [round(busy, 6) for _, busy in found]}
    saved = [1 - Fraction(mean).limit_denominator(MICRO) for mean in means]
    return case.advice(WAITING, text, evidence, gpus, values, saved, AT_MOST)


def _waiting_text(gpu: ReceiptGpu, busy: float) -> str:
    steady = (gpu["memory_mean_bytes"] or 0) / (gpu["memory_peak_bytes"] or 1)
    return (
        f"SM utilization {ratio_text(gpu['sm_mean'])} on average, memory steady (mean {ratio_text(steady)} "
        f"of its highest); the CPUs of the job were {ratio_text(busy)} busy"
    )


def _waiting_gpus(case: AdviceCase) -> list[tuple[ReceiptGpu, float]]:
    """The GPUs that waited for input, with the part of the CPUs' time that was used."""
    if WAITING in case.settings.without:
        return []
    found = []
    for gpu in case.used():
        host, mean = case.host_of(gpu), gpu["sm_mean"]
        busy = None if host is None else _cpu_ratio(host)
        if mean is None or mean > case.settings.waiting or busy is None or busy < _BUSY_CPUS:
            continue
        if _has_samples(gpu) and _is_steady(gpu):
            found.append((gpu, min(busy, 1.0)))
    return found


def _is_steady(gpu: ReceiptGpu) -> bool:
    """Whether the memory in use hardly changed: the program had loaded what it works on."""
    mean, peak = gpu["memory_mean_bytes"], gpu["memory_peak_bytes"]
    return mean is not None and bool(peak) and mean >= _STEADY_MEMORY * (peak or 0)


def _cpu_ratio(host: ReceiptHost) -> float | None:
    """The part of the CPU time that the job had and used; None if that is not known."""
    cpu, cores, seconds = host["cpu_seconds"], host["cores"], host["seconds"]
    if cpu is None or not cores or not seconds:
        return None
    # More than there is: the job is older than what was seen of it.
    return ratio if (ratio := cpu / (cores * seconds)) <= _MOST_CPUS else None


def judge_throttling(case: AdviceCase) -> ReceiptAdvice | None:
    """Clocks that were reduced for power or heat for a large part of the time with the GPU."""
    found = [(gpu, slowed) for gpu in case.used() if (slowed := _slowed_ratios(case, gpu))]
    if not found:
        return None
    gpus = [gpu for gpu, _ in found]
    reasons = [reason for reason in _THROTTLING if any(reason in slowed for _, slowed in found)]
    do = "report it to the administrator: the cooling or the power supply of the server limits them"
    if reasons == ["power"]:
        do = "dense work often reaches it; compare with other nodes before you request a higher limit"
    causes = join_words([_THROTTLING[reason] for reason in reasons])
    text = f"The clocks of {case.names(gpus)} were reduced by {causes}: {do}."
    evidence = [
        f"{case.names([gpu])}: by {_THROTTLING[reason]} for {ratio_text(ratio)} of "
        f"{duration_text(gpu['throttle_known_seconds'])}"
        for gpu, slowed in found
        for reason, ratio in slowed.items()
    ]
    values = {
        "ratios": [{reason: round(ratio, 6) for reason, ratio in slowed.items()} for _, slowed in found]
    }
    return case.advice(THROTTLED, text, evidence, gpus, values)


def _slowed_ratios(case: AdviceCase, gpu: ReceiptGpu) -> dict[str, float]:
    """The part of the known time by reason, of those with at least the threshold."""
    known, least = gpu["throttle_known_seconds"], case.settings.throttled
    if not known or known < case.settings.shortest:
        return {}
    ratios = {reason: gpu["throttled"].get(reason, 0.0) / known for reason in _THROTTLING}
    return {reason: min(ratio, 1.0) for reason, ratio in ratios.items() if ratio >= least and ratio > 0}


def judge_host_memory(case: AdviceCase) -> ReceiptAdvice | None:
    """Memory of the node that a job reserved and did not use."""
    found = [host for host in case.receipt["hosts"] if _has_unused_memory(case, host)]
    if not found or case.receipt["owner"] is None:
        return None
    needed = max(host["memory_peak_bytes"] or 0 for host in found) * _HOST_MARGIN
    text = (
        f"The job reserved memory of the node that it did not use: {bytes_text(needed)} would be enough, and "
        "jobs that request less start sooner."
    )
    several = len(case.receipt["nodes"]) > 1
    evidence, values = [], []
    for host in found:
        peak, limit = host["memory_peak_bytes"], host["memory_limit_bytes"]
        where = host["node"] if several else "the node"
        evidence.append(f"at most {bytes_text(peak)} of {bytes_text(limit)} memory of {where} were used")
        values.append({"node": host["node"], "memory_peak_bytes": peak, "memory_limit_bytes": limit})
    return case.advice(HOST_MEMORY, text, evidence, [], {"hosts": values})


def _has_unused_memory(case: AdviceCase, host: ReceiptHost) -> bool:
    peak, limit = host["memory_peak_bytes"], host["memory_limit_bytes"]
    is_long = (host["seconds"] or 0) >= case.settings.shortest
    # A job without a limit reserved nothing.
    if peak is None or limit is None or not host["is_limited"] or not is_long:
        return False
    return limit - peak >= _LEAST_HOST_MEMORY and peak <= case.settings.host_memory * limit
