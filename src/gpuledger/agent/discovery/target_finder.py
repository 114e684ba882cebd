"""Target finder: the targets of a selection from a cluster's objects. Pure; caches unchanged objects."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from gpuledger.agent.discovery.addresses import (
    ADDRESS,
    PATH,
    SCHEME,
    DiscoveredAddress,
    build_target,
    matching_service_ports,
    missing_port_reason,
    pod_addresses,
    pod_behind,
    pod_skip_reason,
    service_addresses,
)
from gpuledger.agent.discovery.meta_labels import POD, node_labels
from gpuledger.agent.discovery.selection import POD_MONITOR, EndpointSettings, Selection, SelectionReport
from gpuledger.agent.scrape.settings import Target
from gpuledger.kubernetes.object_watch import KubernetesObject
from gpuledger.kubernetes.objects import (
    EndpointSliceObject,
    EndpointsObject,
    LabeledObject,
    PodObject,
    ServiceObject,
)

# JSON can contain unpaired surrogates, which are not valid Unicode.
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class ClusterObjects:
    """A cluster's objects that a selection needs. `namespaces` is None if it needs no namespace labels."""

    pods: Iterable[KubernetesObject] = ()
    services: Iterable[KubernetesObject] = ()
    slices: Iterable[KubernetesObject] = ()
    nodes: Mapping[str, LabeledObject] = field(default_factory=dict)
    namespaces: Mapping[str, LabeledObject] | None = None


@dataclass(slots=True)
class _Found:
    """Cached result for one object, with the objects that it depends on."""

    inputs: tuple[object, ...]
    targets: tuple[Target, ...]
    address_count: int
    reasons: tuple[str, ...]


class TargetFinder:
    """Finds the targets of one selection. Results of unchanged objects are cached."""

    def __init__(self, selection: Selection) -> None:
        self.selection = selection
        self._known: dict[str, _Found] = {}
        self._pods_matter = selection.mentions(POD)

    def find_targets(self, cluster: ClusterObjects) -> tuple[list[Target], SelectionReport]:
        """Return the targets, and a report with the number of objects that passed each step."""
        selection = self.selection
        report = SelectionReport(selection.name, selection.kind)
        before, self._known = self._known, {}
        pods = selection.kind == POD_MONITOR
        parts = {} if pods else _by_service(cluster.slices)
        behind = {}
        if not pods and self._pods_matter:
            behind = {pod.meta.key: pod for pod in cluster.pods if isinstance(pod, PodObject)}
        targets: list[Target] = []
        namespaces: set[str] = set()
        for item in cluster.pods if pods else cluster.services:
            if not self._in_namespace(item.meta.namespace, cluster):
                continue
            namespaces.add(item.meta.namespace)
            if not isinstance(item, PodObject | ServiceObject) or not selection.selector.matches(
                dict(item.meta.labels)
            ):
                continue
            report.passed["labels"] += 1
            found = self._found(item, cluster, parts.get(item.meta.key, []), behind, before, report)
            targets += found
        report.passed["namespace"] = self._namespaces(cluster, namespaces)
        return targets, report

    def _namespaces(self, cluster: ClusterObjects, seen: set[str]) -> int:
        if cluster.namespaces is None:
            names = self.selection.namespaces.names
            return len(seen) if names is None else len(names)
        return sum(self._in_namespace(name, cluster) for name in cluster.namespaces)

    def _in_namespace(self, name: str, cluster: ClusterObjects) -> bool:
        selector = self.selection.namespaces
        labels: dict[str, str] = {}
        if cluster.namespaces is not None:
            known = cluster.namespaces.get(name)
            if known is None:
                return False
            labels = dict(known.meta.labels)
        return selector.matches(name, labels)

    def _found(
        self,
        item: PodObject | ServiceObject,
        cluster: ClusterObjects,
        parts: list[EndpointSliceObject],
        behind: Mapping[str, PodObject],
        before: dict[str, _Found],
        report: SelectionReport,
    ) -> tuple[Target, ...]:
        key = item.meta.key
        inputs: tuple[object, ...]
        if isinstance(item, PodObject):
            kind, why = "pod", pod_skip_reason(item)
            inputs = (item, cluster.nodes.get(item.node))
        else:
            ends = [end for part in parts for end in part.endpoints]
            kind, why = "service", "" if ends else "has no endpoints"
            nodes = [cluster.nodes.get(end.node) for end in ends]
            inputs = (item, *parts, *nodes, *(pod_behind(end, behind) for end in ends))
        if why:
            report.add_reason(f"{kind} {key}", why)
            return ()
        report.passed["running"] += 1
        known = before.get(key)
        if known is None or not _same(known.inputs, inputs):
            known = self._evaluate(item, cluster, parts, behind, inputs)
        self._known[key] = known
        report.passed["port"] += known.address_count
        report.passed["relabelling"] += len(known.targets)
        for reason in known.reasons:
            report.add_reason(kind, f"{key} {reason}")
        return known.targets

    def _evaluate(
        self,
        item: PodObject | ServiceObject,
        cluster: ClusterObjects,
        parts: list[EndpointSliceObject],
        behind: Mapping[str, PodObject],
        inputs: tuple[object, ...],
    ) -> _Found:
        targets: list[Target] = []
        reasons: list[str] = []
        number = 0
        for endpoint in self.selection.endpoints:
            if isinstance(item, PodObject):
                addresses = pod_addresses(item, endpoint)
                if not addresses:
                    reasons.append(missing_port_reason(item, endpoint))
            else:
                addresses = list(service_addresses(item, parts, endpoint, behind))
                if not addresses:
                    reasons.append(_missing_service_port(item, endpoint))
            number += len(addresses)
            for address in addresses:
                try:
                    target = self._target(item, endpoint, address, cluster)
                except ValueError as error:
                    reasons.append(f"at {address.address}: {error}")
                else:
                    if target is not None and target not in targets:
                        targets.append(target)
        return _Found(inputs, tuple(targets), number, tuple(reasons))

    def _target(
        self,
        item: PodObject | ServiceObject,
        endpoint: EndpointSettings,
        address: DiscoveredAddress,
        cluster: ClusterObjects,
    ) -> Target | None:
        selection = self.selection
        job = dict(item.meta.labels).get(selection.job_label, "") if selection.job_label else ""
        labels = {
            **address.labels,
            "job": job or selection.name,
            ADDRESS: address.address,
            SCHEME: endpoint.scheme,
            PATH: endpoint.path,
        }
        if endpoint.add_node_label:
            labels["node"] = address.node
            if (node := cluster.nodes.get(address.node)) is not None:
                labels |= node_labels(node)
        target = build_target(selection.name, labels, endpoint.params, selection.rules, endpoint.settings)
        labels_of_target = target.labels if target else ()
        wrong = next((name for name, value in labels_of_target if _SURROGATE.search(value)), "")
        if wrong:
            raise ValueError(f"the value of label {wrong} is not valid Unicode")
        return target


def _same(one: tuple[object, ...], other: tuple[object, ...]) -> bool:
    return len(one) == len(other) and all(a is b for a, b in zip(one, other, strict=True))


def _missing_service_port(service: ServiceObject, endpoint: EndpointSettings) -> str:
    if matching_service_ports(service, endpoint):
        return f"has no address behind its port {endpoint.port or 'at all'}"
    names = ", ".join(port.name or str(port.number) for port in service.ports)
    return f"has no port {endpoint.port or 'at all'} (it has {names or 'none'})"


def _by_service(slices: Iterable[KubernetesObject]) -> dict[str, list[EndpointSliceObject]]:
    found: dict[str, list[EndpointSliceObject]] = {}
    for item in slices:
        parts = item.slices if isinstance(item, EndpointsObject) else (item,)
        for part in parts:
            if isinstance(part, EndpointSliceObject) and part.service:
                found.setdefault(f"{part.meta.namespace}/{part.service}", []).append(part)
    return found
