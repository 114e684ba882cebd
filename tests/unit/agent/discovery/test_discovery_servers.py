"""Discovery with API servers of different versions and permissions."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from gpuledger.agent.discovery.discovery import Discovery
from gpuledger.agent.discovery.selection import POD_MONITOR, SERVICE_MONITOR, EndpointSettings, Selection
from gpuledger.agent.relabel.rules import RelabelRule, RelabelRules
from gpuledger.agent.scrape.settings import ScrapeSettings, Target
from gpuledger.host.clock import SystemClock
from gpuledger.kubernetes.access import ApiServerAccess
from gpuledger.kubernetes.objects import LabelSelector, NamespaceSelector
from running import PATIENCE
from scripted_api import scripted_api

Json = dict[str, Any]


def meta(name: str, namespace: str = "a", **more: Any) -> Json:
    return {"metadata": {"namespace": namespace, "name": name, "annotations": {"why": "y"}, **more}}


def pod(name: str, ip: str, namespace: str = "a") -> Json:
    containers = [{"name": "c", "image": "i", "ports": [{"name": "web", "containerPort": 9400}]}]
    return {
        **meta(name, namespace),
        "spec": {"containers": containers},
        "status": {"phase": "Running", "podIP": ip},
    }


SERVICE = {**meta("s"), "spec": {"ports": [{"name": "web", "port": 80}]}}
SLICE = {
    **meta("s-1", labels={"kubernetes.io/service-name": "s"}),
    "addressType": "IPv4",
    "ports": [{"name": "web", "port": 9400}],
    "endpoints": [{"addresses": ["10.0.0.1"], "conditions": {"ready": True}}],
}
ENDPOINTS = {
    **meta("s"),
    "subsets": [{"addresses": [{"ip": "10.0.0.1"}], "ports": [{"name": "web", "port": 9400}]}],
}


def discover_targets(answers: Mapping[str, int | list[Json]], *selections: Selection) -> list[Target]:
    """Return the targets as soon as there are any."""

    async def discover(url: str) -> list[Target]:
        discovery, changed = Discovery(ApiServerAccess(url), SystemClock()), asyncio.Event()
        discovery.start(changed.set)
        try:
            discovery.set_selections(selections)
            async with asyncio.timeout(PATIENCE):
                while not discovery.targets:
                    await changed.wait()
                    changed.clear()
            return list(discovery.targets)
        finally:
            discovery.stop()

    with scripted_api(answers) as api:
        return asyncio.run(discover(api.url))


def selection(kind: str, *namespaces: str, name: str = "t") -> Selection:
    endpoint = EndpointSettings("web", "http", "/metrics", {}, ScrapeSettings())
    rules = RelabelRules([RelabelRule("labelmap", regex="__meta_kubernetes_(endpoint.*)")])
    where = NamespaceSelector(frozenset(namespaces)) if namespaces else NamespaceSelector()
    return Selection(name, kind, where, LabelSelector(), (endpoint,), rules=rules)


@pytest.mark.parametrize(
    ("path", "behind", "label"),
    [
        ("/apis/discovery.k8s.io/v1/endpointslices", SLICE, "endpointslice_annotation_why"),
        ("/apis/discovery.k8s.io/v1beta1/endpointslices", SLICE, "endpointslice_annotation_why"),
        ("/api/v1/endpoints", ENDPOINTS, "endpoints_annotation_why"),
    ],
    ids=["EndpointSlice v1", "EndpointSlice v1beta1", "Endpoints"],
)
def test_service_endpoints_are_read_from_the_newest_api_of_the_server(
    path: str, behind: Json, label: str
) -> None:
    answers = {"/api/v1/services": [SERVICE], "/api/v1/pods": list[Json](), path: [behind]}
    (target,) = discover_targets(answers, selection(SERVICE_MONITOR))
    assert (target.url, dict(target.labels)[label]) == ("http://10.0.0.1:9400/metrics", "y")


def test_without_cluster_wide_permission_named_namespaces_are_watched() -> None:
    answers: dict[str, int | list[Json]] = {
        "/api/v1/pods": 403,
        "/api/v1/namespaces/a/pods": [pod("p", "10.0.0.1")],
    }
    targets = discover_targets(
        answers, selection(POD_MONITOR, name="all"), selection(POD_MONITOR, "a", name="named")
    )
    assert [target.url for target in targets] == ["http://10.0.0.1:9400/metrics"]
