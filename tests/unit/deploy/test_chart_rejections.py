"""Values of the chart that are rejected, by the schema or because they conflict, and values near them."""

from __future__ import annotations

from typing import Any

import pytest

from chart import files, of_kind, problems


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"modus": "daemonset"}, "modus"),
        ({"mode": "deamonset"}, "/mode"),
        ({"gpu": {"device": [0]}}, "device"),
        ({"gpu": {"count": "four"}}, "/gpu/count"),
        ({"gpu": {"count": -1}}, "/gpu/count"),
        ({"gpu-process-exporter": {"enable": True}}, "enable"),
        ({"gpu-session-monitoring": {"enabled": "yes"}}, "/gpu-session-monitoring/enabled"),
        ({"collection": {"shedule": "* * * * *"}}, "shedule"),
        ({"collection": {"resources": {"limit": {}}}}, "limit"),
        ({"resources": {"requests": {"cpu": True}}}, "/resources/requests/cpu"),
        ({"image": {"variant": "slim"}}, "/image/variant"),
        ({"image": {"digest": "abc"}}, "/image/digest"),
        ({"gpuAccess": {"mode": "privileged"}}, "/gpuAccess/mode"),
        ({"gpuAccess": {"cdiDevice": "all"}}, "/gpuAccess/cdiDevice"),
        ({"gpuAccess": {"host": {"libary": ""}}}, "libary"),
        ({"dialect": ["nativ"]}, "/dialect/0"),
        ({"dialect": "native"}, "/dialect"),
        ({"port": 70000}, "/port"),
        ({"extraPorts": [{"name": "smi", "port": 9835}]}, "dialects"),
        ({"extraPorts": [{"name": "smi", "port": 9835, "dialects": ["x"]}]}, "/extraPorts/0/dialects/0"),
        ({"extraPorts": [{"name": "SMI", "port": 9835, "dialects": ["smi"]}]}, "/extraPorts/0/name"),
        ({"web": {"page": "wide"}}, "/web/page"),
        ({"web": {"config": {"tls_config": {}}}}, "tls_config"),
        ({"kubernetes": {"names": "dns"}}, "/kubernetes/names"),
        ({"textfile": {"file": "gpu.txt"}}, "/textfile/file"),
        ({"textfile": {"every": "often"}}, "/textfile/every"),
        ({"cronjob": {"apiVersion": "batch/v2"}}, "/cronjob/apiVersion"),
        ({"capabilities": ["CAP_SYS_PTRACE,"]}, "/capabilities/0"),
        ({"tolerations": [{"key": "x", "operater": "Exists"}]}, "operater"),
        ({"serviceMonitor": {"interval": "30 s"}}, "/serviceMonitor/interval"),
        ({"serviceMonitor": {"interval": "30s1m"}}, "/serviceMonitor/interval"),
        ({"serviceMonitor": {"honourLabels": True}}, "honourLabels"),
        # Prometheus's spelling, which the API server would leave out.
        ({"serviceMonitor": {"relabelings": [{"source_labels": ["a"]}]}}, "source_labels"),
        ({"podMonitor": {"metricRelabelings": [{"target_label": "a"}]}}, "target_label"),
        ({"podMonitor": {"relabelings": [{"action": "retain"}]}}, "/podMonitor/relabelings/0/action"),
        ({"serviceMonitor": {"relabelings": [{"sourceLabels": "a"}]}}, "/relabelings/0/sourceLabels"),
        ({"serviceMonitor": {"tlsConfig": {"insecure_skip_verify": True}}}, "insecure_skip_verify"),
        # Only a ServiceMonitor has these.
        ({"podMonitor": {"tlsConfig": {"caFile": "/etc/prometheus/ca.crt"}}}, "caFile"),
        ({"podMonitor": {"basicAuth": {"user": {"name": "a", "key": "b"}}}}, "user"),
        ({"podMonitor": {"basicAuth": {"username": "me"}}}, "/podMonitor/basicAuth/username"),
        ({"extraEnv": [{"name": "A", "value": 1}]}, "/extraEnv/0/value"),
        ({"agent": {"extraEnv": [{"name": "A", "value": True}]}}, "/agent/extraEnv/0/value"),
        ({"probes": {"liveness": {"timeoutSeconds": "10"}}}, "/probes/liveness/timeoutSeconds"),
        ({"updateStrategy": {"type": "Recreate"}}, "/updateStrategy/type"),
        ({"agent": {"on": True}}, "on"),
        ({"source": "nvidia"}, "/source"),
        ({"probes": {"startup": {"periodSecond": 1}}}, "periodSecond"),
        ({"updateStrategy": {"rollingUpdate": {"maxUnavailble": 1}}}, "maxUnavailble"),
        ({"state": {"dir": "books"}}, "/state/dir"),
        ({"state": {"dir": "/"}}, "/state/dir"),
        ({"textfile": {"directory": ""}}, "/textfile/directory"),
        ({"kubelet": {"dir": "/a b"}}, "/kubelet/dir"),
        ({"gpuAccess": {"host": {"driverDir": "nvidia"}}}, "/gpuAccess/host/driverDir"),
        ({"image": {"tag": "0.2.0 "}}, "/image/tag"),
        ({"fullnameOverride": "GPU_ledger"}, "/fullnameOverride"),
        ({"mode": "cronjob", "cronjob": {"nodes": ["gpu-1", ""]}}, "/cronjob/nodes/1"),
        ({"mode": "cronjob", "cronjob": {"nodes": ["gpu-1,gpu-2"]}}, "/cronjob/nodes/0"),
        ({"agent": {"persistence": {"size": "2GB"}}}, "/agent/persistence/size"),
        ({"agent": {"config": {"remote_write": [{"name": "x"}]}}}, "url"),
    ],
)
def test_invalid_values_are_rejected_by_the_schema_and_named(values: dict[str, Any], named: str) -> None:
    message = problems(values)
    assert "values don't meet the specifications" in message
    assert named in message


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"agent": {"enabled": True}}, "agent.enabled: the agent has no receiver"),
        (
            {"whatapCompat": {"enabled": True}},
            "whatapCompat.enabled: only the operator reads WhatapAgent",
        ),
        (
            {"mode": "cronjob", "collection": {"schedule": "*/30 * * * * *"}},
            "collection.schedule: '*/30 * * * * *' has 6 fields; "
            "a Kubernetes schedule has five and no seconds",
        ),
        (
            {"gpu-session-monitoring": {"enabled": True}, "collection": {"schedule": "@every 30s"}},
            "collection.schedule: '@every 30s': a Kubernetes CronJob runs at most once per minute",
        ),
        ({"mode": "cronjob", "collection": {"schedule": "hourly"}}, "has 1 fields; expected five"),
        (
            {"mode": "cronjob", "dialect": ["process", "native"]},
            "the counters of native need a program that keeps running",
        ),
        (
            {"serviceMonitor": {"enabled": True, "relabelings": [{"sourceLabels": ["a"]}]}},
            "serviceMonitor.relabelings[0]: the action replace needs a targetLabel, so Prometheus Operator",
        ),
        (
            {"podMonitor": {"enabled": True, "relabelings": [{"action": "HashMod", "targetLabel": "a"}]}},
            "podMonitor.relabelings[0]: the action hashmod needs a modulus",
        ),
        (
            {"podMonitor": {"enabled": True, "metricRelabelings": [{"action": "drop", "regex": "up("}]}},
            "podMonitor.metricRelabelings[0]: the regex 'up(' is not a valid RE2 expression",
        ),
        (
            {"podMonitor": {"enabled": True, "relabelings": [{"action": "drop", "regex": "a)|(b"}]}},
            "the regex 'a)|(b' is not a valid RE2 expression",
        ),
        (
            {"podMonitor": {"enabled": True, "relabelings": [{"action": "labeldrop", "targetLabel": "a"}]}},
            "the action labeldrop takes only a regex",
        ),
        ({"mode": "collect", "serviceMonitor": {"enabled": True}}, "mode collect serves no metrics"),
        (
            {"mode": "collect", "textfile": {"every": "999ms"}},
            "textfile.every: 999ms is shorter than the interval of readings (1s)",
        ),
        (
            {"mode": "collect", "textfile": {"every": "0.5m"}, "config": {"interval": 31}},
            "textfile.every: 0.5m is shorter than the interval of readings (31)",
        ),
        (
            {"serviceMonitor": {"enabled": True}, "podMonitor": {"enabled": True}},
            "would scrape every pod twice",
        ),
        ({"serviceMonitor": {"enabled": True}, "service": {"enabled": False}}, "needs service.enabled"),
        (
            {"updateStrategy": {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}},
            "updateStrategy.rollingUpdate.maxSurge: a node's new pod cannot start while the old one has its "
            "ledger (state.dir), so the rollout would never end",
        ),
        (
            {
                "updateStrategy": {"rollingUpdate": {"maxSurge": "25%", "maxUnavailable": 0}},
                "state": {"dir": ""},
                "hostNetwork": True,
            },
            "ports (hostNetwork)",
        ),
        ({"image": {"repository": "gpuledger:1.0"}}, "'gpuledger:1.0:"),
        ({"image": {"repository": "mirror:5000/gpuledger:1.0"}}, "the version as image.tag or image.digest"),
        ({"image": {"repository": "gpuledger@sha256:" + "0" * 64}}, "is no image reference"),
        ({"image": {"registry": "https://mirror.example"}}, "'https://mirror.example/gpuledger:"),
        ({"image": {"repository": "oci://mirror.example/gpuledger"}}, "without a scheme"),
        ({"web": {"existingSecret": "x"}}, "set web.scheme to https if it enables TLS"),
        ({"web": {"existingSecret": "x", "scheme": "http", "config": {"rate_limit": {}}}}, "set only one"),
        ({"priorityClass": {"create": True}, "priorityClassName": "x"}, "set only one"),
        (
            {"extraPorts": [{"name": "a", "port": 9400, "dialects": ["smi"]}]},
            "a has port 9400, which port already uses",
        ),
        (
            {
                "extraPorts": [
                    {"name": "a", "port": 1, "dialects": ["smi"]},
                    {"name": "a", "port": 2, "dialects": ["smi"]},
                ]
            },
            "two ports have the name a",
        ),
        (
            {"config": {"listen_address": ":1"}},
            "config: the chart sets listen_address from the value port or extraPorts",
        ),
        (
            {"config": {"web": {"config": {"file": "x"}}}},
            "config: the chart sets web.config.file from the value web.config",
        ),
        (
            {"config": {"web.config.file": "x"}},
            "config: the chart sets web.config.file from the value web.config",
        ),
        ({"podLabels": {"app": "x"}}, "podLabels: the chart's selectors use the label app;"),
        (
            {"commonLabels": {"app.kubernetes.io/component": "x"}},
            "commonLabels: the chart's selectors use the label app.kubernetes.io/component;",
        ),
        (
            {"resources": {"limits": {"nvidia.com/gpu": 1}}},
            "resources.limits: nvidia.com/gpu would make a device unavailable to workloads",
        ),
        (
            {"mode": "cronjob", "collection": {"resources": {"requests": {"example.com/vgpu": "1"}}}},
            "collection.resources.requests: example.com/vgpu would make a device unavailable",
        ),
        (
            {"operator": {"enabled": True, "resources": {"limits": {"nvidia.com/gpu": 1}}}},
            "operator.resources.limits: nvidia.com/gpu would make a device unavailable",
        ),
    ],
)
def test_values_that_conflict_are_rejected_with_the_remedy(values: dict[str, Any], message: str) -> None:
    assert message in problems(values)


@pytest.mark.parametrize(
    "values",
    [
        {"mode": "collect", "textfile": {"every": "0.5s"}, "config": {"interval": "500ms"}},
        {"mode": "collect", "textfile": {"every": "1m"}, "config": {"interval": "60s"}},
        # Not used.
        {"mode": "daemonset", "textfile": {"every": "10ms"}},
    ],
)
def test_a_file_may_be_written_as_often_as_the_program_reads(values: dict[str, Any]) -> None:
    assert files(values)


def test_relabelings_that_prometheus_operator_accepts_are_rendered_as_given() -> None:
    rules = [
        {
            "sourceLabels": ["a", "b"],
            "separator": "/",
            "targetLabel": "c",
            "regex": "(x|y)[|].*|",
            "action": "Replace",
        },
        {"action": "hashmod", "sourceLabels": ["a"], "modulus": 2, "targetLabel": "c"},
        {"action": "labeldrop", "regex": "pod_.+"},
        {"action": "labelmap", "regex": "__meta_kubernetes_pod_label_(.+)"},
        {"action": "keep", "sourceLabels": ["__name__"], "regex": ""},
        {"action": "replace", "targetLabel": "c", "replacement": ""},
    ]
    (monitor,) = of_kind("PodMonitor", {"podMonitor": {"enabled": True, "relabelings": rules}})
    assert monitor["spec"]["podMetricsEndpoints"][0]["relabelings"] == rules


def test_a_release_name_that_is_invalid_for_a_service_is_rejected_with_the_remedy() -> None:
    import helm_python

    with pytest.raises(
        helm_python.HelmError, match="fullnameOverride: the name of a Service must begin with"
    ):
        files(name="456")
    assert files({"fullnameOverride": "gpus"}, name="456")


@pytest.mark.parametrize(
    "values",
    [
        {"updateStrategy": {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}, "state": {"dir": ""}},
        # A collector has no ports.
        {
            "updateStrategy": {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "mode": "collect",
            "hostNetwork": True,
            "state": {"dir": ""},
        },
        {"updateStrategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}},
        {"updateStrategy": {"rollingUpdate": {"maxSurge": "0%", "maxUnavailable": 1}}},
    ],
)
def test_a_rollout_that_can_end_is_rendered_as_given(values: dict[str, Any]) -> None:
    (made,) = of_kind("DaemonSet", values)
    assert made["spec"]["updateStrategy"] == {"type": "RollingUpdate", **values["updateStrategy"]}
