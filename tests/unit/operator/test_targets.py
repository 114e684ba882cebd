"""Counting the targets of agents."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest

from gpuledger.kubernetes.object_client import ApiRequest, ObjectClient
from gpuledger.operator.status import TargetCounts
from gpuledger.operator.targets import (
    AgentPods,
    TargetCounter,
    agent_pods,
    parse_agent_page,
    parse_prometheus_targets,
)

Json = dict[str, Any]
PAGE = b"""\
# TYPE gpuledger_agent_targets gauge
gpuledger_agent_targets{group="a",state="up"} 3
gpuledger_agent_targets{group="a",state="down"} 1
gpuledger_agent_targets{group="b",state="unknown"} 2
gpuledger_agent_targets_dropped 7
"""


class Pods:
    """An API server with addresses of pods, which counts requests."""

    def __init__(self, addresses: Mapping[str, str]) -> None:
        self.addresses = dict(addresses)
        self.requests = 0

    async def send(self, request: ApiRequest) -> tuple[int, bytes]:
        self.requests += 1
        name = request.path.rpartition("/")[2]
        if name not in self.addresses:
            return 404, b'{"reason": "NotFound", "message": "no such pod"}'
        return 200, json.dumps({"status": {"podIP": self.addresses[name]}}).encode()

    async def close(self) -> None:
        """Nothing."""


def fetch_from(responses: Mapping[str, bytes]) -> Any:
    async def fetch(url: str) -> bytes:
        if url not in responses:
            raise ConnectionRefusedError("refused")
        return responses[url]

    return fetch


AGENTS = AgentPods("n", "agent", 2, 9401)


def test_the_states_of_all_groups_are_summed() -> None:
    assert parse_agent_page(PAGE) == TargetCounts(6, 3, 1)


def test_a_page_without_target_series_has_no_targets() -> None:
    assert parse_agent_page(b"up 1\n") == TargetCounts(0, 0, 0)


def test_prometheus_reports_health_and_the_last_error() -> None:
    active = [
        {"health": "up", "lastError": ""},
        {"health": "down", "lastError": "connection refused"},
        {"health": "unknown", "lastError": ""},
    ]
    body = json.dumps({"status": "success", "data": {"activeTargets": active}}).encode()
    assert parse_prometheus_targets(body) == TargetCounts(3, 1, 1, "connection refused")


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"data": null}', b'{"data": {"activeTargets": [1]}}'])
def test_an_invalid_response_of_prometheus_is_an_error(body: bytes) -> None:
    assert parse_prometheus_targets(body) == "the agent's response is not that of Prometheus"


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-1", "1e400", "9999999999", "many"])
def test_invalid_target_numbers_are_ignored(value: str) -> None:
    page = f'gpuledger_agent_targets{{group="a",state="up"}} {value}\n'
    assert parse_agent_page(page.encode()) == TargetCounts(0, 0, 0)


def test_a_deeply_nested_response_is_an_error() -> None:
    assert parse_prometheus_targets(b"[" * 200_000) == "the agent's response is not that of Prometheus"


def test_the_metrics_port_is_used_if_there_are_others() -> None:
    beside = {"name": "http", "containerPort": 8080}
    assert agent_pods(stateful_set(beside, {"name": "metrics", "containerPort": 9401})).port == 9401


def count(pods: Pods, responses: Mapping[str, bytes], agents: AgentPods = AGENTS) -> TargetCounts | None:
    return asyncio.run(TargetCounter(ObjectClient(pods), fetch_from(responses)).count_targets([agents]))


def test_agents_are_queried_at_the_addresses_of_their_pods() -> None:
    pods = Pods({"agent-0": "10.0.0.1", "agent-1": "fd00::1"})
    responses = {"http://10.0.0.1:9401/metrics": PAGE, "http://[fd00::1]:9401/metrics": PAGE}
    assert count(pods, responses) == TargetCounts(12, 6, 2)


def test_an_agent_without_response_is_reported_with_the_counts_of_the_others() -> None:
    pods = Pods({"agent-0": "10.0.0.1", "agent-1": "10.0.0.2"})
    found = count(pods, {"http://10.0.0.1:9401/metrics": PAGE})
    assert found == TargetCounts(6, 3, 1, "agent-1 does not answer (refused)")


def test_the_error_of_a_target_that_is_down_is_reported() -> None:
    active = [
        {"health": "up", "lastError": "", "scrapeUrl": "http://a:1/metrics"},
        {"health": "down", "lastError": "connection refused", "scrapeUrl": "http://b:1/metrics"},
    ]
    responses = {
        "http://10.0.0.1:9401/metrics": PAGE,
        "http://10.0.0.1:9401/api/v1/targets?state=active": json.dumps(
            {"data": {"activeTargets": active}}
        ).encode(),
    }
    found = count(Pods({"agent-0": "10.0.0.1"}), responses, AgentPods("n", "agent", 1, 9401))
    assert found == TargetCounts(6, 3, 1, "http://b:1/metrics: connection refused")


def test_without_a_response_the_targets_are_unknown() -> None:
    assert count(Pods({}), {}) is None
    assert count(Pods({"agent-0": "", "agent-1": ""}), {}) is None


def test_why_no_agent_answers_is_known_until_one_does() -> None:
    async def work() -> None:
        responses = {"http://10.0.0.1:9401/metrics": PAGE}
        pods = Pods({"agent-0": ""})
        counter = TargetCounter(ObjectClient(pods), fetch_from(responses))
        assert await counter.count_targets([AGENTS]) is None
        assert counter.silence == "agent-0 has no address yet"
        pods.addresses = {"agent-0": "10.0.0.1"}
        assert await counter.count_targets([AGENTS]) is not None
        assert counter.silence == ""

    asyncio.run(work())


def test_without_agents_the_targets_are_unknown() -> None:
    assert count(Pods({}), {}, AgentPods("n", "agent", 0, 9401)) is None


def test_the_address_of_a_pod_is_looked_up_again_after_a_failure() -> None:
    pods = Pods({"agent-0": "10.0.0.1"})
    responses = {"http://10.0.0.1:9401/metrics": PAGE}
    one = AgentPods("n", "agent", 1, 9401)

    async def run() -> None:
        counter = TargetCounter(ObjectClient(pods), fetch_from(responses))
        for _ in range(3):
            await counter.count_targets([one])
        assert pods.requests == 1
        # The pod has another address now.
        responses.clear()
        pods.addresses["agent-0"] = "10.0.0.9"
        responses["http://10.0.0.9:9401/metrics"] = PAGE
        assert await counter.count_targets([one]) is None
        assert await counter.count_targets([one]) == TargetCounts(6, 3, 1)
        assert pods.requests == 2

    asyncio.run(run())


def test_the_address_of_a_pod_is_looked_up_again_after_a_change_of_its_set() -> None:
    pods = Pods({"agent-0": "10.0.0.1"})
    other = PAGE.replace(b"3", b"5")
    responses = {"http://10.0.0.1:9401/metrics": PAGE}

    async def run() -> None:
        counter = TargetCounter(ObjectClient(pods), fetch_from(responses))
        assert await counter.count_targets([AgentPods("n", "agent", 1, 9401, version="1")]) == TargetCounts(
            6, 3, 1
        )
        # Both agents were restarted, and this one has another address.
        responses["http://10.0.0.1:9401/metrics"] = other
        responses["http://10.0.0.2:9401/metrics"] = PAGE
        pods.addresses["agent-0"] = "10.0.0.2"
        assert await counter.count_targets([AgentPods("n", "agent", 1, 9401, version="2")]) == TargetCounts(
            6, 3, 1
        )

    asyncio.run(run())


def stateful_set(*ports: Json, engine: str = "builtin", **status: int) -> Json:
    container = {"name": "agent", "ports": list(ports)}
    return {
        "metadata": {"namespace": "n", "name": "agent", "labels": {"gpuledger.dev/engine": engine}},
        "spec": {"template": {"spec": {"containers": [container]}}},
        "status": status,
    }


def test_agent_pods_are_derived_from_the_stateful_set() -> None:
    ports = ({"name": "other", "containerPort": 1}, {"name": "metrics", "containerPort": 9401})
    assert agent_pods(stateful_set(*ports, replicas=3, readyReplicas=1)) == AgentPods("n", "agent", 3, 9401)
    assert agent_pods(stateful_set(*ports, engine="prometheus", replicas=1, readyReplicas=1)).prometheus


def test_no_agent_is_queried_without_a_ready_pod() -> None:
    assert agent_pods(stateful_set({"name": "metrics", "containerPort": 9401}, replicas=3)).replicas == 0
