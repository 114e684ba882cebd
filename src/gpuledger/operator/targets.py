"""Counts the targets of the agents: queries each agent pod over HTTP."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Final
from urllib.parse import urlsplit

from gpuledger.http.addresses import Address
from gpuledger.http.async_client import HttpClient
from gpuledger.http.client_messages import HttpRequestFailed, encode_request, request_target
from gpuledger.kubernetes.object_client import Json, ObjectClient
from gpuledger.model.errors import GpuledgerError
from gpuledger.operator.kinds import POD_KIND
from gpuledger.operator.render.naming import ENGINE
from gpuledger.operator.status import TargetCounts

# Fetches a URL; returns the body. Raises HttpRequestFailed, TimeoutError or another OSError.
FetchPage = Callable[[str], Awaitable[bytes]]

_CONCURRENCY: Final = 8
_MAX_BODY_BYTES: Final = 64 << 20
_TIMEOUT: Final = 10.0
_CONNECT_TIMEOUT: Final = 3.0
# Both engines serve it; `gpuledger agent` is queried only if a target is down.
_ACTIVE_TARGETS_PATH: Final = "/api/v1/targets?state=active"
_TARGETS_SAMPLE: Final = re.compile(
    rb'^gpuledger_agent_targets\{[^}]*state="(up|down|unknown)"[^}]*\} ([0-9]{1,9})(?:[.]0)?$', re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class AgentPods:
    """The pods of one StatefulSet. `version` changes whenever a pod is added or removed."""

    namespace: str
    name: str
    replicas: int
    port: int
    # Whether the pods run a Prometheus in agent mode instead of `gpuledger agent`.
    prometheus: bool = False
    version: str = ""


def agent_pods(body: Json) -> AgentPods:
    """The agent pods of a StatefulSet."""
    containers = body["spec"]["template"]["spec"]["containers"]
    ports = {
        port.get("name"): port["containerPort"]
        for container in containers
        for port in container.get("ports") or ()
    }
    status = body.get("status") or {}
    return AgentPods(
        body["metadata"]["namespace"],
        body["metadata"]["name"],
        # Without a ready pod, none is queried.
        int(status.get("replicas") or 0) if status.get("readyReplicas") else 0,
        ports.get("metrics", 9401),
        prometheus=(body["metadata"].get("labels") or {}).get(ENGINE) == "prometheus",
        version=str(body["metadata"].get("resourceVersion") or ""),
    )


@dataclass(eq=False, slots=True)
class TargetCounter:
    """Queries agents. Addresses of pods are cached until the pod does not answer or its StatefulSet changes:
    then the address may belong to another agent.
    """

    api: ObjectClient
    fetch: FetchPage
    # Why none of the agents of the last call answers.
    silence: str = field(default="", init=False)
    # By namespace and pod: the version of the StatefulSet at the lookup, and the address.
    _addresses: dict[tuple[str, str], tuple[str, str]] = field(default_factory=dict, init=False)
    _slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_CONCURRENCY), init=False)

    async def count_targets(self, agents: Iterable[AgentPods]) -> TargetCounts | None:
        """The sum over all agents; None if none of them answers, with the reason in `silence`."""
        queries = [
            self._query_agent(agent, f"{agent.name}-{ordinal}")
            for agent in agents
            for ordinal in range(agent.replicas)
        ]
        results = await asyncio.gather(*queries)
        counts = [result for result in results if isinstance(result, TargetCounts)]
        failures = [result for result in results if isinstance(result, str)]
        errors = [*failures, *(count.error for count in counts if count.error)]
        self.silence = "" if counts or not failures else failures[0]
        if not counts:
            return None
        return TargetCounts(
            sum(count.found for count in counts),
            sum(count.up for count in counts),
            sum(count.down for count in counts),
            errors[0] if errors else "",
        )

    async def _query_agent(self, agents: AgentPods, pod: str) -> TargetCounts | str:
        """The targets of one agent, or why they are not known."""
        async with self._slots:
            try:
                address = await self._pod_address(agents, pod)
                if not address:
                    return f"{pod} has no address yet"
                page = f"http://{Address(address, agents.port)}"
                if agents.prometheus:
                    return parse_prometheus_targets(await self.fetch(f"{page}{_ACTIVE_TARGETS_PATH}"))
                counts = parse_agent_page(await self.fetch(f"{page}/metrics"))
            except (GpuledgerError, OSError) as error:
                self._addresses.pop((agents.namespace, pod), None)
                return f"{pod} does not answer ({str(error) or type(error).__name__})"
            return replace(counts, error=await self._down_reason(page)) if counts.down else counts

    async def _down_reason(self, page: str) -> str:
        """The error of a target that is down; empty if the agent does not report it."""
        try:
            found = parse_prometheus_targets(await self.fetch(f"{page}{_ACTIVE_TARGETS_PATH}"))
        except (HttpRequestFailed, OSError):
            return ""
        return found.error if isinstance(found, TargetCounts) else ""

    async def _pod_address(self, agents: AgentPods, pod: str) -> str:
        version, known = self._addresses.get((agents.namespace, pod), ("", ""))
        if not known or version != agents.version:
            status = (await self.api.get(POD_KIND.path(agents.namespace, pod))).get("status") or {}
            known = str(status.get("podIP") or "")
            self._addresses[agents.namespace, pod] = (agents.version, known)
        return known


def parse_agent_page(body: bytes) -> TargetCounts:
    """The targets on a metrics page of `gpuledger agent`."""
    states: Counter[bytes] = Counter()
    for state, number in _TARGETS_SAMPLE.findall(body):
        states[state] += int(number)
    return TargetCounts(states.total(), states[b"up"], states[b"down"])


def parse_prometheus_targets(body: bytes) -> TargetCounts | str:
    """The targets in a response of /api/v1/targets, or why it is invalid."""
    try:
        active = json.loads(body)["data"]["activeTargets"]
        health = [str(target["health"]) for target in active]
        errors = [_target_error(target) for target in active if target.get("lastError")]
    except (ValueError, KeyError, TypeError, RecursionError):
        return "the agent's response is not that of Prometheus"
    return TargetCounts(len(health), health.count("up"), health.count("down"), errors[0] if errors else "")


def _target_error(target: Json) -> str:
    """The error with the URL of the target."""
    url = str(target.get("scrapeUrl") or "")
    return f"{url}: {target['lastError']}" if url else str(target["lastError"])


async def fetch_page(url: str) -> bytes:
    """Fetch a page of at most 64 MiB; any status but 200 is an error."""
    parts = urlsplit(url)
    request = encode_request(
        "GET", request_target(parts), [("Host", parts.netloc), ("Accept-Encoding", "gzip")]
    )
    client = HttpClient(
        parts.hostname or "",
        parts.port or 80,
        body_limit=_MAX_BODY_BYTES,
        connect_timeout=_CONNECT_TIMEOUT,
    )
    with closing(client):
        async with asyncio.timeout(_TIMEOUT):
            response = await client.exchange(request)
    if response.status != 200:
        raise HttpRequestFailed(f"status {response.status}")
    return response.decoded_body(_MAX_BODY_BYTES)
