"""A receipt in a few sentences, for places with little room: Kubernetes Events and the line of a log."""

from __future__ import annotations

from typing import Final

from gpuledger.ledger.report.receipt.content import Amounts, ReceiptGpu, ReceiptJson, gpu_label
from gpuledger.ledger.report.receipt.wording import (
    bytes_text,
    duration_text,
    energy_text,
    hours_text,
    money_text,
    ratio_text,
)

# GPUs that are named one by one.
_MOST_NAMED: Final = 4


def receipt_sentence(receipt: ReceiptJson, limit: int = 1024) -> str:
    """What was used, then the most important advice, in at most `limit` bytes of UTF-8.

    Whole sentences are omitted from the end if there is no room for them.
    """
    text = ""
    for sentence in (_summary(receipt), _use(receipt["gpus"]), *(one["text"] for one in receipt["advice"])):
        longer = " ".join(filter(None, (text, sentence)))
        if len(longer.encode()) > limit:
            break
        text = longer
    return text


def _summary(receipt: ReceiptJson) -> str:
    """The billed time, the energy and the cost: `Had 2 GPUs (NVIDIA H100) for 3h12m: 6.4 GPU-hours`."""
    gpus = receipt["gpus"]
    models = sorted({gpu["model"] for gpu in gpus if gpu["model"]})
    shown = f" ({', '.join(models)})" if models else ""
    kinds = {bool(gpu["instance"]) for gpu in gpus}
    kind = "device" if len(kinds) > 1 else "MIG instance" if kinds == {True} else "GPU"
    count = f"{len(gpus)} {kind}" + ("" if len(gpus) == 1 else "s")
    begins, ends = receipt["begins"], receipt["ends"]
    lasting = "" if begins is None or ends is None else f" for {duration_text(ends - begins)}"
    where = f" on {len(receipt['nodes'])} nodes" if len(receipt["nodes"]) > 1 else ""
    return f"Had {count}{shown}{where}{lasting}: {', '.join(_amounts(receipt))}."


def lacks_energy(receipt: ReceiptJson) -> bool:
    """Whether the known energy leaves out GPUs that were not measured."""
    is_known = receipt["total"]["millijoules"] is not None
    return is_known and any(gpu["millijoules"] is None for gpu in receipt["gpus"])


def _amounts(receipt: ReceiptJson) -> list[str]:
    total, found = receipt["total"], []
    if total["gpu_microseconds"] is not None:
        found.append(f"{hours_text(total['gpu_microseconds'])} GPU-hours")
    if total["millijoules"] is not None:
        more = " without GPUs that were not measured" if lacks_energy(receipt) else _bounds(total)
        found.append(f"{energy_text(total['millijoules'])}{more}")
    if total["cost"] is not None:
        found.append(money_text(total["cost"], receipt["currency"]))
    return found or ["what it used is not known"]


def _bounds(total: Amounts) -> str:
    low, high = total["measured_millijoules"], total["high_millijoules"]
    if low is None or high is None or low == high:
        return ""
    return f" (between {energy_text(low)} and {energy_text(high)})"


def _use(gpus: list[ReceiptGpu]) -> str:
    """Utilization and memory by GPU, of a few: `GPU 0: SM 41 %, memory 35.0 GiB of 80.0 GiB at most.`"""
    if not gpus or len(gpus) > _MOST_NAMED:
        return ""
    nodes = [gpu["node"] for gpu in gpus]
    texts = []
    for gpu in gpus:
        parts = []
        mean = mean_utilization(gpu)
        if mean is not None:
            parts.append(f"SM {ratio_text(mean)}")
        if gpu["memory_peak_bytes"] is not None and gpu["memory_bytes"]:
            memory = f"{bytes_text(gpu['memory_peak_bytes'])} of {bytes_text(gpu['memory_bytes'])}"
            parts.append(f"memory {memory} at most")
        if parts:
            texts.append(f"GPU {gpu_label(gpu, nodes)}: {', '.join(parts)}")
    return f"{'; '.join(texts)}." if texts else ""


def mean_utilization(gpu: ReceiptGpu) -> float | None:
    """The mean SM utilization (a ratio) over the whole time in which the owner had the GPU.

    Time without a process counts as 0. None if it is not known: there were processes of which the driver
    does not report the utilization, or nobody looked.
    """
    present = gpu["present_seconds"]
    if not present:
        return None
    if not gpu["sm_known_seconds"]:
        # Without a process there is nothing to sample: 0, if all of the time was seen.
        idle = gpu["resident_seconds"] == 0 and not gpu["unknown_seconds"]
        return 0.0 if idle else None
    # Of an instance, the seconds of the row are those of its part of the GPU.
    resident = (gpu["resident_seconds"] or 0.0) / (gpu["sm_share"] or 1.0)
    mean = gpu["sm_seconds"] / gpu["sm_known_seconds"]
    return min(1.0, mean * min(1.0, max(resident, gpu["sm_known_seconds"]) / present))
