"""How many targets the agents have and how many of them are up: each agent is asked, pod by pod."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final

import aiohttp

from gpuledger.http.addresses import Address
from gpuledger.kubernetes.writing import Api, Json
from gpuledger.model.errors import GpuledgerError
from gpuledger.operator.kinds import POD
from gpuledger.operator.render.names import ENGINE
from gpuledger.operator.status import Targets

# The body of a page, from its URL. Raises OSError, TimeoutError or aiohttp.ClientError.
Fetch = Callable[[str], Awaitable[bytes]]

_AT_ONCE: Final = 8
_LONGEST: Final = 64 << 20
_TIMEOUT: Final = aiohttp.ClientTimeout(total=10.0, sock_connect=3.0)
# Both engines have it; of `gpuledger agent` it is asked only when a target is down.
_ACTIVE: Final = "/api/v1/targets?state=active"
_TARGETS: Final = re.compile(
    rb'^gpuledger_agent_targets\{[^}]*state="(\w+)"[^}]*\} ([0-9]{1,9})(?:[.]0)?$', re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class Agents:
    """The pods of one StatefulSet. `version` is another one whenever any of them comes or goes."""

    namespace: str
    name: str
    replicas: int
    port: int
    # A Prometheus in agent mode, not `gpuledger agent`.
    prometheus: bool = False
    version: str = ""

    @property
    def pods(self) -> list[str]:
        """Their names."""
        return [f"{self.name}-{ordinal}" for ordinal in range(self.replicas)]


def agents_of(body: Json) -> Agents:
    """What a StatefulSet runs."""
    containers = body["spec"]["template"]["spec"]["containers"]
    ports = {port.get("name"): port["containerPort"] for one in containers for port in one.get("ports") or ()}
    status = body.get("status") or {}
    return Agents(
        body["metadata"]["namespace"],
        body["metadata"]["name"],
        # While none is ready, none is asked.
        int(status.get("replicas") or 0) if status.get("readyReplicas") else 0,
        ports.get("metrics", 9401),
        prometheus=(body["metadata"].get("labels") or {}).get(ENGINE) == "prometheus",
        version=str(body["metadata"].get("resourceVersion") or ""),
    )


class TargetCounter:
    """Asks agents. Where a pod is the API server is asked once, and again when the pod does not answer or its
    set has changed: its address may be that of another agent then, which would answer.
    """

    def __init__(self, api: Api, fetch: Fetch) -> None:
        self._api = api
        self._fetch = fetch
        # By namespace and pod: the set's version at that time, and the address.
        self._addresses: dict[tuple[str, str], tuple[str, str]] = {}
        self._slots = asyncio.Semaphore(_AT_ONCE)

    async def count(self, agents: Iterable[Agents]) -> Targets | None:
        """The sum over all agents; None while none of them answers."""
        asked = [(one, pod) for one in agents for pod in one.pods]
        answers = await asyncio.gather(*(self._ask(one, pod) for one, pod in asked))
        told = [answer for answer in answers if isinstance(answer, Targets)]
        if not told:
            return None
        silent = [answer for answer in answers if isinstance(answer, str)]
        errors = [*silent, *(one.error for one in told if one.error)]
        return Targets(
            sum(one.found for one in told),
            sum(one.up for one in told),
            sum(one.down for one in told),
            errors[0] if errors else "",
        )

    async def _ask(self, agents: Agents, pod: str) -> Targets | str:
        """What one agent says, or why it says nothing."""
        async with self._slots:
            try:
                address = await self._address(agents, pod)
                if not address:
                    return f"{pod} has no address yet"
                page = f"http://{Address(address, agents.port)}"
                if agents.prometheus:
                    return read_prometheus(await self._fetch(f"{page}{_ACTIVE}"))
                told = read_agent(await self._fetch(f"{page}/metrics"))
            except (GpuledgerError, aiohttp.ClientError, TimeoutError, OSError) as error:
                self._addresses.pop((agents.namespace, pod), None)
                return f"{pod} does not answer ({str(error) or type(error).__name__})"
            return replace(told, error=await self._why(page)) if told.down else told

    async def _why(self, page: str) -> str:
        """The error of a target that is down; empty from an agent that does not tell it."""
        try:
            found = read_prometheus(await self._fetch(f"{page}{_ACTIVE}"))
        except (aiohttp.ClientError, TimeoutError, OSError):
            return ""
        return found.error if isinstance(found, Targets) else ""

    async def _address(self, agents: Agents, pod: str) -> str:
        version, known = self._addresses.get((agents.namespace, pod), ("", ""))
        if not known or version != agents.version:
            status = (await self._api.get(POD.path(agents.namespace, pod))).get("status") or {}
            known = str(status.get("podIP") or "")
            self._addresses[agents.namespace, pod] = (agents.version, known)
        return known


def read_agent(body: bytes) -> Targets:
    """From a page of `gpuledger agent`."""
    states = {"up": 0, "down": 0, "unknown": 0}
    for state, value in _TARGETS.findall(body):
        word = state.decode()
        if word in states:
            states[word] += int(value)
    return Targets(sum(states.values()), states["up"], states["down"])


def read_prometheus(body: bytes) -> Targets | str:
    """From what Prometheus answers at /api/v1/targets."""
    try:
        active = json.loads(body)["data"]["activeTargets"]
        health = [str(one["health"]) for one in active]
        errors = [_error(one) for one in active if one.get("lastError")]
    except (ValueError, KeyError, TypeError, RecursionError):
        return "the agent's answer is not Prometheus's"
    return Targets(len(health), health.count("up"), health.count("down"), errors[0] if errors else "")


def _error(target: Json) -> str:
    """With the target that it is of."""
    url = str(target.get("scrapeUrl") or "")
    return f"{url}: {target['lastError']}" if url else str(target["lastError"])


async def fetch_page(url: str) -> bytes:
    """The page as it is, not longer than an agent's can be; nothing but 200 will do."""
    async with (
        aiohttp.ClientSession(timeout=_TIMEOUT) as session,
        session.get(url, allow_redirects=False) as answer,
    ):
        answer.raise_for_status()
        if answer.status != 200:
            raise aiohttp.ClientError(f"status {answer.status}")
        body = bytearray()
        async for piece in answer.content.iter_chunked(1 << 16):
            body += piece
            if len(body) > _LONGEST:
                raise aiohttp.ClientError("a page without an end")
        return bytes(body)
