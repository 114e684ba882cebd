"""What an exporter's pod has of its node and of its configuration: each mount with its volume."""

from __future__ import annotations

from typing import Final

from gpuledger.operator.render.collectors import CSV_FILE
from gpuledger.operator.render.gpu import gpu_mounts
from gpuledger.operator.render.names import Manifest, Naming
from gpuledger.operator.spec import Exporter

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
