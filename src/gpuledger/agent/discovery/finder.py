"""From the objects of a cluster to the targets of a selection: pure, and anew only for what has changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gpuledger.agent.discovery.meta import POD, node_labels
from gpuledger.agent.discovery.places import (
    ADDRESS,
    PATH,
    SCHEME,
    Place,
    missing_port,
    places_of_pod,
    places_of_service,
    pod_behind,
    service_ports,
    target_of,
    why_not_scraped,
)
from gpuledger.agent.discovery.selection import POD_MONITOR, EndpointSettings, Selection, SelectionReport
from gpuledger.agent.scrape.settings import Target
from gpuledger.kubernetes.object_watch import Object
from gpuledger.kubernetes.objects import (
    EndpointsObject,
    PlainObject,
    PodObject,
    ServiceObject,
    SliceObject,
)


@dataclass(frozen=True, slots=True)
class Cluster:
    """One moment of a cluster, as far as a selection looks at it. Without `namespaces` their labels are not
    known, and not asked for.
    """

    pods: Iterable[Object] = ()
    services: Iterable[Object] = ()
    slices: Iterable[Object] = ()
    nodes: Mapping[str, PlainObject] = field(default_factory=dict)
    namespaces: Mapping[str, PlainObject] | None = None


@dataclass(slots=True)
class _Found:
    """What one object came to, and what it was made of."""

    made_of: tuple[object, ...]
    targets: tuple[Target, ...]
    places: int
    reasons: tuple[str, ...]


class Finder:
    """Finds one selection's targets. What an object came to is remembered while nothing of it changes."""

    def __init__(self, selection: Selection) -> None:
        self.selection = selection
        self._known: dict[str, _Found] = {}
        self._pods_matter = selection.mentions(POD)

    def find(self, cluster: Cluster) -> tuple[list[Target], SelectionReport]:
        """The targets, and how far everything came."""
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
        for about in cluster.pods if pods else cluster.services:
            if not self._in_namespace(about.meta.namespace, cluster):
                continue
            namespaces.add(about.meta.namespace)
            if not isinstance(about, PodObject | ServiceObject) or not selection.selector.matches(
                dict(about.meta.labels)
            ):
                continue
            report.count("labels")
            found = self._found(about, cluster, parts.get(about.meta.key, []), behind, before, report)
            targets += found
        report.count("namespace", self._namespaces(cluster, namespaces))
        return targets, report

    def _namespaces(self, cluster: Cluster, seen: set[str]) -> int:
        if cluster.namespaces is None:
            names = self.selection.namespaces.names
            return len(seen) if names is None else len(names)
        return sum(self._in_namespace(name, cluster) for name in cluster.namespaces)

    def _in_namespace(self, name: str, cluster: Cluster) -> bool:
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
        about: PodObject | ServiceObject,
        cluster: Cluster,
        parts: list[SliceObject],
        behind: Mapping[str, PodObject],
        before: dict[str, _Found],
        report: SelectionReport,
    ) -> tuple[Target, ...]:
        key = about.meta.key
        if isinstance(about, PodObject):
            why = why_not_scraped(about)
            if why:
                report.stopped(f"pod {key}", why)
                return ()
            made_of: tuple[object, ...] = (about, cluster.nodes.get(about.node))
        else:
            if not any(part.endpoints for part in parts):
                report.stopped(f"service {key}", "has no endpoints")
                return ()
            ends = [end for part in parts for end in part.endpoints]
            nodes = [cluster.nodes.get(end.node) for end in ends]
            made_of = (about, *parts, *nodes, *(pod_behind(end, behind) for end in ends))
        report.count("running")
        known = before.get(key)
        if known is None or not _same(known.made_of, made_of):
            known = self._look(about, cluster, parts, behind, made_of)
        self._known[key] = known
        report.count("port", known.places)
        report.count("relabelling", len(known.targets))
        for reason in known.reasons:
            report.stopped("pod" if isinstance(about, PodObject) else "service", f"{key} {reason}")
        return known.targets

    def _look(
        self,
        about: PodObject | ServiceObject,
        cluster: Cluster,
        parts: list[SliceObject],
        behind: Mapping[str, PodObject],
        made_of: tuple[object, ...],
    ) -> _Found:
        targets: list[Target] = []
        reasons: list[str] = []
        number = 0
        for endpoint in self.selection.endpoints:
            if isinstance(about, PodObject):
                places = places_of_pod(about, endpoint)
                if not places:
                    reasons.append(missing_port(about, endpoint))
            else:
                places = list(places_of_service(about, parts, endpoint, behind))
                if not places:
                    reasons.append(_missing_service_port(about, endpoint))
            number += len(places)
            for place in places:
                try:
                    target = self._target(about, endpoint, place, cluster)
                except ValueError as error:
                    reasons.append(f"at {place.address}: {error}")
                else:
                    if target is not None and target not in targets:
                        targets.append(target)
        return _Found(made_of, tuple(targets), number, tuple(reasons))

    def _target(
        self, about: PodObject | ServiceObject, endpoint: EndpointSettings, place: Place, cluster: Cluster
    ) -> Target | None:
        selection = self.selection
        job = dict(about.meta.labels).get(selection.job_label, "") if selection.job_label else ""
        labels = {
            **place.labels,
            "job": job or selection.name,
            ADDRESS: place.address,
            SCHEME: endpoint.scheme,
            PATH: endpoint.path,
        }
        if endpoint.add_node_label:
            labels["node"] = place.node
            if (node := cluster.nodes.get(place.node)) is not None:
                labels |= node_labels(node)
        target = target_of(selection.name, labels, endpoint.params, selection.rules, endpoint.settings)
        wrong = next((name for name, value in target.labels if not _is_text(value)), "") if target else ""
        if wrong:
            raise ValueError(f"the label {wrong} would not be UTF-8")
        return target


def _is_text(value: str) -> bool:
    """JSON can say half of a character, which no label can."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _same(one: tuple[object, ...], other: tuple[object, ...]) -> bool:
    return len(one) == len(other) and all(a is b for a, b in zip(one, other, strict=True))


def _missing_service_port(service: ServiceObject, endpoint: EndpointSettings) -> str:
    if service_ports(service, endpoint):
        return f"has no address behind its port {endpoint.port or 'at all'}"
    names = ", ".join(port.name or str(port.number) for port in service.ports)
    return f"has no port {endpoint.port or 'at all'} (it has {names or 'none'})"


def _by_service(slices: Iterable[Object]) -> dict[str, list[SliceObject]]:
    found: dict[str, list[SliceObject]] = {}
    for about in slices:
        parts = about.slices if isinstance(about, EndpointsObject) else (about,)
        for part in parts:
            if isinstance(part, SliceObject) and part.service:
                found.setdefault(f"{part.meta.namespace}/{part.service}", []).append(part)
    return found
