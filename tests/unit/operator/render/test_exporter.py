"""A GpuMonitor's exporters: what the chart's own DaemonSet is and does, and what a resource changes in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

import chart
from chart import taken
from gpuledger.operator.programs import Complaint
from gpuledger.operator.reading import read
from gpuledger.operator.render.objects import render
from unit.operator.support import (
    SIMPLE,
    Json,
    container,
    facts_of,
    gpu_monitor,
    made,
    monitor_of,
    only,
    rendered,
)

# A field of `exporter`, and the values of the chart that mean the same.
SAME: dict[str, tuple[Json, Json]] = {
    "nothing said": ({}, {}),
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
    "places": (
        {"kubeletDir": "/k", "podLogs": "/l", "passwdFile": "/p", "stateDir": "/s", "metricsPath": "/m"},
        {
            "kubelet": {"dir": "/k", "podLogs": "/l"},
            "host": {"passwdFile": "/p"},
            "state": {"dir": "/s"},
            "metricsPath": "/m",
        },
    ),
    "no books": ({"stateDir": ""}, {"state": {"dir": ""}}),
    "names": (
        {"podNames": "logs", "podLabelAllowlist": ["app"]},
        {"kubernetes": {"names": "logs", "podLabelAllowlist": ["app"]}},
    ),
    "page": ({"webPage": "off"}, {"web": {"page": False}}),
    "configuration": (
        {"config": {"interval": "2s", "process.max_per_device": 64}},
        {"config": {"interval": "2s", "process.max_per_device": 64}},
    ),
    "rights": (
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
def test_a_resource_makes_the_pods_that_the_chart_makes(exporter: Json, values: Json) -> None:
    (theirs,) = chart.of_kind("DaemonSet", values, name="gpumonitor-gpus-exporter-gpuledger")
    ours = only("DaemonSet", gpu_monitor({"exporter": exporter, "agent": {"enabled": False}}))
    theirs_pod, ours_pod = (one["spec"]["template"]["spec"] for one in (theirs, ours))
    (their,), (our,) = theirs_pod.pop("containers"), ours_pod.pop("containers")
    for key in ("args", "startupProbe", "livenessProbe", "readinessProbe", "ports", "env"):
        assert our[key] == their[key], key
    for key in ("volumeMounts",):
        assert by_name(our[key]) == by_name(their[key])
    assert {**their["securityContext"], "runAsNonRoot": False} == our["securityContext"]
    if "resources" not in exporter:
        assert our["resources"] == their["resources"]
    volumes = by_name(theirs_pod.pop("volumes"))
    volumes["config"]["configMap"]["name"] = "gpumonitor-gpus-exporter"
    assert by_name(ours_pod.pop("volumes")) == volumes
    for one in (theirs_pod, ours_pod):
        one.pop("serviceAccountName")
        for init in one.get("initContainers", ()):
            del init["image"]
    assert ours_pod == theirs_pod
    assert ours["spec"]["updateStrategy"] == theirs["spec"]["updateStrategy"]


@pytest.mark.parametrize(("exporter", "values"), SAME.values(), ids=SAME)
def test_the_program_is_set_as_the_chart_sets_it(exporter: Json, values: Json, tmp_path: Path) -> None:
    data = only("ConfigMap", gpu_monitor({"exporter": exporter, "agent": {"enabled": False}}))["data"]
    assert yaml.safe_load(data["gpuledger.yaml"]) == chart.settings(values)
    # And takes it.
    taken(container(gpu_monitor({"exporter": exporter, "agent": {"enabled": False}})), data, tmp_path)


def test_accounting_is_turned_on_by_an_init_container_alone() -> None:
    pod = only("DaemonSet", gpu_monitor({"exporter": {"accounting": True}}))["spec"]["template"]["spec"]
    (init,) = pod["initContainers"]
    assert "nvidia-smi -am 1" in init["args"][0]
    assert init["securityContext"]["capabilities"]["add"] == ["SYS_ADMIN"]
    assert "SYS_ADMIN" not in pod["containers"][0]["securityContext"]["capabilities"]["add"]


def test_a_whatap_agents_exporter_takes_its_variables_and_tells_dcgm(tmp_path: Path) -> None:
    one = {**container(SIMPLE), "args": ["serve"]}
    (tmp_path / "fields.csv").write_text("DCGM_FI_DEV_GPU_TEMP, gauge, t\n")
    for variable in one["env"]:
        if variable["name"] == "DCGM_EXPORTER_COLLECTORS":
            variable["value"] = str(tmp_path / "fields.csv")
    got = taken(one, {}, tmp_path)
    assert got["dialect"] == ("dcgm",)
    assert [str(address) for address in got["listen_address"]] == [":9400"]
    assert got["kubernetes.enabled"] == "true"
    assert got["web.page"] == "landing"
    assert got["state_dir"] == "/var/lib/gpuledger"


@pytest.mark.parametrize(
    ("config", "exchanged"),
    [({"interval": "2s"}, False), ({"process": {"max_per_device": 9}}, True), ({"sysfs": "/s"}, True)],
)
def test_pods_are_exchanged_for_what_a_running_program_cannot_change(config: Json, exchanged: bool) -> None:
    def template(exporter: Json) -> object:
        return only("DaemonSet", gpu_monitor({"exporter": exporter}))["spec"]["template"]

    assert (template({"config": config}) != template({})) is exchanged


def test_a_setting_that_a_flag_would_beat_is_refused_with_the_field_that_says_it() -> None:
    found = rendered(gpu_monitor({"exporter": {"config": {"listen_address": ":1", "web": {"page": "full"}}}}))
    assert [str(one) for one in found.problems] == [
        "spec.exporter.config.listen_address: is said by spec.exporter.port; set that one"
    ]


def test_what_the_program_itself_has_against_its_settings_is_said() -> None:
    monitor = monitor_of(gpu_monitor({"exporter": {"config": {"intervall": "2s"}}}))
    facts = facts_of(
        monitor,
        check_exporter=lambda run: Complaint("configuration", f"unknown key {sorted(run.configuration)[1]}"),
    )
    assert [str(one) for one in render(monitor, facts).problems] == [
        "spec.exporter.config: unknown key intervall"
    ]


@pytest.mark.parametrize(
    "port",
    [{"name": "metrics", "port": 1, "dialects": ["smi"]}, {"name": "x", "port": 9400, "dialects": ["smi"]}],
)
def test_ports_have_names_and_numbers_of_their_own(port: Json) -> None:
    found = rendered(gpu_monitor({"exporter": {"extraPorts": [port]}}))
    assert [one.path for one in found.problems] == ["spec.exporter.extraPorts[0]"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "A", "value": "a", "valueFrom": {"fieldRef": {"fieldPath": "x"}}},
        {"name": "A", "valueFrom": {}},
        {
            "name": "A",
            "valueFrom": {
                "fieldRef": {"fieldPath": "x"},
                "secretKeyRef": {"name": "a", "key": "b"},
            },
        },
    ],
)
def test_a_variable_has_one_source(wrong: Json) -> None:
    found = rendered(gpu_monitor({"exporter": {"env": [{"name": "B", "value": "b"}, wrong]}}))
    assert [one.path for one in found.problems] == ["spec.exporter.env[1].valueFrom"]


def test_a_variable_of_the_resource_beats_the_operators() -> None:
    env = [
        {"name": "NVIDIA_VISIBLE_DEVICES", "value": "0"},
        {"name": "A", "value": "1"},
        {"name": "A", "value": "2"},
    ]
    found = container(gpu_monitor({"exporter": {"env": env}}))["env"]
    said = [(one["name"], one["value"]) for one in found if "value" in one]
    assert said == [("NVIDIA_VISIBLE_DEVICES", "0"), ("NVIDIA_DRIVER_CAPABILITIES", "utility"), ("A", "2")]


def test_labels_of_the_resource_do_not_lose_pods_their_own() -> None:
    labels = {"team": "a", "gpuledger.dev/monitor": "other", "app.kubernetes.io/component": "x"}
    one = only("DaemonSet", gpu_monitor({"exporter": {"podLabels": labels}}))
    have = one["spec"]["template"]["metadata"]["labels"]
    assert have["team"] == "a"
    assert one["spec"]["selector"]["matchLabels"].items() <= have.items()


def test_every_object_says_whose_it_is() -> None:
    for one in made(gpu_monitor()).values():
        labels = one["metadata"]["labels"]
        assert labels["app.kubernetes.io/managed-by"] == "gpuledger-operator"
        assert (labels["gpuledger.dev/monitor"], labels["gpuledger.dev/monitor-kind"]) == (
            "gpus",
            "GpuMonitor",
        )
        assert one["metadata"]["ownerReferences"] == [
            {
                "apiVersion": "gpuledger.dev/v1alpha1",
                "kind": "GpuMonitor",
                "name": "gpus",
                "uid": "6b1f",
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ]


def test_labels_by_which_pods_are_found_are_nobodys_to_change_and_that_is_told() -> None:
    mine = {"gpuledger.dev/monitor": "other", "team": "ml"}
    resource = gpu_monitor({part: {"podLabels": mine} for part in ("exporter", "agent")})
    why = "is the operator's own: by it pods are found"
    assert [str(one) for one in read(resource).ignored] == [
        f"spec.{part}.podLabels.gpuledger.dev/monitor: {why}" for part in ("exporter", "agent")
    ]
    labels = only("DaemonSet", resource)["spec"]["template"]["metadata"]["labels"]
    assert (labels["gpuledger.dev/monitor"], labels["team"]) == ("gpus", "ml")


def test_amounts_are_texts_which_every_api_server_takes() -> None:
    said = {"requests": {"cpu": 1, "memory": "64Mi"}, "limits": {"nvidia.com/gpu": 0, "memory": 1024}}
    texts = {"requests": {"cpu": "1", "memory": "64Mi"}, "limits": {"nvidia.com/gpu": "0", "memory": "1024"}}
    resource = gpu_monitor({part: {"resources": said} for part in ("exporter", "agent")})
    for kind in ("DaemonSet", "StatefulSet"):
        assert container(resource, kind)["resources"] == texts


def test_objects_of_two_resources_have_no_name_in_common() -> None:
    names = ("x", "x-agent", "x-exporter", "gpumonitor-x")
    listed = [set(made(gpu_monitor(name=name))) for name in names]
    assert sum(map(len, listed)) == len(set.union(*listed))


@pytest.mark.parametrize("name", ["a" * 32, "0-0"])
def test_names_fit_what_kubernetes_makes_of_them(name: str) -> None:
    for one in made(gpu_monitor(name=name)).values():
        # Of a StatefulSet's name and a hash a label is made: 63 characters at most.
        assert len(one["metadata"]["name"]) <= 52


@pytest.mark.parametrize("name", ["a" * 33, "A", "a.b", "-a", ""])
def test_other_names_are_refused(name: str) -> None:
    assert [one.path for one in read(gpu_monitor(name=name)).problems] == ["metadata.name"]


def test_on_openshift_pods_may_use_the_charts_constraints() -> None:
    objects = made(gpu_monitor(), scc_role="gpuledger-scc")
    binding = objects["RoleBinding/gpumonitor-gpus-exporter-scc"]
    assert binding["roleRef"]["name"] == "gpuledger-scc"
    pod = objects["DaemonSet/gpumonitor-gpus-exporter"]["spec"]["template"]["spec"]
    assert pod["securityContext"]["seLinuxOptions"] == {"type": "spc_t"}


def test_without_exporters_there_is_an_agent_alone() -> None:
    kinds = {name.partition("/")[0] for name in made(gpu_monitor({"exporter": {"enabled": False}}))}
    assert "DaemonSet" not in kinds
    assert "StatefulSet" in kinds
