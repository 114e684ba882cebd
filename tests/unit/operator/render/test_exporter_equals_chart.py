"""The exporters of a GpuMonitor are the same as those of the chart with the corresponding values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

import chart
from chart import load_container_settings
from unit.operator.support import (
    Json,
    container,
    gpu_monitor,
    only_object,
)

# Fields of `exporter`, and the values of the chart with the same meaning.
SAME: dict[str, tuple[Json, Json]] = {
    "defaults": ({}, {}),
    "nodes": ({"nodeSelector": {"pool": "a"}}, {"nodeSelector": {"pool": "a"}}),
    "tolerations": (
        {"tolerations": [{"key": "gpu", "operator": "Exists"}]},
        {"tolerations": [{"key": "gpu", "operator": "Exists"}]},
    ),
    "dialects": ({"dialects": ["process", "native"]}, {"dialect": ["process", "native"]}),
    "volume list": ({"gpuAccess": {"mode": "volume-list"}}, {"gpuAccess": {"mode": "volume-list"}}),
    "cdi": (
        {"gpuAccess": {"mode": "cdi"}, "runtimeClassName": "nvidia"},
        {"gpuAccess": {"mode": "cdi"}, "runtimeClassName": "nvidia"},
    ),
    "host": (
        {"gpuAccess": {"mode": "host"}, "accounting": True, "source": "smi"},
        {"gpuAccess": {"mode": "host"}, "accounting": {"enable": True}, "source": "smi"},
    ),
    "GKE": (
        {"gpuAccess": {"mode": "host", "driverDir": "/home/kubernetes/bin/nvidia"}},
        {"gpuAccess": {"mode": "host", "host": {"driverDir": "/home/kubernetes/bin/nvidia"}}},
    ),
    "accounting": ({"accounting": True}, {"accounting": {"enable": True}}),
    "web config": (
        {
            "webConfig": {
                "secret": "web",
                "key": "web.yml",
                "scheme": "https",
                "probe": "http",
                "tlsSecret": "gpuledger-tls",
            }
        },
        {"web": {"existingSecret": "web", "key": "web.yml", "scheme": "https", "tlsSecret": "gpuledger-tls"}},
    ),
    "client certificates": (
        {"webConfig": {"secret": "web", "scheme": "https", "probe": "tcp"}},
        {"web": {"existingSecret": "web", "scheme": "https", "probe": "tcp"}},
    ),
    "GPU Operator": (
        {"followGpuOperator": {"enabled": True}, "accounting": True},
        {"followGpuOperator": {"enabled": True}, "accounting": {"enable": True}},
    ),
    "GPU Operator elsewhere": (
        {"followGpuOperator": {"enabled": True, "deployLabel": "a/b", "validationsDir": "/v"}},
        {"followGpuOperator": {"enabled": True, "deployLabel": "a/b", "validationsDir": "/v"}},
    ),
    "simulator": ({"source": "simulator:workstation"}, {"source": "simulator:workstation"}),
    "recording": ({"source": "replay:/r/a"}, {"source": "replay:/r/a"}),
    "nvidia-smi beside drm": (
        {"gpuAccess": {"mode": "host"}, "source": "smi+drm"},
        {"gpuAccess": {"mode": "host"}, "source": "smi+drm"},
    ),
    "devices": (
        {"devices": [0, "GPU-5c1b8e8e"], "gpuCount": 2},
        {"gpu": {"devices": [0, "GPU-5c1b8e8e"], "count": 2}},
    ),
    "ports": (
        {"port": 9500, "extraPorts": [{"name": "smi", "port": 9835, "dialects": ["smi"]}]},
        {"port": 9500, "extraPorts": [{"name": "smi", "port": 9835, "dialects": ["smi"]}]},
    ),
    "collectors": (
        {"collectors": "DCGM_FI_DEV_GPU_TEMP, gauge, t\n"},
        {"dcgm": {"collectors": "DCGM_FI_DEV_GPU_TEMP, gauge, t\n"}},
    ),
    "paths": (
        {"kubeletDir": "/k", "podLogs": "/l", "passwdFile": "/p", "stateDir": "/s", "metricsPath": "/m"},
        {
            "kubelet": {"dir": "/k", "podLogs": "/l"},
            "host": {"passwdFile": "/p"},
            "state": {"dir": "/s"},
            "metricsPath": "/m",
        },
    ),
    "no ledger": ({"stateDir": ""}, {"state": {"dir": ""}}),
    "names": (
        {"podNames": "logs", "podLabelAllowlist": ["app"]},
        {"kubernetes": {"names": "logs", "podLabelAllowlist": ["app"]}},
    ),
    "page": ({"webPage": "off"}, {"web": {"page": False}}),
    "configuration": (
        {"config": {"interval": "2s", "process.max_per_device": 64}},
        {"config": {"interval": "2s", "process.max_per_device": 64}},
    ),
    "permissions": (
        {
            "capabilities": ["SYS_PTRACE", "NET_ADMIN"],
            "sysAdmin": True,
            "hostPID": False,
            "hostNetwork": True,
        },
        {
            "capabilities": ["SYS_PTRACE", "NET_ADMIN"],
            "sysAdmin": True,
            "hostPID": False,
            "hostNetwork": True,
        },
    ),
    "update": (
        {"updateStrategy": {"type": "RollingUpdate", "maxUnavailable": 3}},
        {"updateStrategy": {"rollingUpdate": {"maxUnavailable": 3}}},
    ),
    "resources": ({"resources": {"limits": {"memory": "1Gi"}, "requests": {"cpu": 1}}}, {}),
}


def by_name(listed: Any) -> dict[str, Any]:
    return {one["name"]: one for one in listed}


@pytest.mark.parametrize(("exporter", "values"), SAME.values(), ids=SAME)
def test_a_resource_renders_the_same_pods_as_the_chart(exporter: Json, values: Json) -> None:
    (expected,) = chart.of_kind("DaemonSet", values, name="gpumonitor-gpus-exporter-gpuledger")
    actual = only_object("DaemonSet", gpu_monitor({"exporter": exporter, "agent": {"enabled": False}}))
    expected_pod, actual_pod = (body["spec"]["template"]["spec"] for body in (expected, actual))
    (chart_container,), (ours,) = expected_pod.pop("containers"), actual_pod.pop("containers")
    for key in ("args", "startupProbe", "livenessProbe", "readinessProbe", "ports", "env"):
        assert ours[key] == chart_container[key], key
    for key in ("volumeMounts",):
        assert by_name(ours[key]) == by_name(chart_container[key])
    assert {**chart_container["securityContext"], "runAsNonRoot": False} == ours["securityContext"]
    if "resources" not in exporter:
        assert ours["resources"] == chart_container["resources"]
    volumes = by_name(expected_pod.pop("volumes"))
    volumes["config"]["configMap"]["name"] = "gpumonitor-gpus-exporter"
    assert by_name(actual_pod.pop("volumes")) == volumes
    for pod in (expected_pod, actual_pod):
        pod.pop("serviceAccountName")
        for init in pod.get("initContainers", ()):
            del init["image"]
    assert actual_pod == expected_pod
    assert actual["spec"]["updateStrategy"] == expected["spec"]["updateStrategy"]


@pytest.mark.parametrize(("exporter", "values"), SAME.values(), ids=SAME)
def test_a_resource_renders_the_same_settings_as_the_chart(
    exporter: Json, values: Json, tmp_path: Path
) -> None:
    data = only_object("ConfigMap", gpu_monitor({"exporter": exporter, "agent": {"enabled": False}}))["data"]
    assert yaml.safe_load(data["gpuledger.yaml"]) == chart.settings(values)
    # The program accepts it.
    load_container_settings(
        container(gpu_monitor({"exporter": exporter, "agent": {"enabled": False}})), data, tmp_path
    )
