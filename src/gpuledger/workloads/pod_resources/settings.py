"""Settings of the kubelet's device allocations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from gpuledger.model.settings import ReloadPolicy, comma_separated, duration, option, setting, text
from gpuledger.model.text import name_pattern

SOCKET_PATH: Final = "/var/lib/kubelet/pod-resources/kubelet.sock"


def _path(value: object) -> str:
    # Accept a URL too, as other programs do.
    path = text(value).strip().removeprefix("unix://")
    if not path.startswith("/"):
        raise ValueError(f"expected an absolute path such as {SOCKET_PATH}")
    return path


_resource_pattern = name_pattern("expected names such as nvidia.com/gpu or nvidia.com/mig-*")


@dataclass(frozen=True)
class PodResourcesSettings:
    """Paths of the kubelet's socket and checkpoint, and the resources and DRA drivers that are GPUs."""

    reload: ClassVar[ReloadPolicy] = ReloadPolicy()

    socket: str = option(
        "kubernetes.pod_resources_socket",
        _path,
        SOCKET_PATH,
        "the kubelet's pod-resources socket, which lists the GPUs allocated to pods",
        metavar="PATH",
    )
    checkpoint: str = option(
        "kubernetes.device_plugin_checkpoint",
        _path,
        "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint",
        "the kubelet's checkpoint of device plugin allocations, read if the socket is not reachable",
        metavar="FILE",
    )
    resources: tuple[str, ...] = setting(
        "kubernetes.resources",
        comma_separated(_resource_pattern),
        (
            *("nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-*", "volcano.sh/vgpu-number"),
            *("amd.com/gpu", "amd.com/spx_*", "amd.com/dpx_*", "amd.com/tpx_*", "amd.com/qpx_*"),
            *("amd.com/cpx_*", "gpu.intel.com/i915", "gpu.intel.com/xe"),
        ),
        "resource names under which device plugins allocate GPUs, comma-separated; a trailing * matches any "
        "ending",
        flags=("--kubernetes-resources",),
    )
    drivers: tuple[str, ...] = setting(
        "kubernetes.dra_drivers",
        comma_separated(_resource_pattern),
        ("gpu.nvidia.com", "hami-core-gpu.project-hami.io", "gpu.amd.com", "gpu.intel.com"),
        "DRA drivers that allocate GPUs, comma-separated",
        flags=("--kubernetes-dra-drivers",),
    )
    period: float = option(
        "kubernetes.pod_resources_period",
        duration(lowest=1.0, highest=3600.0),
        10.0,
        "interval between calls to the kubelet",
    )
