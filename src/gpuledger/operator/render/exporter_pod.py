"""What an exporter's pod has of its node and of its configuration: each mount with its volume."""

from __future__ import annotations

from typing import Final

from gpuledger.dialects.dcgm.collectors import DEFAULT
from gpuledger.operator.facts import Facts
from gpuledger.operator.render.names import Manifest, Naming
from gpuledger.operator.render.pods import image_of, variable
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


# Where its manual has the file; it is mounted with its folder.
CSV_FILE: Final = "/etc/dcgm-exporter/whatap-dcgm-exporter.csv"


def collectors_csv() -> str:
    """The fields that are told without a file: those of the manual and dcgm-exporter's own."""
    lines = ["# FIELD, TYPE, HELP: what the exporters tell. A line that begins with # is not told."]
    for column in DEFAULT.columns:
        told = "label" if column.is_label else column.field.type
        help_text = (column.help or column.field.help).replace('"', "'")
        lines.append(f'{column.name("4.8")}, {told}, "{help_text}"')
    return "\n".join(lines) + "\n"


CONFIG: Final = "/etc/gpuledger/config"
WEB_CONFIG: Final = "/etc/gpuledger/web"
CSV_NAME: Final = "dcgm-exporter-csv"
CSV_KEY: Final = "whatap-gpu.csv"

Mounts = list[tuple[Manifest, Manifest]]


def exporter_mounts(naming: Naming) -> Mounts:
    """Of the exporter's container."""
    exporter = naming.monitor.exporter
    return [*_whatap_mounts(exporter), *gpu_mounts(exporter)] if naming.whatap else _mounts(naming)


def _mounts(naming: Naming) -> Mounts:
    exporter = naming.monitor.exporter
    found: Mounts = [
        (
            {"name": "config", "mountPath": CONFIG, "readOnly": True},
            {"name": "config", "configMap": {"name": naming.names.exporter}},
        ),
        *_scratch(exporter),
    ]
    if not exporter.made_up:
        found += [
            _host("pod-resources", "/var/lib/kubelet/pod-resources", f"{exporter.kubelet_dir}/pod-resources"),
            _host(
                "device-plugins", "/var/lib/kubelet/device-plugins", f"{exporter.kubelet_dir}/device-plugins"
            ),
        ]
        found += _log_mounts(exporter)
        if exporter.passwd_file:
            found.append(_host("passwd", "/etc/gpuledger/passwd", exporter.passwd_file, "File"))
    return [*found, *_web_mounts(exporter), *gpu_mounts(exporter)]


def _web_mounts(exporter: Exporter) -> Mounts:
    web = exporter.web_config
    if web is None:
        return []
    secrets = {"web-config": (WEB_CONFIG, web.secret), "tls": ("/etc/gpuledger/tls", web.tls_secret)}
    return [
        (
            {"name": name, "mountPath": path, "readOnly": True},
            {"name": name, "secret": {"secretName": secret}},
        )
        for name, (path, secret) in secrets.items()
        if secret
    ]


def _whatap_mounts(exporter: Exporter) -> Mounts:
    folder, _, file = CSV_FILE.rpartition("/")
    csv = {"name": CSV_NAME, "items": [{"key": CSV_KEY, "path": file}]}
    return [
        # A directory: what is mounted by subPath does not follow edits.
        (
            {"name": "whatap-dcgm-exporter-csv", "mountPath": folder, "readOnly": True},
            {"name": "whatap-dcgm-exporter-csv", "configMap": csv},
        ),
        _host("pod-gpu-resources", "/var/lib/kubelet/pod-resources", f"{exporter.kubelet_dir}/pod-resources"),
        _host("device-plugins", "/var/lib/kubelet/device-plugins", f"{exporter.kubelet_dir}/device-plugins"),
        *_log_mounts(exporter),
        *_scratch(exporter),
    ]


def _scratch(exporter: Exporter) -> Mounts:
    found: Mounts = [
        (
            {"name": "run", "mountPath": "/run/gpuledger"},
            {"name": "run", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
        ),
        ({"name": "tmp", "mountPath": "/tmp"}, {"name": "tmp", "emptyDir": {"sizeLimit": "256Mi"}}),
    ]
    if exporter.keeps_books:
        books = {"path": exporter.state_dir, "type": "DirectoryOrCreate"}
        found.append(
            ({"name": "state", "mountPath": "/var/lib/gpuledger"}, {"name": "state", "hostPath": books})
        )
    return found


def _log_mounts(exporter: Exporter) -> Mounts:
    if exporter.pod_names not in ("auto", "logs"):
        return []
    return [
        _host("pod-logs", "/var/log/pods", f"{exporter.pod_logs}/pods"),
        _host("container-logs", "/var/log/containers", f"{exporter.pod_logs}/containers"),
    ]


def _host(name: str, path: str, there: str, kind: str = "") -> tuple[Manifest, Manifest]:
    source = {"path": there, **({"type": kind} if kind else {})}
    return {"name": name, "mountPath": path, "readOnly": True}, {"name": name, "hostPath": source}


_VALIDATIONS: Final = "/run/nvidia/validations"
_WAIT: Final = (
    f"until [ -f {_VALIDATIONS}/toolkit-ready ]; do "
    'echo "waiting for the GPU Operator to validate driver and toolkit"; sleep 5; done'
)


def init_containers(exporter: Exporter, facts: Facts) -> list[Manifest]:
    """In their order."""
    waiting = [_waiting(exporter, facts)] if exporter.gpu_operator.enabled else []
    turning_on = [_accounting(exporter, facts)] if exporter.accounting and not exporter.made_up else []
    return [*waiting, *turning_on]


def init_volumes(exporter: Exporter) -> list[tuple[Manifest, Manifest]]:
    """What they alone need."""
    if not exporter.gpu_operator.enabled:
        return []
    mount = {
        "name": "validations",
        "mountPath": _VALIDATIONS,
        "readOnly": True,
        "mountPropagation": "HostToContainer",
    }
    return [(mount, {"name": "validations", "hostPath": {"path": exporter.gpu_operator.validations_dir}})]


def _waiting(exporter: Exporter, facts: Facts) -> Manifest:
    return {
        "name": "wait-for-gpu-operator",
        **image_of(exporter.pods, facts),
        "command": ["sh", "-c"],
        "args": [_WAIT],
        "env": [variable("NVIDIA_VISIBLE_DEVICES", "void")],
        "resources": {"requests": {"cpu": "5m", "memory": "8Mi"}, "limits": {"memory": "32Mi"}},
        "securityContext": {
            "runAsUser": 0,
            "privileged": False,
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [mount for mount, _ in init_volumes(exporter)],
    }


def _accounting(exporter: Exporter, facts: Facts) -> Manifest:
    made: Manifest = {"runAsUser": 0, "readOnlyRootFilesystem": True}
    if exporter.on_host:
        made["privileged"] = True
    else:
        # The driver lets nobody without SYS_ADMIN turn it on.
        made |= {
            "privileged": False,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"], "add": ["SYS_ADMIN"]},
        }
    mounts = [mount for mount, _ in gpu_mounts(exporter)]
    return {
        "name": "enable-accounting",
        **image_of(exporter.pods, facts),
        "command": ["sh", "-c"],
        "args": [
            'PATH="/usr/local/nvidia/bin:$PATH"; nvidia-smi -am 1 || '
            'echo "accounting mode is not on for every GPU (see above); the exporter starts without"'
        ],
        "env": gpu_env(exporter),
        "resources": {"requests": {"cpu": "5m", "memory": "32Mi"}, "limits": {"memory": "256Mi"}},
        "securityContext": made,
        **({"volumeMounts": mounts} if mounts else {}),
    }
