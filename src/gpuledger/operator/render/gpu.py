"""How a container comes by the driver. Nothing here requests a GPU, which would take one away."""

from __future__ import annotations

from typing import Final

from gpuledger.operator.render.names import Manifest
from gpuledger.operator.render.pods import variable
from gpuledger.operator.spec import Exporter

_VISIBLE: Final = "NVIDIA_VISIBLE_DEVICES"
_LIST: Final = "/var/run/nvidia-container-devices"
_DRIVER: Final = "/usr/local/nvidia"


def gpu_env(exporter: Exporter) -> list[Manifest]:
    """What the container toolkit is asked for; for mode host, where the library is."""
    if exporter.made_up:
        return []
    if exporter.on_host:
        return [variable("LD_LIBRARY_PATH", f"{_DRIVER}/lib64")]
    wanted = {"env": "all", "volume-list": _LIST, "cdi": exporter.gpu_access.cdi_device}
    return [
        variable(_VISIBLE, wanted[exporter.gpu_access.mode]),
        variable("NVIDIA_DRIVER_CAPABILITIES", "utility"),
    ]


def gpu_mounts(exporter: Exporter) -> list[tuple[Manifest, Manifest]]:
    """Mount and volume of each thing that must be there."""
    access = exporter.gpu_access
    if exporter.made_up:
        return []
    if access.mode == "volume-list":
        return [_mount("gpus", f"{_LIST}/all", {"path": "/dev/null"})]
    if not exporter.on_host:
        return []
    if access.driver_dir:
        return [_mount("driver", _DRIVER, {"path": access.driver_dir, "type": "Directory"})]
    library = f"{_DRIVER}/lib64/libnvidia-ml.so.1"
    found = [_mount("driver-library", library, {"path": access.library, "type": "File"})]
    if exporter.accounting or exporter.source == "smi":
        program = f"{_DRIVER}/bin/nvidia-smi"
        found.append(_mount("nvidia-smi", program, {"path": access.smi, "type": "File"}))
    return found


def security(exporter: Exporter) -> Manifest:
    """Root, whose the kubelet's files are, with named capabilities; privileged with the host's driver."""
    made: Manifest = {"runAsUser": 0, "runAsNonRoot": False, "readOnlyRootFilesystem": True}
    if exporter.on_host:
        return {**made, "privileged": True, "allowPrivilegeEscalation": True}
    wanted = list(dict.fromkeys((*exporter.capabilities, *(["SYS_ADMIN"] if exporter.sys_admin else []))))
    capabilities = {"drop": ["ALL"], **({"add": wanted} if wanted else {})}
    return {**made, "privileged": False, "allowPrivilegeEscalation": False, "capabilities": capabilities}


def _mount(name: str, path: str, host: Manifest) -> tuple[Manifest, Manifest]:
    return {"name": name, "mountPath": path, "readOnly": True}, {"name": name, "hostPath": host}
