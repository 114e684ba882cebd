"""What Xid errors are called in NVIDIA's Xid catalogue: the `err_msg` label, for those that servers meet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gpuledger.model.page import Page
from gpuledger.model.snapshot import Reading, Snapshot

# The part of a tick that drains the driver's events.
_EVENTS: Final = "events"

MESSAGES: Final[Mapping[int, str]] = {
    0: "No Error",
    8: "GPU stopped processing",
    13: "Graphics Engine Exception",
    31: "GPU memory page fault",
    32: "Invalid or corrupted push buffer stream",
    38: "Driver firmware error",
    43: "GPU stopped processing",
    48: "Double Bit ECC Error",
    61: "Internal micro-controller breakpoint/warning",
    62: "Internal micro-controller halt",
    63: "ECC page retirement or row remapping recording event",
    64: "ECC page retirement or row remapper recording failure",
    68: "NVDEC0 Exception",
    69: "Graphics Engine class error",
    74: "NVLINK Error",
    79: "GPU has fallen off the bus",
    92: "High single-bit ECC error rate",
    94: "Contained ECC error",
    95: "Uncontained ECC error",
    109: "Context Switch Timeout Error",
    119: "GSP RPC Timeout",
    120: "GSP Error",
    121: "C2C Link Error",
    137: "NVLink Privilege Error",
    140: "Unrecovered ECC Error",
    143: "GPU Initialization Failure",
    149: "NVLINK: NETIR Error",
    154: "GPU Recovery Action Changed",
    171: "Uncorrectable DRAM Error",
    172: "Uncorrectable SRAM Error",
}


def last_xid(page: Page, snapshot: Snapshot, reading: Reading) -> int | None:
    """The Xid of a Gpu that came last: 0 for none while its events are readable, else None."""
    uuid = reading.device.uuid
    came = [xid for owner, xid in page.ledger.xid_times if owner == uuid]
    if came:
        return came[-1]
    return 0 if reading.up and _listens(snapshot, uuid) else None


def _listens(snapshot: Snapshot, uuid: str) -> bool:
    if not any(part.name == _EVENTS and part.success for part in snapshot.collected):
        return False
    return not any(
        failure.part == _EVENTS and (failure.device is None or failure.device.uuid == uuid)
        for failure in snapshot.failures
    )
