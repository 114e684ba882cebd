"""The chart's agent: a StatefulSet, independent of the mode."""

from __future__ import annotations

from typing import Any

import pytest

from chart import MATRIX, of_kind

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
