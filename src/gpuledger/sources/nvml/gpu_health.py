"""What `doctor` says of metrics that only some cards have, and of memory that wears out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from gpuledger.model.checks import Finding, fails, skipped, unknown, warning, works
from gpuledger.sources.nvml.gpu_names import numbered
from gpuledger.sources.nvml.probe import GpuAnswer

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
