"""Renders the Helm chart in this process. Helm is imported when it is first used: that takes CPU time."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuledger.app.flags import build_parser, parse_flags
from gpuledger.config.commands import ALL_GROUPS, COLLECT_GROUPS, NODE_GROUPS
from gpuledger.config.load import load_values
from gpuledger.model.settings import build_settings
from yaml_files import load_documents, load_yaml

if TYPE_CHECKING:
    from helm_python import Chart

ROOT = Path(__file__).parents[1]
CHART = ROOT / "deploy/helm/gpuledger"
MANIFESTS = ROOT / "kubernetes"
# Settings of the commands that the chart's pods run.
GROUPS = {"serve": NODE_GROUPS, "collect": COLLECT_GROUPS}

OLDEST = "v1.20.15"
NEWEST = "v1.37.0"

Manifest = dict[str, Any]
Values = Mapping[str, Any]

# Values for each feature of the chart, for tests of all renderings.
MATRIX: Mapping[str, Values] = {
    "defaults": {},
    "process exporter": {"gpu-process-exporter": {"enabled": True}},
    "session monitoring": {"gpu-session-monitoring": {"enabled": True}},
    "both": {"gpu-process-exporter": {"enabled": True}, "gpu-session-monitoring": {"enabled": True}},
    "nodes named": {"mode": "cronjob", "cronjob": {"nodes": ["a", "b", "c"]}},
    "too many nodes": {"mode": "cronjob", "cronjob": {"nodes": [f"node-{n}" for n in range(21)]}},
    "collect": {"mode": "collect", "dialect": ["native", "process"], "textfile": {"every": "30s"}},
    "smi": {"image": {"variant": "smi"}},
    "dcgm": {
        "dialect": ["dcgm"],
        "dcgm": {"collectors": "DCGM_FI_DEV_GPU_TEMP, gauge, temperature\n"},
        "extraPorts": [{"name": "smi", "port": 9835, "dialects": ["smi"]}],
    },
    "devices": {"gpu": {"count": 8, "devices": [0, 3, "GPU-5c1b8e8e"]}},
    "volume list": {"gpuAccess": {"mode": "volume-list"}},
    "cdi": {"gpuAccess": {"mode": "cdi"}, "runtimeClassName": "nvidia"},
    "host": {"gpuAccess": {"mode": "host"}, "accounting": {"enable": True}},
    "host, GKE": {"gpuAccess": {"mode": "host", "host": {"driverDir": "/home/kubernetes/bin/nvidia"}}},
    "GPU Operator": {"followGpuOperator": {"enabled": True}, "accounting": {"enable": True}},
    "OpenShift": {"openshift": {"enabled": True}, "followGpuOperator": {"enabled": True}},
    "OpenShift, collect": {"openshift": {"enabled": True}, "mode": "collect"},
    "events": {"kubernetes": {"events": True}},
    "simulator": {"source": "simulator:workstation"},
    "TLS": {
        "web": {
            "config": {
                "tls_server_config": {
                    "cert_file": "/etc/gpuledger/tls/tls.crt",
                    "key_file": "/etc/gpuledger/tls/tls.key",
                },
                "basic_auth_users": {"prometheus": "$2y$10$abcdefghijklmnopqrstuv"},
            },
            "tlsSecret": "gpuledger-tls",
        },
        "serviceMonitor": {
            "enabled": True,
            "tlsConfig": {"insecureSkipVerify": True},
            "basicAuth": {
                "username": {"name": "scrape", "key": "user"},
                "password": {"name": "scrape", "key": "word"},
            },
        },
    },
    "web config kept elsewhere": {
        "web": {"existingSecret": "web", "key": "web.yml", "scheme": "https", "probe": "tcp"}
    },
    "client certificates": {
        "web": {
            "config": {
                "tls_server_config": {
                    "client_auth_type": "RequireAndVerifyClientCert",
                    "client_ca_file": "ca.crt",
                }
            }
        }
    },
    "monitoring": {
        "serviceMonitor": {
            "enabled": True,
            "labels": {"release": "kube-prometheus-stack"},
            "namespace": "monitoring",
            "metricRelabelings": [{"action": "drop", "regex": "x.*", "sourceLabels": ["__name__"]}],
        },
        "rules": {
            "enabled": True,
            "disabled": ["GPUXidFatal"],
            "labels": {"release": "kube-prometheus-stack"},
        },
        "dashboards": {"enabled": True, "annotations": {"grafana_folder": "GPUs"}},
        "gpu": {"count": 8},
    },
    "pod monitor": {"podMonitor": {"enabled": True}, "service": {"enabled": False}},
    "rules of a collector": {"mode": "collect", "rules": {"enabled": True}, "gpu": {"count": 4}},
    "agent": {
        "agent": {
            "enabled": True,
            "replicas": 3,
            "config": {"remote_write": [{"url": "http://store/write"}]},
            "persistence": {"enabled": False},
            "extraArgs": ["--log-level=debug"],
            "extraEnv": [{"name": "A", "value": "b"}],
            "extraVolumes": [{"name": "receiver", "secret": {"secretName": "receiver"}}],
            "extraVolumeMounts": [{"name": "receiver", "mountPath": "/etc/receiver", "readOnly": True}],
            "nodeSelector": {"pool": "system"},
        },
        "networkPolicy": {"enabled": True},
    },
    "operator": {
        "operator": {"enabled": True, "replicas": 2, "nodeSelector": {"pool": "system"}},
        "whatapCompat": {"enabled": True},
        "networkPolicy": {"enabled": True},
        "imagePullSecrets": [{"name": "registry"}],
    },
    "operator, OpenShift and the chart's exporter": {
        "operator": {"enabled": True, "defaultRemoteWrite": [{"url": "http://store/write"}]},
        "openshift": {"enabled": True},
        "mode": "daemonset",
    },
    "only the agent": {
        "mode": "none",
        "agent": {"enabled": True, "config": {"remote_write": [{"url": "http://store/write"}]}},
        "networkPolicy": {"enabled": True},
        "openshift": {"enabled": True},
    },
    "everything else": {
        "namespace": {"create": True},
        "networkPolicy": {"enabled": True, "from": [{"namespaceSelector": {}}]},
        "priorityClass": {"create": True},
        "hostNetwork": True,
        "sysAdmin": True,
        "metricsPath": "/gpu",
        "host": {"passwdFile": "/etc/passwd"},
        "kubernetes": {"names": "api", "podLabelAllowlist": ["app", "team/*"]},
        "kubelet": {"dir": "/var/snap/microk8s/common/var/lib/kubelet"},
        "state": {"dir": ""},
        "web": {"page": False},
        "commonLabels": {"team": "gpu"},
        "podLabels": {"x": "y"},
        "podAnnotations": {"x": "1"},
        "imagePullSecrets": [{"name": "registry"}],
        "image": {"registry": "mirror.example/x/", "tag": "1.2.3"},
        "config": {"interval": "2s", "log": {"format": "json"}, "process.max_per_device": 64},
        "extraArgs": ["--log-level=debug"],
        "extraEnv": [{"name": "A", "value": "b"}],
        "extraVolumes": [{"name": "extra", "emptyDir": {}}],
        "extraVolumeMounts": [{"name": "extra", "mountPath": "/extra"}],
        "command": ["python3", "-m", "gpuledger"],
        "serviceAccount": {"name": "mine", "annotations": {"x": "y"}},
        "service": {"type": "NodePort", "annotations": {"prometheus.io/scrape": "true"}},
        "nodeSelector": {"accelerator": "nvidia"},
        "updateStrategy": {"type": "OnDelete", "rollingUpdate": None},
    },
}


@cache
def chart(folder: Path = CHART) -> Chart:
    """The chart in a folder; loaded once, because loading reads all files."""
    from helm_python import Chart

    return Chart.load(folder)


# Most tests render all of MATRIX.
@lru_cache(maxsize=256)
def _rendered(folder: Path, values: str, options: str) -> Mapping[str, str]:
    """Calls the library directly: its `render` has no Kubernetes version."""
    from helm_python import _native

    rendered = _native.call_string("helm_render", chart(folder)._raw(), values, options)
    return {path.split("/templates/", 1)[1]: text for path, text in json.loads(rendered).items()}


@lru_cache(maxsize=256)
def _parsed(folder: Path, values: str, options: str) -> bytes:
    """The rendered objects, pickled: tests change theirs, and parsing them again takes longer."""
    texts = _rendered(folder, values, options).items()
    return pickle.dumps([one for path, text in texts if path != "NOTES.txt" for one in load_documents(text)])


def _rendering(
    values: Values | None = None,
    *,
    kube: str = NEWEST,
    name: str = "gpuledger",
    namespace: str = "gpus",
    folder: Path = CHART,
) -> tuple[Path, str, str]:
    """The arguments of `_rendered`."""
    options = {"name": name, "namespace": namespace, "kube_version": kube, "api_versions": []}
    return folder, json.dumps(dict(values or {})), json.dumps(options)


def files(values: Values | None = None, **options: Any) -> dict[str, str]:
    """Rendered text by template."""
    return dict(_rendered(*_rendering(values, **options)))


def problems(values: Values) -> str:
    """The error with which Helm refuses these values; empty if it renders them."""
    from helm_python import HelmError

    try:
        files(values)
    except HelmError as error:
        return str(error)
    return ""


def render(values: Values | None = None, **options: Any) -> list[Manifest]:
    """All rendered objects."""
    return list(pickle.loads(_parsed(*_rendering(values, **options))))


def notes(values: Values | None = None, **options: Any) -> str:
    """The notes that Helm prints after an install."""
    return files(values, **options)["NOTES.txt"]


def of_kind(kind: str, values: Values | None = None, **options: Any) -> list[Manifest]:
    """Rendered objects of one kind."""
    return [one for one in render(values, **options) if one["kind"] == kind]


def pod_specs(manifests: Sequence[Manifest]) -> Iterator[Manifest]:
    """Pod specifications of pods and of all workloads."""
    for one in manifests:
        if one["kind"] == "Pod":
            yield one["spec"]
        elif one["kind"] == "CronJob":
            yield one["spec"]["jobTemplate"]["spec"]["template"]["spec"]
        elif one["kind"] in ("DaemonSet", "StatefulSet", "Deployment", "Job"):
            yield one["spec"]["template"]["spec"]


def pod_spec(values: Values | None = None, **options: Any) -> Manifest:
    """Specification of the exporter's or collector's pod; the first if there are two."""
    return next(pod_specs([one for one in render(values, **options) if one["kind"] != "Pod"]))


def main_container(values: Values | None = None, **options: Any) -> Manifest:
    """The only container of the exporter's or collector's pod."""
    (container,) = pod_spec(values, **options)["containers"]
    return dict(container)


def containers(spec: Manifest) -> list[Manifest]:
    """All containers of a pod, including init containers."""
    return [*spec.get("initContainers", ()), *spec["containers"]]


def settings(values: Values | None = None, **options: Any) -> dict[str, Any]:
    """Content of gpuledger.yaml in the ConfigMap."""
    found = [one for one in of_kind("ConfigMap", values, **options) if "gpuledger.yaml" in one["data"]]
    return dict(load_yaml(found[0]["data"]["gpuledger.yaml"]))


def load_container_settings(
    container: dict[str, Any], config: dict[str, str], folder: Path
) -> dict[str, Any]:
    """Settings that gpuledger loads from a container's arguments, environment and configuration file.

    Raises GpuledgerError if gpuledger rejects them. `config` is the data of the ConfigMap.
    """
    command, *arguments = container["args"]
    for name, text in config.items():
        (folder / name).write_text(text, encoding="utf-8")
    arguments = [word.replace("/etc/gpuledger/config", str(folder)) for word in arguments]
    environment = {one["name"]: one.get("value", "node-1") for one in container["env"]}
    groups = GROUPS[command]
    given = parse_flags(build_parser(command, "", "", groups), groups.values(), arguments, environment)
    assert given.arguments == ()
    values = load_values(groups.values(), given.flags, environment, given.config, ALL_GROUPS)
    for group in groups.values():
        build_settings(group, values)
    return values
