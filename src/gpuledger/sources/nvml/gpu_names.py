"""GPUs in a line of text."""

from __future__ import annotations

from collections.abc import Iterable

from gpuledger.sources.nvml.probe import GpuAnswer


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
