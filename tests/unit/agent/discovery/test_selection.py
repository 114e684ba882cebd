"""How far each object came: namespace, labels, port, endpoint, scrape, in the order of document 002."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from gpuledger.agent.agent import AgentView
from gpuledger.agent.discovery.finder import Cluster, Finder
from gpuledger.agent.discovery.selection import POD_MONITOR, SCRAPE_STEPS, STEPS, EndpointSettings, Selection
from gpuledger.agent.families import agent_families
from gpuledger.agent.pages import render
from gpuledger.agent.scrape.labelling import Delivery
from gpuledger.agent.scrape.loop import Deliveries, TargetLoop
from gpuledger.agent.scrape.settings import ScrapeSettings
from gpuledger.exposition.text import encode_text
from gpuledger.host.clock import SystemClock
from gpuledger.kubernetes.objects import NamespaceSelector, Selector, read_meta, read_pod
from scripted_target import Answer, scripted

PAGES = {"/good": Answer("a 1\n"), "/bad": Answer("a {\n"), "/refusing": Answer("", status=503)}


def pod(number: int, namespace: str = "gpu", **more: Any) -> Any:
    """One that comes past every step before the scrape, but for what is said; `number` is its port's."""
    labels = more.get("labels", {"app": "dcgm"})
    ports = [{"name": more.get("port", "metrics"), "containerPort": number}]
    told = {
        "metadata": {"namespace": namespace, "name": "exporter", "labels": labels},
        "spec": {"containers": [{"name": "c", "ports": ports}]},
        "status": {"phase": more.get("phase", "Running"), "podIP": "127.0.0.1"},
    }
    meta = read_meta(told)
    assert meta is not None
    return read_pod(told, meta)


NO_LABELS = "nothing in the selected namespaces has the labels"
# What is different, the step that it fails at, what is told of it: by name.
FAILS: dict[str, tuple[dict[str, Any], str, str]] = {
    "another namespace": (
        {"namespace": "other"},
        "labels",
        "nothing in the selected namespaces has the labels",
    ),
    "other labels": ({"labels": {"app": "x"}}, "labels", NO_LABELS),
    "not running": ({"phase": "Pending"}, "running", "pod gpu/exporter is Pending, not Running"),
    "no such port": ({"port": "http"}, "port", "pod gpu/exporter has no TCP port metrics (it declares http)"),
    "a page that cannot be had": ({"path": "/refusing"}, "endpoint", "down at the endpoint<br>"),
    "a page that cannot be read": ({"path": "/bad"}, "scrape", "down at the scrape<br>"),
    "nothing": ({"path": "/good"}, "", "up"),
}


@pytest.mark.parametrize(("different", "fails", "told"), FAILS.values(), ids=FAILS.keys())
def test_each_step_is_counted_and_the_one_that_fails_says_why(
    different: dict[str, Any], fails: str, told: str
) -> None:
    with scripted(lambda asked: PAGES[asked]) as target:
        view = looked(pod(target.port, **different), different.get("path", "/good"))
    text = encode_text(agent_families(view)).decode()
    page = render(view)
    steps = (*STEPS, *SCRAPE_STEPS)
    passed = steps.index(fails) if fails else len(steps)
    numbers = [int(number) for number in re.findall(r'_selected{group="t",step="\w+"} (\d)', text)]
    assert numbers == [int(number < passed) for number in range(len(steps))]
    row = "".join(f"<td>{number}</td>" for number in numbers)
    assert f't</th><td class="name">PodMonitor</td>{row}</tr>' in page
    assert told in page


async def once(loop: TargetLoop) -> None:
    await loop.scrape(1_700_000_000_000)
    loop.close()


def looked(about: Any, path: str) -> AgentView:
    """The pod looked at, and scraped once where it is a target."""
    endpoint = EndpointSettings("metrics", "http", path, {}, ScrapeSettings())
    namespaces, selector = NamespaceSelector(frozenset({"gpu"})), Selector((("app", "dcgm"),))
    finder = Finder(Selection("t", POD_MONITOR, namespaces, selector, (endpoint,)))
    found, report = finder.find(Cluster([about]))
    report.count("scraped", len(found))
    loops = [TargetLoop(one, Deliveries(Delivery()), lambda *_: None, SystemClock()) for one in found]
    for loop in loops:
        asyncio.run(once(loop))
    return AgentView(0.0, tuple(loops), {}, (), 0, "", 0.0, reports=(report,))
