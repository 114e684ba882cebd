"""The chart's agent: a StatefulSet, independent of the mode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from chart import MATRIX, notes, of_kind
from gpuledger.agent.config.agent_config import read_agent_config

AGENT = {
    "agent": {"enabled": True, "replicas": 3, "config": {"remote_write": [{"url": "http://store/write"}]}}
}


def test_the_agent_is_a_stateful_set_with_shard_identity_and_persistent_queue() -> None:
    (one,) = of_kind("StatefulSet", AGENT)
    assert (one["metadata"]["name"], one["spec"]["replicas"]) == ("gpuledger-agent", 3)
    pod = one["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    fields = {
        env["name"]: env.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath") for env in container["env"]
    }
    assert (fields["POD_NAME"], fields["POD_NAMESPACE"]) == ("metadata.name", "metadata.namespace")
    assert [claim["metadata"]["name"] for claim in one["spec"]["volumeClaimTemplates"]] == ["queue"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert {
        container[f"{probe}Probe"]["httpGet"]["port"] for probe in ("startup", "liveness", "readiness")
    } == {"metrics"}


def test_the_agent_has_time_to_hand_over_targets_and_drain_its_queue() -> None:
    (one,) = of_kind("StatefulSet", AGENT)
    pod = one["spec"]["template"]["spec"]
    (drain,) = (arg for arg in pod["containers"][0]["args"] if arg.startswith("--drain="))
    # The agent keeps scraping for two seconds before it drains the queue.
    assert int(drain.removeprefix("--drain=").removesuffix("s")) + 2 < pod["terminationGracePeriodSeconds"]


@pytest.mark.parametrize(
    ("values", "command"),
    [
        ({}, ["gpuledger"]),
        ({"image": {"variant": "smi"}}, ["gpuledger"]),
        ({"command": ["python3", "-m", "gpuledger"]}, ["python3", "-m", "gpuledger"]),
    ],
    ids=["default", "smi", "command"],
)
def test_the_agent_command_is_the_same_in_every_image(values: Any, command: list[str]) -> None:
    (one,) = of_kind("StatefulSet", {**AGENT, **values})
    (container,) = one["spec"]["template"]["spec"]["containers"]
    assert (container["command"], container["args"][0]) == (command, "agent")


def test_on_openshift_the_agents_user_comes_from_the_namespace() -> None:
    (one,) = of_kind("StatefulSet", {**AGENT, "openshift": {"enabled": True}})
    context = one["spec"]["template"]["spec"]["securityContext"]
    assert context == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}


def test_the_queue_volume_has_the_configured_class_and_size() -> None:
    values = {"agent": {**AGENT["agent"], "persistence": {"storageClass": "fast", "size": "5Gi"}}}
    (one,) = of_kind("StatefulSet", values)
    (claim,) = one["spec"]["volumeClaimTemplates"]
    assert claim["spec"]["storageClassName"] == "fast"
    assert claim["spec"]["resources"]["requests"] == {"storage": "5Gi"}


def test_without_persistence_the_queue_is_an_empty_dir() -> None:
    values = {"agent": {**AGENT["agent"], "persistence": {"enabled": False}}}
    (one,) = of_kind("StatefulSet", values)
    assert "volumeClaimTemplates" not in one["spec"]
    assert {"name": "queue", "emptyDir": {}} in one["spec"]["template"]["spec"]["volumes"]


def test_passwords_of_receivers_can_be_mounted_into_the_agent() -> None:
    (agent,) = of_kind("StatefulSet", MATRIX["agent"])
    pod = agent["spec"]["template"]["spec"]
    assert {"name": "receiver", "secret": {"secretName": "receiver"}} in pod["volumes"]
    (container,) = pod["containers"]
    assert {"name": "receiver", "mountPath": "/etc/receiver", "readOnly": True} in container["volumeMounts"]


def test_the_agents_network_policy_restricts_only_ingress() -> None:
    policies = of_kind("NetworkPolicy", {**AGENT, "networkPolicy": {"enabled": True}})
    (own,) = [policy for policy in policies if policy["metadata"]["name"].endswith("-agent")]
    assert own["spec"]["policyTypes"] == ["Ingress"]


def config_of_agent(values: Any) -> dict[str, Any]:
    (secret,) = [one for one in of_kind("Secret", values) if "agent.yaml" in one["stringData"]]
    return dict(yaml.safe_load(secret["stringData"]["agent.yaml"]))


@pytest.mark.parametrize(
    ("values", "is_added"),
    [
        ({}, False),
        ({"nameOverride": "gpus"}, True),
        ({"nameOverride": "gpus", "metricsPath": "/gpu"}, True),
        # The label by which the agent finds NVIDIA's exporter.
        ({"nameOverride": "dcgm-exporter"}, False),
        ({"nameOverride": "gpus", "mode": "none"}, False),
    ],
    ids=["default", "other name", "other name and path", "NVIDIA's name", "no exporters"],
)
def test_the_agent_finds_the_exporters_of_its_chart_also_under_another_name(
    values: Any, is_added: bool, tmp_path: Path
) -> None:
    config = config_of_agent({**AGENT, **values})
    if not is_added:
        assert config == AGENT["agent"]["config"]
        return
    assert config["features"]["openAgent"]["autoTargets"] is True
    file = tmp_path / "agent.yaml"
    file.write_text(yaml.safe_dump(config), encoding="utf-8")
    own = read_agent_config(file, {}).selections[0]
    (daemonset,) = of_kind("DaemonSet", {**AGENT, **values})
    template = daemonset["spec"]["template"]
    assert own.selector.matches(template["metadata"]["labels"])
    assert own.namespaces.names == {"gpus"}
    (endpoint,) = own.endpoints
    assert endpoint.port in [port["name"] for port in template["spec"]["containers"][0]["ports"]]
    assert endpoint.path == values.get("metricsPath", "/metrics")


@pytest.mark.parametrize(
    ("values", "open_agent", "warning"),
    [
        ({}, {}, ""),
        ({"metricsPath": "/gpu"}, {}, "metricsPath is /gpu"),
        ({"metricsPath": "/gpu"}, {"globalPath": "/gpu"}, ""),
        ({"metricsPath": "/gpu", "nameOverride": "gpus"}, {}, ""),
        ({"web": {"scheme": "https"}}, {}, "TLS or a password"),
        ({"web": {"config": {"basic_auth_users": {"a": "b"}}}}, {}, "TLS or a password"),
        ({"web": {"scheme": "https"}}, {"targets": [{"targetName": "mine"}]}, ""),
        ({"web": {"scheme": "https"}, "mode": "none"}, {}, ""),
    ],
)
def test_the_notes_warn_if_the_agent_cannot_scrape_the_exporters(
    values: Any, open_agent: Any, warning: str
) -> None:
    config = {**AGENT["agent"]["config"], "features": {"openAgent": open_agent}}
    text = notes({**values, "agent": {**AGENT["agent"], "config": config}})
    found = [line for line in text.splitlines() if line.startswith("WARNING: agent:")]
    assert [warning in line for line in found] == ([True] if warning else [])
