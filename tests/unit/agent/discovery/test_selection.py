"""Discovery steps in order: namespace, labels, port, endpoint, scrape (decision 002)."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from gpuledger.agent.agent import AgentView
from gpuledger.agent.discovery.discovery import Discovery
from gpuledger.agent.discovery.selection import POD_MONITOR, SCRAPE_STEPS, STEPS, EndpointSettings, Selection
from gpuledger.agent.discovery.target_finder import ClusterObjects, TargetFinder
from gpuledger.agent.families import agent_families
from gpuledger.agent.scrape.loop import ReceiverRouting, ScrapeLoop
from gpuledger.agent.scrape.series_labels import WriteRelabeling
from gpuledger.agent.scrape.settings import ScrapeSettings
from gpuledger.agent.status_page import render_status_page
from gpuledger.exposition.text import encode_text
from gpuledger.host.clock import SystemClock
from gpuledger.kubernetes.objects import LabelSelector, NamespaceSelector, parse_meta, parse_pod_object
from scripted_target import Answer, scripted

PAGES = {"/good": Answer("a 1\n"), "/bad": Answer("a {\n"), "/refusing": Answer("", status=503)}


def pod(number: int, namespace: str = "gpu", **more: Any) -> Any:
    """A pod that passes every step before the scrape unless `more` changes it; `number` is its port."""
    labels = more.get("labels", {"app": "dcgm"})
    ports = [{"name": more.get("port", "metrics"), "containerPort": number}]
    item = {
        "metadata": {"namespace": namespace, "name": "exporter", "labels": labels},
        "spec": {"containers": [{"name": "c", "ports": ports}]},
        "status": {"phase": more.get("phase", "Running"), "podIP": "127.0.0.1"},
    }
    meta = parse_meta(item)
    assert meta is not None
    return parse_pod_object(item, meta)


NO_LABELS = "no object in the selected namespaces has the labels"
# By name: what differs, the step that fails, the explanation on the status page.
FAILS: dict[str, tuple[dict[str, Any], str, str]] = {
    "another namespace": (
        {"namespace": "other"},
        "labels",
        NO_LABELS,
    ),
    "other labels": ({"labels": {"app": "x"}}, "labels", NO_LABELS),
    "not running": ({"phase": "Pending"}, "running", "pod gpu/exporter is Pending, not Running"),
    "no such port": ({"port": "http"}, "port", "pod gpu/exporter has no TCP port metrics (it declares http)"),
    "no valid response": ({"path": "/refusing"}, "endpoint", "down (no valid response)<br>"),
    "an invalid page": ({"path": "/bad"}, "scrape", "down (page rejected)<br>"),
    "no difference": ({"path": "/good"}, "", "up"),
}


@pytest.mark.parametrize(("different", "fails", "explanation"), FAILS.values(), ids=FAILS.keys())
def test_each_step_is_counted_and_the_failing_one_is_explained(
    different: dict[str, Any], fails: str, explanation: str
) -> None:
    with scripted(lambda path: PAGES[path]) as target:
        view = view_of(pod(target.port, **different), different.get("path", "/good"))
    text = encode_text(agent_families(view)).decode()
    page = render_status_page(view)
    steps = (*STEPS, *SCRAPE_STEPS)
    passed = steps.index(fails) if fails else len(steps)
    numbers = [int(number) for number in re.findall(r'_selected{group="t",step="\w+"} (\d)', text)]
    assert numbers == [int(number < passed) for number in range(len(steps))]
    row = "".join(f"<td>{number}</td>" for number in numbers)
    assert f't</th><td class="name">PodMonitor</td>{row}</tr>' in page
    assert explanation in page


async def once(loop: ScrapeLoop) -> None:
    await loop.scrape(1_700_000_000_000)
    loop.close()


def view_of(item: Any, path: str) -> AgentView:
    """Discover the pod and scrape it once if it is a target."""
    endpoint = EndpointSettings("metrics", "http", path, {}, ScrapeSettings())
    namespaces, selector = NamespaceSelector(frozenset({"gpu"})), LabelSelector((("app", "dcgm"),))
    finder = TargetFinder(Selection("t", POD_MONITOR, namespaces, selector, (endpoint,)))
    found, report = finder.find_targets(ClusterObjects([item]))
    report.passed["scraped"] = len(found)
    loops = [
        ScrapeLoop(one, ReceiverRouting(WriteRelabeling()), lambda *_: None, SystemClock()) for one in found
    ]
    for loop in loops:
        asyncio.run(once(loop))
    discovery = Discovery(None, SystemClock())
    discovery.reports = (report,)
    return AgentView(0.0, tuple(loops), {}, (), 0, "", 0.0, discovery)
