"""What a user sets about the kubelet's word on who holds which device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from gpuledger.model.settings import Reload, duration, setting, text, words
from gpuledger.model.text import wanted_name

SOCKET: Final = "/var/lib/kubelet/pod-resources/kubelet.sock"
CHECKPOINT: Final = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"
RESOURCES: Final = ("nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-*")
DRIVERS: Final = ("gpu.nvidia.com",)


def _path(value: object) -> str:
    # Other programs take the address of the socket as a URL.
    path = text(value).strip().removeprefix("unix://")
    if not path.startswith("/"):
        raise ValueError(f"an absolute path such as {SOCKET} is wanted")
    return path


_name = wanted_name("names such as nvidia.com/gpu or nvidia.com/mig-* are wanted")


@dataclass(frozen=True, slots=True)
class PodResourcesSettings:
    """Where the kubelet is asked, and which of what it hands out are GPUs."""

    reload: ClassVar[Reload] = Reload()

    socket: str = setting(
        "kubernetes.pod_resources_socket",
        _path,
        SOCKET,
        "the kubelet's pod-resources socket, which tells who holds which GPU",
        flags=("--pod-resources-socket",),
        metavar="PATH",
    )
    checkpoint: str = setting(
        "kubernetes.device_plugin_checkpoint",
        _path,
        CHECKPOINT,
        "the kubelet's own record of device plugins, read where the socket is not to be reached",
        flags=("--device-plugin-checkpoint",),
        metavar="FILE",
    )
    resources: tuple[str, ...] = setting(
        "kubernetes.resources",
        words(_name),
        RESOURCES,
        "resource names under which device plugins hand out GPUs, comma-separated; a trailing * stands for "
        "any ending",
        flags=("--kubernetes-resources",),
        metavar="LIST",
    )
    drivers: tuple[str, ...] = setting(
        "kubernetes.dra_drivers",
        words(_name),
        DRIVERS,
        "DRA drivers that hand out GPUs, comma-separated",
        flags=("--kubernetes-dra-drivers",),
        metavar="LIST",
    )
    period: float = setting(
        "kubernetes.pod_resources_period",
        duration(lowest=1.0, highest=3600.0),
        10.0,
        "how often the kubelet is asked",
        flags=("--pod-resources-period",),
        metavar="DURATION",
    )
