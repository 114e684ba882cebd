"""Renders parts of the exporter's pod: mounts with their volumes, GPU access, init containers."""

from __future__ import annotations

from typing import Final

from gpuledger.dialects.dcgm.collectors import DEFAULT_COLLECTORS
from gpuledger.operator.render.naming import Manifest, Naming
from gpuledger.operator.render.pods import (
    RESTRICTED_SECURITY,
    Mounts,
    host_mount,
    image_of,
    mount,
    variable,
)
from gpuledger.operator.render_context import RenderContext
from gpuledger.operator.spec import ExporterSpec

_VISIBLE_DEVICES: Final = "NVIDIA_VISIBLE_DEVICES"
_VOLUME_LIST_DIR: Final = "/var/run/nvidia-container-devices"
_DRIVER_DIR: Final = "/usr/local/nvidia"


def gpu_env(exporter: ExporterSpec) -> list[Manifest]:
    """Variables that request GPUs from the container toolkit; for mode host, the path of the library."""
    if not exporter.reads_nvidia:
        return []
    if exporter.on_host:
        return [variable("LD_LIBRARY_PATH", f"{_DRIVER_DIR}/lib64")]
    devices = {"env": "all", "volume-list": _VOLUME_LIST_DIR, "cdi": exporter.gpu_access.cdi_device}
    return [
        variable(_VISIBLE_DEVICES, devices[exporter.gpu_access.mode]),
        variable("NVIDIA_DRIVER_CAPABILITIES", "utility"),
    ]


def gpu_mounts(exporter: ExporterSpec) -> Mounts:
    """Mounts and volumes for GPU access: the volume list, or the driver's files in mode host."""
    access = exporter.gpu_access
    if not exporter.reads_nvidia:
        return []
    if access.mode == "volume-list":
        return [host_mount("gpus", f"{_VOLUME_LIST_DIR}/all", "/dev/null")]
    if not exporter.on_host:
        return []
    if access.driver_dir:
        return [host_mount("driver", _DRIVER_DIR, access.driver_dir, "Directory")]
    library = f"{_DRIVER_DIR}/lib64/libnvidia-ml.so.1"
    mounts = [host_mount("driver-library", library, access.library, "File")]
    if exporter.accounting or exporter.runs_smi:
        mounts.append(host_mount("nvidia-smi", f"{_DRIVER_DIR}/bin/nvidia-smi", access.smi, "File"))
    return mounts


def exporter_security(exporter: ExporterSpec) -> Manifest:
    """The security context: root, to read the kubelet's files, with the configured capabilities.

    Privileged in mode host.
    """
    base: Manifest = {"runAsUser": 0, "runAsNonRoot": False, "readOnlyRootFilesystem": True}
    if exporter.on_host:
        return {**base, "privileged": True, "allowPrivilegeEscalation": True}
    # Any user may own the directory of the textfile.
    more = ["SYS_ADMIN"] * exporter.sys_admin + ["DAC_OVERRIDE"] * exporter.collects
    return base | _unprivileged(*exporter.capabilities, *more)


def _unprivileged(*capabilities: str) -> Manifest:
    added = {"add": [*dict.fromkeys(capabilities)]} if capabilities else {}
    return {
        "privileged": False,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"], **added},
    }


# The path of the collectors file in the WhatapAgent's manual; its directory is mounted.
CSV_FILE: Final = "/etc/dcgm-exporter/whatap-dcgm-exporter.csv"


def collectors_csv() -> str:
    """A collectors file with the default fields: those of the manual and of dcgm-exporter."""
    lines = ["# FIELD, TYPE, HELP: the exported fields. Lines that begin with # are comments."]
    for column in DEFAULT_COLLECTORS.columns:
        column_type = "label" if column.is_label else column.field.type
        help_text = (column.help or column.field.help).replace('"', "'")
        lines.append(f'{column.name("4.8")}, {column_type}, "{help_text}"')
    return "\n".join(lines) + "\n"


CONFIG: Final = "/etc/gpuledger/config"
WEB_CONFIG: Final = "/etc/gpuledger/web"
CSV_NAME: Final = "dcgm-exporter-csv"
CSV_KEY: Final = "whatap-gpu.csv"


def exporter_mounts(naming: Naming) -> Mounts:
    """Mounts of the exporter's container, each with its volume."""
    exporter = naming.monitor.exporter
    return [*_whatap_mounts(exporter), *gpu_mounts(exporter)] if naming.whatap else _native_mounts(naming)


def _native_mounts(naming: Naming) -> Mounts:
    exporter = naming.monitor.exporter
    found: Mounts = [
        mount("config", CONFIG, {"configMap": {"name": naming.names.exporter}}),
        *_writable_mounts(exporter),
    ]
    if not exporter.simulated:
        found += [*_kubelet_mounts(exporter, "pod-resources"), *_log_mounts(exporter)]
        if exporter.passwd_file:
            found.append(host_mount("passwd", "/etc/gpuledger/passwd", exporter.passwd_file, "File"))
    return [*found, *_web_mounts(exporter), *gpu_mounts(exporter)]


def _web_mounts(exporter: ExporterSpec) -> Mounts:
    web = exporter.web_config
    if web is None:
        return []
    secrets = {"web-config": (WEB_CONFIG, web.secret), "tls": ("/etc/gpuledger/tls", web.tls_secret)}
    return [
        mount(name, path, {"secret": {"secretName": secret}})
        for name, (path, secret) in secrets.items()
        if secret
    ]


def _whatap_mounts(exporter: ExporterSpec) -> Mounts:
    folder, _, file = CSV_FILE.rpartition("/")
    csv = {"name": CSV_NAME, "items": [{"key": CSV_KEY, "path": file}]}
    return [
        # Mount the directory: the kubelet does not update files that are mounted by subPath.
        mount("whatap-dcgm-exporter-csv", folder, {"configMap": csv}),
        *_kubelet_mounts(exporter, "pod-gpu-resources"),
        *_log_mounts(exporter),
        *_writable_mounts(exporter),
    ]


def _kubelet_mounts(exporter: ExporterSpec, pod_resources_name: str) -> Mounts:
    folders = {pod_resources_name: "pod-resources", "device-plugins": "device-plugins"}
    return [
        host_mount(name, f"/var/lib/kubelet/{folder}", f"{exporter.kubelet_dir}/{folder}")
        for name, folder in folders.items()
    ]


def _writable_mounts(exporter: ExporterSpec) -> Mounts:
    memory = {"emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}
    found = [
        mount("run", "/run/gpuledger", memory, writable=True),
        mount("tmp", "/tmp", {"emptyDir": {"sizeLimit": "256Mi"}}, writable=True),
    ]
    if exporter.stores_ledger:
        # One directory per writer: an exporter may run on the same node as a collector.
        path = exporter.state_dir + "/collector" * exporter.collects
        state = {"hostPath": {"path": path, "type": "DirectoryOrCreate"}}
        found.append(mount("state", "/var/lib/gpuledger", state, writable=True))
    if exporter.collects:
        folder = exporter.textfile.directory
        textfile = {"hostPath": {"path": folder, "type": "DirectoryOrCreate"}}
        found.append(mount("textfile", folder, textfile, writable=True))
    return found


def _log_mounts(exporter: ExporterSpec) -> Mounts:
    if exporter.pod_names not in ("auto", "logs"):
        return []
    return [
        host_mount("pod-logs", "/var/log/pods", f"{exporter.pod_logs}/pods"),
        host_mount("container-logs", "/var/log/containers", f"{exporter.pod_logs}/containers"),
    ]


_VALIDATIONS: Final = "/run/nvidia/validations"
_WAIT: Final = (
    f"until [ -f {_VALIDATIONS}/toolkit-ready ]; do "
    'echo "waiting for the GPU Operator to validate driver and toolkit"; sleep 5; done'
)


def init_containers(exporter: ExporterSpec, context: RenderContext) -> list[Manifest]:
    """The init containers, in order."""
    containers = []
    if exporter.follow_gpu_operator.enabled:
        containers.append(_wait_container(exporter, context))
    if exporter.accounting and exporter.reads_nvidia:
        containers.append(_accounting_container(exporter, context))
    return containers


def init_volumes(exporter: ExporterSpec) -> Mounts:
    """Mounts of the init containers only, each with its volume."""
    follow = exporter.follow_gpu_operator
    if not follow.enabled:
        return []
    mounted, volume = host_mount("validations", _VALIDATIONS, follow.validations_dir)
    return [({**mounted, "mountPropagation": "HostToContainer"}, volume)]


def _wait_container(exporter: ExporterSpec, context: RenderContext) -> Manifest:
    return {
        "name": "wait-for-gpu-operator",
        **image_of(exporter, context),
        "command": ["sh", "-c"],
        "args": [_WAIT],
        "env": [variable("NVIDIA_VISIBLE_DEVICES", "void")],
        "resources": {"requests": {"cpu": "5m", "memory": "8Mi"}, "limits": {"memory": "32Mi"}},
        "securityContext": {"runAsUser": 0, "privileged": False, **RESTRICTED_SECURITY},
        "volumeMounts": [mounted for mounted, _ in init_volumes(exporter)],
    }


def _accounting_container(exporter: ExporterSpec, context: RenderContext) -> Manifest:
    # The driver requires SYS_ADMIN to enable accounting mode.
    privileges = {"privileged": True} if exporter.on_host else _unprivileged("SYS_ADMIN")
    mounts = [mounted for mounted, _ in gpu_mounts(exporter)]
    return {
        "name": "enable-accounting",
        **image_of(exporter, context),
        "command": ["sh", "-c"],
        "args": [
            'PATH="/usr/local/nvidia/bin:$PATH"; nvidia-smi -am 1 || '
            'echo "could not enable accounting mode on every GPU (see above); the exporter starts without it"'
        ],
        "env": gpu_env(exporter),
        "resources": {"requests": {"cpu": "5m", "memory": "32Mi"}, "limits": {"memory": "256Mi"}},
        "securityContext": {"runAsUser": 0, "readOnlyRootFilesystem": True, **privileges},
        **({"volumeMounts": mounts} if mounts else {}),
    }
