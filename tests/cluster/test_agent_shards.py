"""Sharding of targets between the replicas of a StatefulSet: one agent scrapes each target, without gaps."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from signal import SIGTERM

import pytest

from cluster.agents import CUSTOM, Agent, Agents, FakeExporters, Objects, endpoint, monitor
from cluster.control_plane import Json
from gpuledger.agent.scrape.loop import ScrapeSchedule
from gpuledger.agent.scrape.settings import ScrapeSettings, Target
from running import PATIENCE, get, wait_until

PATH = "apis/apps/v1/namespaces/gpuledger/statefulsets"
NAME = "gpuledger-agent"
INTERVAL = 2.0


class Scale:
    """A StatefulSet without a controller: the test starts the agents and sets the status."""

    def __init__(self, objects: Objects, replicas: int) -> None:
        self._objects = objects
        template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "a", "image": "a"}]}}
        selector = {"matchLabels": {"a": "b"}}
        spec = {"replicas": replicas, "serviceName": NAME, "selector": selector, "template": template}
        self._generation = objects.create(PATH, {"metadata": {"name": NAME}, "spec": spec})["metadata"][
            "generation"
        ]

    def set_replicas(self, replicas: int) -> None:
        changed = self._objects.patch(f"{PATH}/{NAME}", {"spec": {"replicas": replicas}})
        self._generation = changed["metadata"]["generation"]

    def set_ready(self, replicas: int) -> None:
        status = {"observedGeneration": self._generation, "replicas": replicas, "readyReplicas": replicas}
        self._objects.patch(f"{PATH}/{NAME}/status", {"status": status})


@pytest.fixture
def hosts(objects: Objects, fake_exporters: FakeExporters) -> Iterator[list[str]]:
    """Addresses of twenty exporters."""
    objects.namespace("shards")
    found = [f"127.0.5.{number}:{fake_exporters.port}" for number in range(1, 21)]
    for number, host in enumerate(found):
        ip = host.partition(":")[0]
        objects.pod("shards", f"exporter-{number}", ip, CUSTOM, ports={"metrics": fake_exporters.port})
    yield sorted(found)


def shared(hosts: list[str], agents: list[Agent]) -> bool:
    """True if exactly one agent scrapes each target, and each agent has targets."""
    shares = [agent.hosts() for agent in agents]
    return all(shares) and sorted(host for share in shares for host in share) == hosts


class StablePeriods:
    """Periods with a constant number of agents, as Unix seconds (start, end)."""

    def __init__(self, hosts: list[str], fake_exporters: FakeExporters) -> None:
        self.periods: list[tuple[float, float]] = []
        self._hosts = hosts
        self._exporters = fake_exporters

    def record(self, agents: list[Agent]) -> None:
        """Wait until the targets are shared, and for three more scrapes of each; record this period."""
        wait_until(lambda: shared(self._hosts, agents), f"{len(agents)} shards")
        began = time.time()
        before = Counter(self._exporters.requests)
        wait_until(
            lambda: all(self._exporters.requests[host] >= before[host] + 3 for host in self._hosts),
            "three more scrapes of each target",
        )
        self.periods.append((began, time.time()))


def scrapes(store: str, hosts: list[str]) -> dict[str, Counter[int]]:
    """Number of samples of `up` in the store, by host and index of the scrape."""
    response = get(f"{store}/api/v1/export", params={"match[]": "up"})
    found: dict[str, Counter[int]] = {host: Counter() for host in hosts}
    for line in response.text.splitlines():
        row: Json = json.loads(line)
        host = row["metric"]["instance"]
        found[host].update(scrape_index(host, timestamp / 1000) for timestamp in row["timestamps"])
    return found


def scrape_index(host: str, unix: float) -> int:
    """Index of the target's scrape to which a time belongs."""
    labels = (("instance", host), ("job", "t"))
    schedule = ScrapeSchedule(
        INTERVAL, Target("t", f"http://{host}/metrics", labels, ScrapeSettings()).digest
    )
    return schedule.intervals_between(schedule.next_time(0.0), schedule.next_time(unix)) - 1


def test_no_scrape_is_missed_when_scaling_from_two_agents_to_three_and_to_one(
    objects: Objects, agents: Agents, fake_exporters: FakeExporters, hosts: list[str], store: str
) -> None:
    often = {**endpoint(fake_exporters.port), "interval": f"{INTERVAL:g}s"}
    target = monitor("t", ["shards"], {"matchLabels": CUSTOM}, often)
    file = agents.file({"targets": [target]}, f"{store}/api/v1/write")
    scale = Scale(objects, 2)

    def start(ordinal: int) -> Agent:
        return agents.start(file, "--drain", "20s", POD_NAME=f"{NAME}-{ordinal}")

    stable = StablePeriods(hosts, fake_exporters)
    started = [start(0), start(1)]
    scale.set_ready(2)
    stable.record(started)

    scale.set_replicas(3)
    # Agents keep the targets of a new pod until it is ready.
    before = [agent.hosts() for agent in started]
    wait_until(lambda: all("still scrapes its targets of" in agent.page() for agent in started), "the change")
    assert all(set(old) <= set(agent.hosts()) for agent, old in zip(started, before, strict=True))
    started.append(start(2))
    wait_until(started[2].is_ready, "the third agent to be ready")
    scale.set_ready(3)
    stable.record(started)

    scale.set_replicas(1)
    for agent in started[1:]:
        agent.program.process.send_signal(SIGTERM)
    scale.set_ready(1)
    assert [agent.program.process.wait(PATIENCE) for agent in started[1:]] == [0, 0]
    for agent in started[1:]:
        agent.program.stop()
    stable.record(started[:1])
    started[0].program.stop()

    def gaps_and_duplicates() -> tuple[list[str], list[str]]:
        gaps, duplicates = [], []
        for host, counts in scrapes(store, hosts).items():
            gaps += [f"{host} {index}" for index in range(min(counts), max(counts)) if index not in counts]
            for began, ended in stable.periods:
                within = range(scrape_index(host, began) + 1, scrape_index(host, ended))
                duplicates += [f"{host} {index}" for index in within if counts[index] > 1]
        return gaps, duplicates

    assert gaps_and_duplicates() == ([], [])


def test_a_reverted_scale_up_leaves_each_target_with_one_agent(
    objects: Objects, agents: Agents, fake_exporters: FakeExporters, hosts: list[str]
) -> None:
    """The number of replicas is reduced before the new agent starts."""
    target = monitor("t", ["shards"], {"matchLabels": CUSTOM}, endpoint(fake_exporters.port))
    file = agents.file({"targets": [target]}, fake_exporters.receiver)
    scale = Scale(objects, 2)
    started = [agents.start(file, POD_NAME=f"{NAME}-{ordinal}") for ordinal in range(2)]
    scale.set_ready(2)
    wait_until(lambda: shared(hosts, started), "two shards")
    shares = [agent.hosts() for agent in started]
    scale.set_replicas(3)
    wait_until(lambda: all("This is shard" in agent.page() for agent in started), "a page")
    wait_until(lambda: all("/3." in agent.page() for agent in started), "three shards")
    scale.set_replicas(2)
    scale.set_ready(2)
    wait_until(lambda: [agent.hosts() for agent in started] == shares, "the previous two shards")
