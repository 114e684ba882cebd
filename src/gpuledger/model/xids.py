"""The meaning of the Xids, the error codes in the kernel log of NVIDIA's driver."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

XID_MEANINGS: Final[Mapping[int, str]] = {
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
