"""nvidia-smi's words for the values of NVML enumerations, in lower case."""

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
