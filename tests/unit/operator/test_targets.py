"""How many targets agents have, and how many of them are up."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest

from gpuledger.kubernetes.writing import Api, Question
from gpuledger.operator.status import Targets
from gpuledger.operator.targets import Agents, TargetCounter, agents_of, read_agent, read_prometheus

Json = dict[str, Any]
PAGE = b"""\
# TYPE gpuledger_agent_targets gauge
gpuledger_agent_targets{group="a",state="up"} 3
gpuledger_agent_targets{group="a",state="down"} 1
gpuledger_agent_targets{group="b",state="unknown"} 2
gpuledger_agent_targets_dropped 7
"""


class Pods:
    """An API server that knows the addresses of pods, and counts who asks."""

    def __init__(self, addresses: Mapping[str, str]) -> None:
        self.addresses = dict(addresses)
        self.asked = 0

    async def send(self, question: Question) -> tuple[int, bytes]:
        self.asked += 1
        name = question.path.rpartition("/")[2]
        if name not in self.addresses:
            return 404, b'{"reason": "NotFound", "message": "no such pod"}'
        return 200, json.dumps({"status": {"podIP": self.addresses[name]}}).encode()

    async def close(self) -> None:
        """Nothing."""


def pages(told: Mapping[str, bytes]) -> Any:
    async def fetch(url: str) -> bytes:
        if url not in told:
            raise ConnectionRefusedError("refused")
        return told[url]

    return fetch


AGENTS = Agents("n", "agent", 2, 9401)


def test_the_states_of_all_groups_are_summed() -> None:
    assert read_agent(PAGE) == Targets(6, 3, 1)


def test_a_page_without_targets_has_none() -> None:
    assert read_agent(b"up 1\n") == Targets(0, 0, 0)


def test_prometheus_tells_health_and_the_last_error() -> None:
    active = [
        {"health": "up", "lastError": ""},
        {"health": "down", "lastError": "connection refused"},
        {"health": "unknown", "lastError": ""},
    ]
    body = json.dumps({"status": "success", "data": {"activeTargets": active}}).encode()
    assert read_prometheus(body) == Targets(3, 1, 1, "connection refused")


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"data": null}', b'{"data": {"activeTargets": [1]}}'])
def test_what_is_not_prometheus_is_said_to_be_none(body: bytes) -> None:
    assert read_prometheus(body) == "the agent's answer is not Prometheus's"


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-1", "1e400", "9999999999", "many"])
def test_a_page_whose_numbers_are_none_tells_no_targets(value: str) -> None:
    page = f'gpuledger_agent_targets{{group="a",state="up"}} {value}\n'
    assert read_agent(page.encode()) == Targets(0, 0, 0)


def test_an_answer_of_great_depth_is_not_prometheuss() -> None:
    assert read_prometheus(b"[" * 200_000) == "the agent's answer is not Prometheus's"


def test_the_port_is_the_one_of_the_agent_whatever_stands_beside_it() -> None:
    beside = {"name": "http", "containerPort": 8080}
    assert agents_of(stateful_set(beside, {"name": "metrics", "containerPort": 9401})).port == 9401


def count(pods: Pods, told: Mapping[str, bytes], agents: Agents = AGENTS) -> Targets | None:
    return asyncio.run(TargetCounter(Api(pods), pages(told)).count([agents]))


def test_agents_are_asked_at_the_addresses_of_their_pods() -> None:
    pods = Pods({"agent-0": "10.0.0.1", "agent-1": "fd00::1"})
    told = {"http://10.0.0.1:9401/metrics": PAGE, "http://[fd00::1]:9401/metrics": PAGE}
    assert count(pods, told) == Targets(12, 6, 2)


def test_one_that_is_silent_is_told_beside_what_the_others_say() -> None:
    pods = Pods({"agent-0": "10.0.0.1", "agent-1": "10.0.0.2"})
    found = count(pods, {"http://10.0.0.1:9401/metrics": PAGE})
    assert found == Targets(6, 3, 1, "agent-1 does not answer (refused)")


def test_of_a_target_that_is_down_the_agent_is_asked_why() -> None:
    active = [
        {"health": "up", "lastError": "", "scrapeUrl": "http://a:1/metrics"},
        {"health": "down", "lastError": "connection refused", "scrapeUrl": "http://b:1/metrics"},
    ]
    told = {
        "http://10.0.0.1:9401/metrics": PAGE,
        "http://10.0.0.1:9401/api/v1/targets?state=active": json.dumps(
            {"data": {"activeTargets": active}}
        ).encode(),
    }
    found = count(Pods({"agent-0": "10.0.0.1"}), told, Agents("n", "agent", 1, 9401))
    assert found == Targets(6, 3, 1, "http://b:1/metrics: connection refused")


def test_while_none_answers_nothing_is_known() -> None:
    assert count(Pods({}), {}) is None
    assert count(Pods({"agent-0": "", "agent-1": ""}), {}) is None


def test_without_agents_nothing_is_known() -> None:
    assert count(Pods({}), {}, Agents("n", "agent", 0, 9401)) is None


def test_where_a_pod_is_is_asked_once_and_again_when_it_is_silent() -> None:
    pods = Pods({"agent-0": "10.0.0.1"})
    told = {"http://10.0.0.1:9401/metrics": PAGE}
    one = Agents("n", "agent", 1, 9401)

    async def run() -> None:
        counter = TargetCounter(Api(pods), pages(told))
        for _ in range(3):
            await counter.count([one])
        assert pods.asked == 1
        # It has moved.
        told.clear()
        pods.addresses["agent-0"] = "10.0.0.9"
        told["http://10.0.0.9:9401/metrics"] = PAGE
        assert await counter.count([one]) is None
        assert await counter.count([one]) == Targets(6, 3, 1)
        assert pods.asked == 2

    asyncio.run(run())


def test_an_address_that_another_agent_may_have_got_is_asked_for_anew() -> None:
    pods = Pods({"agent-0": "10.0.0.1"})
    other = PAGE.replace(b"3", b"5")
    told = {"http://10.0.0.1:9401/metrics": PAGE}

    async def run() -> None:
        counter = TargetCounter(Api(pods), pages(told))
        assert await counter.count([Agents("n", "agent", 1, 9401, version="1")]) == Targets(6, 3, 1)
        # Both have begun anew, and this one answers elsewhere.
        told["http://10.0.0.1:9401/metrics"] = other
        told["http://10.0.0.2:9401/metrics"] = PAGE
        pods.addresses["agent-0"] = "10.0.0.2"
        assert await counter.count([Agents("n", "agent", 1, 9401, version="2")]) == Targets(6, 3, 1)

    asyncio.run(run())


def stateful_set(*ports: Json, engine: str = "builtin", **status: int) -> Json:
    container = {"name": "agent", "ports": list(ports)}
    return {
        "metadata": {"namespace": "n", "name": "agent", "labels": {"gpuledger.dev/engine": engine}},
        "spec": {"template": {"spec": {"containers": [container]}}},
        "status": status,
    }


def test_what_a_set_runs_is_read_from_it() -> None:
    ports = ({"name": "other", "containerPort": 1}, {"name": "metrics", "containerPort": 9401})
    assert agents_of(stateful_set(*ports, replicas=3, readyReplicas=1)) == Agents("n", "agent", 3, 9401)
    assert agents_of(stateful_set(*ports, engine="prometheus", replicas=1, readyReplicas=1)).prometheus


def test_while_no_pod_is_ready_none_is_asked() -> None:
    assert agents_of(stateful_set({"name": "metrics", "containerPort": 9401}, replicas=3)).pods == []
