"""Agents that share the work, as many as a StatefulSet has: each target is scraped by one, at every beat."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from signal import SIGTERM

import pytest

from cluster.agents import CUSTOM, Agent, Agents, Everywhere, Objects, endpoint, monitor
from cluster.control_plane import Json
from gpuledger.agent.scrape.loop import Beat
from gpuledger.agent.scrape.settings import ScrapeSettings, Target
from running import get, wait_until

PATH = "apis/apps/v1/namespaces/gpuledger/statefulsets"
NAME = "gpuledger-agent"
INTERVAL = 2.0


class Scale:
    """A StatefulSet without a controller: the test does what that would do, and says so in its status."""

    def __init__(self, objects: Objects, replicas: int) -> None:
        self._objects = objects
        template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "a", "image": "a"}]}}
        selector = {"matchLabels": {"a": "b"}}
        spec = {"replicas": replicas, "serviceName": NAME, "selector": selector, "template": template}
        self._generation = objects.make(PATH, {"metadata": {"name": NAME}, "spec": spec})["metadata"][
            "generation"
        ]

    def want(self, replicas: int) -> None:
        changed = self._objects.change(f"{PATH}/{NAME}", {"spec": {"replicas": replicas}})
        self._generation = changed["metadata"]["generation"]

    def ready(self, replicas: int) -> None:
        told = {"observedGeneration": self._generation, "replicas": replicas, "readyReplicas": replicas}
        self._objects.change(f"{PATH}/{NAME}/status", {"status": told})


@pytest.fixture
def hosts(objects: Objects, everywhere: Everywhere) -> Iterator[list[str]]:
    """Where twenty exporters are."""
    objects.namespace("shards")
    found = [f"127.0.5.{number}:{everywhere.port}" for number in range(1, 21)]
    for number, host in enumerate(found):
        ip = host.partition(":")[0]
        objects.pod("shards", f"exporter-{number}", ip, CUSTOM, ports={"metrics": everywhere.port})
    yield sorted(found)


def shared(hosts: list[str], agents: list[Agent]) -> bool:
    """Whether each target is scraped by exactly one, and each agent has some."""
    shares = [agent.hosts() for agent in agents]
    return all(shares) and sorted(host for share in shares for host in share) == hosts


class Phases:
    """When the number of agents was settled, as unix seconds from and to."""

    def __init__(self, hosts: list[str], everywhere: Everywhere) -> None:
        self.quiet: list[tuple[float, float]] = []
        self._hosts = hosts
        self._everywhere = everywhere

    def stay(self, agents: list[Agent]) -> None:
        """Until some beats have passed in which each target was one agent's."""
        wait_until(lambda: shared(self._hosts, agents), f"{len(agents)} shards")
        began = time.time()
        before = Counter(self._everywhere.asked)
        wait_until(
            lambda: all(self._everywhere.asked[host] >= before[host] + 3 for host in self._hosts),
            "three more scrapes of each target",
        )
        self.quiet.append((began, time.time()))


def scrapes(store: str, hosts: list[str]) -> dict[str, Counter[int]]:
    """By host how many samples of `up` the store has of each beat."""
    answer = get(f"{store}/api/v1/export", params={"match[]": "up"}, timeout=30)
    found: dict[str, Counter[int]] = {host: Counter() for host in hosts}
    for line in answer.text.splitlines():
        told: Json = json.loads(line)
        host = told["metric"]["instance"]
        found[host].update(beat_of(host, timestamp / 1000) for timestamp in told["timestamps"])
    return found


def beat_of(host: str, unix: float) -> int:
    """The number of the target's beat that a moment belongs to."""
    labels = (("instance", host), ("job", "t"))
    beat = Beat(INTERVAL, Target("t", f"http://{host}/metrics", labels, ScrapeSettings()).digest)
    return beat.between(beat.next(0.0), beat.next(unix)) - 1


def test_no_target_misses_a_beat_when_two_agents_become_three_and_then_one(
    objects: Objects, agents: Agents, everywhere: Everywhere, hosts: list[str], store: str
) -> None:
    often = {**endpoint(everywhere.port), "interval": f"{INTERVAL:g}s"}
    target = monitor("t", ["shards"], {"matchLabels": CUSTOM}, often)
    file = agents.file({"targets": [target]}, f"{store}/api/v1/write")
    scale = Scale(objects, 2)

    def start(ordinal: int) -> Agent:
        return agents.start(file, "--drain", "20s", POD_NAME=f"{NAME}-{ordinal}")

    phases = Phases(hosts, everywhere)
    started = [start(0), start(1)]
    scale.ready(2)
    phases.stay(started)

    scale.want(3)
    # Nobody lets go of what a pod is to take over that is not there yet.
    before = [agent.hosts() for agent in started]
    wait_until(lambda: all("goes on with its targets of" in agent.page() for agent in started), "the change")
    assert all(set(old) <= set(agent.hosts()) for agent, old in zip(started, before, strict=True))
    started.append(start(2))
    wait_until(started[2].is_ready, "the third agent to be ready")
    scale.ready(3)
    phases.stay(started)

    scale.want(1)
    for agent in started[1:]:
        agent.program.process.send_signal(SIGTERM)
    scale.ready(1)
    assert [agent.program.process.wait(60) for agent in started[1:]] == [0, 0]
    for agent in started[1:]:
        agent.program.stop()
    phases.stay(started[:1])
    started[0].program.stop()

    def gaps_and_doubles() -> tuple[list[str], list[str]]:
        missing, twice = [], []
        for host, beats in scrapes(store, hosts).items():
            missing += [f"{host} {beat}" for beat in range(min(beats), max(beats)) if beat not in beats]
            for began, ended in phases.quiet:
                within = range(beat_of(host, began) + 1, beat_of(host, ended))
                twice += [f"{host} {beat}" for beat in within if beats[beat] > 1]
        return missing, twice

    assert gaps_and_doubles() == ([], [])


def test_a_target_that_is_handed_over_twice_is_in_the_end_one_agents(
    objects: Objects, agents: Agents, everywhere: Everywhere, hosts: list[str]
) -> None:
    """A number that is taken back before the new agent was there."""
    target = monitor("t", ["shards"], {"matchLabels": CUSTOM}, endpoint(everywhere.port))
    file = agents.file({"targets": [target]}, everywhere.receiver)
    scale = Scale(objects, 2)
    started = [agents.start(file, POD_NAME=f"{NAME}-{ordinal}") for ordinal in range(2)]
    scale.ready(2)
    wait_until(lambda: shared(hosts, started), "two shards")
    shares = [agent.hosts() for agent in started]
    scale.want(3)
    wait_until(lambda: all("This is shard" in agent.page() for agent in started), "a page")
    wait_until(lambda: all("/3." in agent.page() for agent in started), "three shards")
    scale.want(2)
    scale.ready(2)
    wait_until(lambda: [agent.hosts() for agent in started] == shares, "the two shards of before")
