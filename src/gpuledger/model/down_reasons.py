"""Why a GPU is down, in words for people: by the driver's name of the error."""

from __future__ import annotations

from typing import Final, NamedTuple


class DownReason(NamedTuple):
    """What is wrong, as the end of a sentence about the GPU, and what to do."""

    text: str
    remedy: str


_NO_ANSWER: Final = DownReason(
    "does not answer", "look for NVRM and Xid lines in the kernel log (dmesg); reset the GPU or reboot"
)
_REASONS: Final = {
    "GPU_IS_LOST": DownReason(
        "is lost: it has fallen off the bus",
        "look for Xid 79 in the kernel log; power-cycle the machine, and reseat or replace the card if it "
        "happens again",
    ),
    "RESET_REQUIRED": DownReason(
        "requires a reset",
        "stop its processes and run `nvidia-smi --gpu-reset -i {gpu}` as root, or reboot",
    ),
    "NOT_FOUND": DownReason(
        "is not listed by the driver any more",
        "look for Xid 79 in the kernel log and the card in lspci; if it was removed or given to a virtual "
        "machine on purpose, restart gpuledger",
    ),
    "UNKNOWN": DownReason(
        "reports only errors",
        "look for NVRM and Xid lines in the kernel log (dmesg); reset the GPU or reboot",
    ),
    "NO_PERMISSION": DownReason(
        "cannot be read without more permissions", "run as a user who may open /dev/nvidia*, or as root"
    ),
}


def describe_down(reason: str) -> str:
    """What is wrong with a GPU that is down for this reason (`RESET_REQUIRED`): `requires a reset`."""
    return _REASONS.get(reason, _NO_ANSWER).text


def down_remedy(reason: str, bus_id: str = "") -> str:
    """What to do about it; `bus_id` is the GPU's PCI bus id."""
    return _REASONS.get(reason, _NO_ANSWER).remedy.format(gpu=bus_id or "BUS_ID")
