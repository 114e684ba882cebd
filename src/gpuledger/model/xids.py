"""The Xids, the error codes in the kernel log of NVIDIA's driver: their meaning, and what to do.

The actions are those of NVIDIA's Xid catalog (docs.nvidia.com/deploy/xid-errors, "immediate action"); for
Xids that it does not name or does not use, nothing is advised.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

Level = Literal["failure", "warning", "info"]


class XidAction(NamedTuple):
    """How serious an Xid with this action is for the GPU, and what to do, as a sentence."""

    level: Level
    advice: str


class Xid(NamedTuple):
    """What happened, in our words; NVIDIA's name of the action; and NVIDIA's text, if DCGM has one."""

    meaning: str
    action: str
    text: str = ""


_DRAIN: Final = "move its jobs away, then run `nvidia-smi --gpu-reset -i {gpu}` as root, or reboot"
XID_ACTIONS: Final[Mapping[str, XidAction]] = {
    "RESTART_APP": XidAction(
        "info", "restart the application; if it happens again with others on this GPU, test the card"
    ),
    "IGNORE": XidAction("info", "nothing, unless it is frequent: then contact NVIDIA's support"),
    "RESET_GPU": XidAction("failure", f"{_DRAIN}; if it happens again, contact NVIDIA's support"),
    "RESTART_BM": XidAction(
        "failure",
        "drain the node and power-cycle the machine; if it happens again, reseat or replace the card",
    ),
    "RESTART_VM": XidAction("warning", "restart the virtual machine"),
    "CONTACT_SUPPORT": XidAction("failure", "run nvidia-bug-report.sh and contact NVIDIA's support"),
    "CHECK_MECHANICALS": XidAction(
        "failure", "check that the card is seated and its power cables are connected"
    ),
    "CHECK_UVM": XidAction(
        "warning", "look for an error of nvidia-uvm in the kernel log, and restart what used the GPU"
    ),
    "UPDATE_SWFW": XidAction("warning", "update the driver and the firmware"),
    "WORKFLOW_XID_45": XidAction(
        "info", "see the Xid before it; without one, restart nvidia-fabricmanager and the application"
    ),
    "WORKFLOW_XID_48": XidAction(
        "failure", f"{_DRAIN}; with Xid 63 or 64, or if it happens again, test the card and replace it"
    ),
    "WORKFLOW_NVLINK_ERR": XidAction(
        "failure", f"{_DRAIN}; if it happens again on the same link, check the connection and contact support"
    ),
    # Some need nothing: the driver says which by Xid 154 and the recovery action.
    "WORKFLOW_NVLINK5_ERR": XidAction(
        "warning",
        "look for the unit and the status of the link in the kernel log, and for Xid 154 with the action "
        f"that is needed: {_DRAIN}",
    ),
    "XID_154": XidAction("warning", "do what the recovery action of the GPU says (`nvidia-smi -q`)"),
    "": XidAction("warning", "look it up in NVIDIA's Xid catalog, and for details in the kernel log (dmesg)"),
}

_COPY: Final = Xid("a copy engine failed", "RESTART_APP")
_DECODER: Final = Xid("the video decoder failed", "RESTART_APP")
_JPEG: Final = Xid("the JPEG decoder failed", "RESTART_APP")
_COMMANDS: Final = "the GPU received invalid commands"
_FIRMWARE: Final = "the firmware of the graphics engine reported an error"
_FABRIC: Final = "WORKFLOW_NVLINK5_ERR"

XIDS: Final[Mapping[int, Xid]] = {
    0: Xid("no error", "IGNORE", "No Error"),
    8: Xid("the GPU stopped processing a channel", "RESTART_APP", "GPU stopped processing"),
    11: Xid(_COMMANDS, "RESTART_APP"),
    13: Xid(
        "a kernel did something illegal, such as an access out of bounds",
        "RESTART_APP",
        "Graphics Engine Exception",
    ),
    25: Xid(_COMMANDS, "RESTART_APP"),
    31: Xid("an application used an invalid memory address", "RESTART_APP", "GPU memory page fault"),
    32: Xid(_COMMANDS, "RESTART_APP", "Invalid or corrupted push buffer stream"),
    37: Xid(_FIRMWARE, "IGNORE"),
    38: Xid(_FIRMWARE, "IGNORE", "Driver firmware error"),
    **dict.fromkeys((39, 40, 41, 70, 71, 72, 75, 76, 77, 85, *range(126, 136)), _COPY),
    43: Xid("an application ran into an error and was stopped", "IGNORE", "GPU stopped processing"),
    44: Xid("the graphics engine failed while it switched between applications", "IGNORE"),
    45: Xid("an application was removed because of an earlier error", "WORKFLOW_XID_45"),
    46: Xid("the GPU stopped processing", "RESET_GPU"),
    48: Xid("a memory error that ECC cannot correct", "WORKFLOW_XID_48", "Double Bit ECC Error"),
    54: Xid("the auxiliary power of the card is not connected", "CHECK_MECHANICALS"),
    60: Xid("the security processor failed", "RESTART_APP"),
    61: Xid(
        "the power controller of the GPU hit a breakpoint",
        "CONTACT_SUPPORT",
        "Internal micro-controller breakpoint/warning",
    ),
    62: Xid("the power controller of the GPU halted", "RESET_GPU", "Internal micro-controller halt"),
    63: Xid(
        "a memory row or page with errors is taken out of use at the next reset",
        "IGNORE",
        "ECC page retirement or row remapping recording event",
    ),
    64: Xid(
        "a memory row or page with errors could not be taken out of use",
        "RESET_GPU",
        "ECC page retirement or row remapper recording failure",
    ),
    66: Xid("the driver made an illegal access", "IGNORE"),
    67: Xid("the driver made an illegal access", "IGNORE"),
    68: _DECODER._replace(text="NVDEC0 Exception"),
    69: Xid(_COMMANDS, "RESTART_APP", "Graphics Engine class error"),
    74: Xid("an NVLink has errors", "WORKFLOW_NVLINK_ERR", "NVLINK Error"),
    78: Xid("a vGPU could not start", "UPDATE_SWFW"),
    79: Xid(
        "the GPU cannot be reached over PCIe: it has fallen off the bus",
        "RESTART_BM",
        "GPU has fallen off the bus",
    ),
    80: Xid("data was damaged on the way to the GPU", "RESTART_APP"),
    **dict.fromkeys((82, *range(99, 106)), _JPEG),
    **dict.fromkeys((83, 84, 88, 89, 96, 97, 98), _DECODER),
    86: Xid("the optical flow engine failed", "RESTART_APP"),
    92: Xid("many memory errors, which ECC corrects", "IGNORE", "High single-bit ECC error rate"),
    93: Xid("the InfoROM was written more often than allowed", "IGNORE"),
    94: Xid("a memory error that hit one application only", "RESTART_APP", "Contained ECC error"),
    95: Xid("a memory error that may have hit all applications", "RESET_GPU", "Uncontained ECC error"),
    106: Xid("a test message of the management bus", "IGNORE"),
    107: Xid("a test message of the management bus", "IGNORE"),
    108: Xid("a remote GPU used an invalid address over NVLink", "IGNORE"),
    109: Xid(
        "the GPU could not switch between applications in time", "RESET_GPU", "Context Switch Timeout Error"
    ),
    110: Xid("a security fault", "RESET_GPU"),
    119: Xid("the GPU's system processor (GSP) does not answer", "RESET_GPU", "GSP RPC Timeout"),
    120: Xid("the GPU's system processor (GSP) failed", "RESET_GPU", "GSP Error"),
    121: Xid("the link between CPU and GPU (C2C) has errors", "IGNORE", "C2C Link Error"),
    136: Xid("an NVLink could not be trained", "RESET_GPU"),
    137: Xid(
        "a remote GPU made an access over NVLink that it may not make", "IGNORE", "NVLink Privilege Error"
    ),
    139: Xid("the optical flow engine failed", "RESTART_APP"),
    140: Xid("memory errors that ECC could not correct", "RESET_GPU", "Unrecovered ECC Error"),
    141: Xid("an error in a fast path of CUDA", "IGNORE"),
    142: Xid("the video encoder failed", "CONTACT_SUPPORT"),
    143: Xid("the GPU could not be initialized", "RESET_GPU", "GPU Initialization Failure"),
    **dict.fromkeys(
        (144, 145, 146, 147, 148, 150), Xid("an NVLink of the fifth generation has errors", _FABRIC)
    ),
    149: Xid("an NVLink of the fifth generation has errors", _FABRIC, "NVLINK: NETIR Error"),
    151: Xid("the keys of confidential computing could not be rotated", "RESTART_VM"),
    152: Xid("the deep learning accelerator failed", "IGNORE"),
    153: Xid("the deep learning accelerator failed", "IGNORE"),
    154: Xid(
        "the action that the GPU needs to recover has changed", "XID_154", "GPU Recovery Action Changed"
    ),
    155: Xid("the driver found an error of an NVLink", "RESET_GPU"),
    156: Xid("a part of the GPU with errors is taken out of use at the next reset", "RESET_GPU"),
    157: Xid("a part of the GPU with errors could not be taken out of use", "IGNORE"),
    158: Xid("the GPU stopped answering in time", "RESET_GPU"),
    159: Xid("the link to the CPU's memory has errors", "CHECK_UVM"),
    160: Xid("a memory channel with errors is taken out of use", "IGNORE"),
    161: Xid("a memory channel with errors could not be taken out of use", "IGNORE"),
    162: Xid("the power smoothing of the GPU works again", ""),
    163: Xid("the power smoothing of the GPU was switched off", ""),
    164: Xid("the circuit for power smoothing is nearly worn out", ""),
    165: Xid("the circuit for power smoothing is worn out", ""),
    166: Xid("an NVLink carried data before its encryption was set up", ""),
    167: Xid("a PCIe transfer did not end in time", ""),
    168: Xid("the memory that the driver needs for itself has errors", ""),
    169: Xid("the security processor halted", ""),
    170: Xid("an NVLink reported an error of confidential computing", ""),
    171: Xid("details of Xid 48: the error was in DRAM", "WORKFLOW_XID_48", "Uncorrectable DRAM Error"),
    172: Xid("details of Xid 48: the error was in SRAM", "WORKFLOW_XID_48", "Uncorrectable SRAM Error"),
}

# NVIDIA's texts, as DCGM exports them.
XID_MEANINGS: Final[Mapping[int, str]] = {code: xid.text for code, xid in XIDS.items() if xid.text}
_UNKNOWN: Final = Xid("an Xid that gpuledger does not know", "")


def find_xid(code: int) -> Xid:
    """The Xid of this number; for an unknown one the meaning says so, and the action is empty."""
    return XIDS.get(code, _UNKNOWN)


def xid_advice(code: int, bus_id: str = "") -> str:
    """What to do after this Xid; `bus_id` is the GPU's PCI bus id."""
    return XID_ACTIONS[find_xid(code).action].advice.format(gpu=bus_id or "BUS_ID")
