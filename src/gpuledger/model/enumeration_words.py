"""nvidia-smi's words: for values of NVML enumerations (in lower case), and for cells without a value."""

from __future__ import annotations

from typing import Final

# nvmlDeviceGpuRecoveryAction_t.
RECOVERY_ACTIONS: Final = {
    "none": 0,
    "reset": 1,
    "gpu reset": 1,
    "reboot": 2,
    "node reboot": 2,
    "drain p2p": 3,
    "drain and reset": 4,
    "recover imex domain": 5,
    "bus reset": 6,
    "system reboot": 7,
}
# nvmlGpuFabricState_t.
FABRIC_STATES: Final = {"not supported": 0, "not started": 1, "in progress": 2, "completed": 3}

# The words of a cell without a value say why it has none.
ABSENT: Final = "[N/A]"
NO_PERMISSION: Final = "[Insufficient Permissions]"
UNKNOWN_TO_DRIVER: Final = "[Function Not Found]"
DEPRECATED: Final = "[Requested functionality has been deprecated]"
UNKNOWN_ERROR: Final = "[Unknown Error]"
# In nvml.h's words; other cells are absent because the card lacks the column.
REASONS_OF_ABSENCE: Final = {
    NO_PERMISSION: "no_permission",
    UNKNOWN_TO_DRIVER: "function_not_found",
    DEPRECATED: "deprecated",
}
