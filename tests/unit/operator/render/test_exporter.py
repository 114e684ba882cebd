"""The exporters of a GpuMonitor: settings, names and labels of their objects, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from chart import load_container_settings
from gpuledger.app.operator_checks import check_exporter
from gpuledger.operator.monitor_parser import parse_monitor
from gpuledger.operator.program_checks import ProgramProblem
from gpuledger.operator.render.objects import render_objects
from unit.operator.support import (
    SIMPLE,
    Json,
    container,
    context_of,
    gpu_monitor,
    only_object,
    rendered,
    rendered_objects,
    valid_monitor,
)


def test_accounting_is_enabled_only_by_an_init_container() -> None:
    pod = only_object("DaemonSet", gpu_monitor({"exporter": {"accounting": True}}))["spec"]["template"][
        "spec"
    ]
    (init,) = pod["initContainers"]
    assert "nvidia-smi -am 1" in init["args"][0]
    assert init["securityContext"]["capabilities"]["add"] == ["SYS_ADMIN"]
    assert "SYS_ADMIN" not in pod["containers"][0]["securityContext"]["capabilities"]["add"]


def test_the_exporter_of_a_whatap_agent_reads_its_variables_and_exports_dcgm(tmp_path: Path) -> None:
    one = {**container(SIMPLE), "args": ["serve"]}
    (tmp_path / "fields.csv").write_text("DCGM_FI_DEV_GPU_TEMP, gauge, t\n")
    for variable in one["env"]:
        if variable["name"] == "DCGM_EXPORTER_COLLECTORS":
            variable["value"] = str(tmp_path / "fields.csv")
    got = load_container_settings(one, {}, tmp_path)
    assert got["dialect"] == ("dcgm",)
    assert [str(address) for address in got["listen_address"]] == [":9400"]
    assert got["kubernetes.enabled"] == "true"
    assert got["web.page"] == "landing"
    assert got["state_dir"] == "/var/lib/gpuledger"


@pytest.mark.parametrize(
    ("config", "replaced"),
    [({"interval": "2s"}, False), ({"process": {"max_per_device": 9}}, True), ({"sysfs": "/s"}, True)],
)
def test_pods_are_replaced_only_for_settings_that_need_a_restart(config: Json, replaced: bool) -> None:
    def template(exporter: Json) -> object:
        return only_object("DaemonSet", gpu_monitor({"exporter": exporter}))["spec"]["template"]

    assert (template({"config": config}) != template({})) is replaced


OWN_POD = {
    "targetName": "own",
    "type": "PodMonitor",
    "selector": {"matchLabels": {"gpuledger.dev/monitor": "gpus"}},
}


def written_config(spec: Json) -> Json:
    """The settings in the configuration file of the exporter."""
    (found,) = (
        one
        for one in rendered_objects(gpu_monitor(spec)).values()
        if one["kind"] == "ConfigMap" and "gpuledger.yaml" in one["data"]
    )
    settings: Json = yaml.safe_load(found["data"]["gpuledger.yaml"])
    return settings


@pytest.mark.parametrize(
    ("agent", "config", "hold"),
    [
        ({}, {}, None),
        ({"globalInterval": "20s"}, {}, None),
        ({"globalInterval": "1m"}, {}, "70s"),
        ({"globalInterval": "1m", "enabled": False}, {}, None),
        ({"globalInterval": "1m"}, {"energy": {"zero_hold": "5s"}}, "5s"),
        (
            {
                "targets": [
                    {**OWN_POD, "endpoints": [{"port": "metrics", "interval": "45s", "timeout": "40s"}]}
                ]
            },
            {},
            "85s",
        ),
        (
            {
                "targets": [
                    {**OWN_POD, "endpoints": [{"port": "metrics", "interval": "30s", "timeout": "1m"}]}
                ]
            },
            {},
            "90s",
        ),
        (
            {
                "targets": [
                    {**OWN_POD, "endpoints": [{"port": "m", "interval": "40s", "adaptiveTimeout": {}}]}
                ]
            },
            {},
            "80s",
        ),
    ],
)
def test_new_counters_are_0_for_the_scrape_interval_of_the_agent(
    agent: Json, config: Json, hold: str | None
) -> None:
    spec = {
        "agent": {"remoteWrite": [{"url": "http://receiver/write"}], **agent},
        "exporter": {"config": config},
    }
    assert written_config(spec).get("energy", {}).get("zero_hold") == hold


@pytest.mark.parametrize(
    ("exporter", "key"),
    [
        ({"config": {"web.page": "full"}}, "web.page"),
        ({"config": {"kubernetes.names": "logs"}}, "kubernetes.names"),
        (
            {"config": {"dcgm.collectors": "/x.csv"}, "collectors": "DCGM_FI_DEV_GPU_TEMP, gauge, t"},
            "dcgm.collectors",
        ),
    ],
)
def test_a_setting_that_is_given_with_a_dot_overrides_that_of_a_field(exporter: Json, key: str) -> None:
    found = written_config({"exporter": exporter})
    section, name = key.split(".")
    assert found[key] == exporter["config"][key]
    assert name not in found.get(section, {})


def test_a_setting_that_a_flag_overrides_is_a_problem_that_names_the_field() -> None:
    found = rendered(gpu_monitor({"exporter": {"config": {"listen_address": ":1", "web": {"page": "full"}}}}))
    assert [str(one) for one in found.problems] == [
        "spec.exporter.config.listen_address: has no effect; set spec.exporter.port instead"
    ]


def test_an_error_of_the_program_about_its_settings_is_reported() -> None:
    monitor = valid_monitor(gpu_monitor({"exporter": {"config": {"intervall": "2s"}}}))
    context = context_of(
        monitor,
        check_exporter=lambda run: [
            ProgramProblem("configuration", f"unknown key {sorted(run.configuration)[1]}")
        ],
    )
    assert [str(one) for one in render_objects(monitor, context).problems] == [
        "spec.exporter.config: unknown key intervall"
    ]


@pytest.mark.parametrize(
    "port",
    [{"name": "metrics", "port": 1, "dialects": ["smi"]}, {"name": "x", "port": 9400, "dialects": ["smi"]}],
)
def test_names_and_numbers_of_ports_are_unique(port: Json) -> None:
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
def test_a_variable_has_exactly_one_source(wrong: Json) -> None:
    found = rendered(gpu_monitor({"exporter": {"env": [{"name": "B", "value": "b"}, wrong]}}))
    assert [one.path for one in found.problems] == ["spec.exporter.env[1].valueFrom"]


def test_a_variable_of_the_resource_overrides_that_of_the_operator() -> None:
    env = [
        {"name": "NVIDIA_VISIBLE_DEVICES", "value": "0"},
        {"name": "A", "value": "1"},
        {"name": "A", "value": "2"},
    ]
    found = container(gpu_monitor({"exporter": {"env": env}}))["env"]
    values = [(variable["name"], variable["value"]) for variable in found if "value" in variable]
    assert values == [("NVIDIA_VISIBLE_DEVICES", "0"), ("NVIDIA_DRIVER_CAPABILITIES", "utility"), ("A", "2")]


def test_labels_of_the_resource_do_not_replace_those_of_the_operator() -> None:
    labels = {"team": "a", "gpuledger.dev/monitor": "other", "app.kubernetes.io/component": "x"}
    one = only_object("DaemonSet", gpu_monitor({"exporter": {"podLabels": labels}}))
    have = one["spec"]["template"]["metadata"]["labels"]
    assert have["team"] == "a"
    assert one["spec"]["selector"]["matchLabels"].items() <= have.items()


def test_every_object_has_owner_labels_and_references() -> None:
    for one in rendered_objects(gpu_monitor()).values():
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


def test_pod_labels_that_the_operator_overrides_are_reported_as_ignored() -> None:
    mine = {"gpuledger.dev/monitor": "other", "team": "ml"}
    resource = gpu_monitor({part: {"podLabels": mine} for part in ("exporter", "agent")})
    why = "is set by the operator, which selects pods by it"
    assert [str(one) for one in parse_monitor(resource).ignored] == [
        f"spec.{part}.podLabels.gpuledger.dev/monitor: {why}" for part in ("exporter", "agent")
    ]
    labels = only_object("DaemonSet", resource)["spec"]["template"]["metadata"]["labels"]
    assert (labels["gpuledger.dev/monitor"], labels["team"]) == ("gpus", "ml")


def test_resource_amounts_are_strings_for_all_api_servers() -> None:
    amounts = {"requests": {"cpu": 1, "memory": "64Mi"}, "limits": {"nvidia.com/gpu": 0, "memory": 2**30}}
    strings = {
        "requests": {"cpu": "1", "memory": "64Mi"},
        "limits": {"nvidia.com/gpu": "0", "memory": "1073741824"},
    }
    resource = gpu_monitor({part: {"resources": amounts} for part in ("exporter", "agent")})
    for kind in ("DaemonSet", "StatefulSet"):
        assert container(resource, kind)["resources"] == strings


def test_objects_of_different_resources_have_different_names() -> None:
    names = ("x", "x-agent", "x-exporter", "gpumonitor-x")
    listed = [set(rendered_objects(gpu_monitor(name=name))) for name in names]
    assert sum(map(len, listed)) == len(set.union(*listed))


@pytest.mark.parametrize("name", ["a" * 32, "0-0"])
def test_object_names_fit_into_derived_labels(name: str) -> None:
    for one in rendered_objects(gpu_monitor(name=name)).values():
        # Kubernetes appends a hash to a StatefulSet's name in a label value of at most 63 characters.
        assert len(one["metadata"]["name"]) <= 52


@pytest.mark.parametrize("name", ["a" * 33, "A", "a.b", "-a", ""])
def test_invalid_names_are_refused(name: str) -> None:
    assert [one.path for one in parse_monitor(gpu_monitor(name=name)).problems] == ["metadata.name"]


def test_on_openshift_pods_are_bound_to_the_charts_security_context_constraints() -> None:
    objects = rendered_objects(gpu_monitor(), scc_role="gpuledger-scc")
    binding = objects["RoleBinding/gpumonitor-gpus-exporter-scc"]
    assert binding["roleRef"]["name"] == "gpuledger-scc"
    pod = objects["DaemonSet/gpumonitor-gpus-exporter"]["spec"]["template"]["spec"]
    assert pod["securityContext"]["seLinuxOptions"] == {"type": "spc_t"}


def test_without_exporters_only_the_agent_is_deployed() -> None:
    kinds = {
        name.partition("/")[0] for name in rendered_objects(gpu_monitor({"exporter": {"enabled": False}}))
    }
    assert "DaemonSet" not in kinds
    assert "StatefulSet" in kinds


def test_a_collector_writes_files_as_that_of_the_chart_and_serves_nothing() -> None:
    textfile = {"directory": "/textfiles", "file": "a.prom", "every": "30s"}
    resource = gpu_monitor({"exporter": {"mode": "collect", "textfile": textfile}})
    found = container(resource)
    assert (found["args"][0], found["args"][-3:]) == (
        "collect",
        ["--every=30s", "--textfile-dir=/textfiles", "--file=a.prom"],
    )
    assert {"ports", "startupProbe", "livenessProbe", "readinessProbe"}.isdisjoint(found)
    assert found["securityContext"]["capabilities"]["add"] == ["SYS_PTRACE", "DAC_OVERRIDE"]
    objects = rendered_objects(resource)
    assert "Service/gpumonitor-gpus-exporter" not in objects
    spec = objects["DaemonSet/gpumonitor-gpus-exporter"]["spec"]["template"]["spec"]
    paths = {volume["name"]: volume.get("hostPath", {}).get("path") for volume in spec["volumes"]}
    assert (paths["textfile"], paths["state"]) == ("/textfiles", "/var/lib/gpuledger/collector")
    # The program's own dialects, and no target for an agent.
    settings = yaml.safe_load(objects["ConfigMap/gpumonitor-gpus-exporter"]["data"]["gpuledger.yaml"])
    assert settings == {"kubernetes": {"names": "auto"}}
    agent = yaml.safe_load(objects["ConfigMap/gpumonitor-gpus-agent"]["data"]["agent.yaml"])
    assert agent["features"]["openAgent"]["targets"] == []


def test_the_arguments_of_a_collector_are_checked_by_its_program() -> None:
    def problems(**exporter: object) -> list[str]:
        resource = gpu_monitor({"exporter": {"mode": "collect", **exporter}})
        return [str(one) for one in rendered(resource, check_exporter=check_exporter).problems]

    assert problems(args=["--log-level=debug"]) == []
    assert problems(args=["--listen-address=:1"]) != []
    assert problems(textfile={"every": "10ms"}) == [
        "spec.exporter.textfile.every: expected a duration of at least 0.05 s, not '10ms'"
    ]
    assert problems(textfile={"every": "1s"}, config={"interval": "5s"}) == [
        "spec.exporter.config: --every 1s is shorter than --interval 5s: it would write the same readings "
        "again; give --interval 1s too"
    ]
    web = {"secret": "web", "scheme": "http"}
    refused = "spec.exporter.mode: collect serves no page: leave out extraPorts and webConfig"
    assert refused in problems(webConfig=web)


@pytest.mark.parametrize("mode", ["daemonset", "collect"])
def test_the_default_dialects_of_a_page_and_of_a_file_can_be_stated(mode: str) -> None:
    """The default of a page is not that of a file: a stated `native` is not taken for no dialects."""
    resource = gpu_monitor({"exporter": {"mode": mode, "dialects": ["native"]}})
    data = only_object("ConfigMap", {**resource, "spec": {**resource["spec"], "agent": {"enabled": False}}})
    assert yaml.safe_load(data["data"]["gpuledger.yaml"])["dialect"] == ["native"]


AGENT_LABELS = {
    "gpuledger.dev/monitor": "gpus",
    "gpuledger.dev/monitor-kind": "GpuMonitor",
    "app.kubernetes.io/component": "agent",
}


def test_network_policies_are_those_of_the_chart() -> None:
    peers = [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}]
    spec = {"networkPolicy": {"enabled": True, "from": peers, "apiServerPorts": [6443]}}
    objects = rendered_objects(gpu_monitor(spec))
    exporter = objects["NetworkPolicy/gpumonitor-gpus-exporter"]["spec"]
    labels = objects["DaemonSet/gpumonitor-gpus-exporter"]["spec"]["template"]["metadata"]["labels"]
    assert exporter["podSelector"]["matchLabels"].items() <= labels.items()
    template = objects["StatefulSet/gpumonitor-gpus-agent"]["spec"]["template"]
    # Its own agent must reach them.
    own = {"podSelector": {"matchLabels": {**AGENT_LABELS}}}
    assert AGENT_LABELS.items() <= template["metadata"]["labels"].items()
    ports = [{"port": "metrics", "protocol": "TCP"}]
    operator = {"podSelector": {"matchLabels": {"app.kubernetes.io/component": "operator"}}}
    assert exporter["ingress"] == [{"ports": ports, "from": [*peers, own, operator]}]
    assert [port["port"] for port in exporter["egress"][0]["ports"]] == [53, 53, 6443]
    agent = objects["NetworkPolicy/gpumonitor-gpus-agent"]["spec"]
    assert (agent["policyTypes"], "egress" in agent) == (["Ingress"], False)
    assert agent["ingress"] == [{"ports": ports, "from": [*peers, operator]}]
    on_openshift = rendered_objects(gpu_monitor(spec), scc_role="scc")
    egress = on_openshift["NetworkPolicy/gpumonitor-gpus-exporter"]["spec"]["egress"]
    assert [port["port"] for port in egress[0]["ports"]] == [53, 53, 5353, 5353, 6443]
    assert not any(name.startswith("NetworkPolicy/") for name in rendered_objects(gpu_monitor()))


@pytest.mark.parametrize(("part", "kind"), [("exporter", "DaemonSet"), ("agent", "StatefulSet")])
def test_extra_volumes_are_those_of_the_resource(part: str, kind: str) -> None:
    volume = {"name": "ca", "secret": {"secretName": "ca", "items": [{"key": "a", "path": "b"}]}}
    mount = {"name": "ca", "mountPath": "/ca", "subPath": "b", "readOnly": True}
    resource = gpu_monitor({part: {"extraVolumes": [volume], "extraVolumeMounts": [mount]}})
    spec = next(one["spec"]["template"]["spec"] for one in rendered(resource).objects if one["kind"] == kind)
    assert volume in spec["volumes"]
    assert mount in spec["containers"][0]["volumeMounts"]
