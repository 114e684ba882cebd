"""Addresses of pods and services with their meta labels, and the targets that relabeling makes of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import quote, urlencode

from gpuledger.agent.discovery.meta_labels import (
    Labels,
    backing_labels,
    container_labels,
    endpoint_labels,
    pod_labels,
    service_labels,
)
from gpuledger.agent.discovery.selection import EndpointSettings
from gpuledger.agent.relabel.rules import LABEL_NAME, RelabelRules
from gpuledger.agent.scrape.settings import ScrapeSettings, Target
from gpuledger.kubernetes.objects import (
    EndpointSliceObject,
    ObjectPort,
    PodContainer,
    PodObject,
    ServiceEndpoint,
    ServiceObject,
)
from gpuledger.model.settings import duration
from gpuledger.model.text import format_duration, join_host_port

RUNNING = "Running"
_TCP = "TCP"


@dataclass(frozen=True, slots=True)
class DiscoveredAddress:
    """An address with its meta labels, and the name of its node (empty if unknown)."""

    address: str
    labels: Labels
    node: str


def pod_skip_reason(pod: PodObject) -> str:
    """Return why a pod is not a target; empty if it is running and has an IP. Readiness is only a label."""
    if pod.phase != RUNNING:
        return f"is {pod.phase or 'of unknown phase'}, not Running"
    return "" if pod.ip else "has no IP address yet"


def pod_addresses(pod: PodObject, endpoint: EndpointSettings) -> list[DiscoveredAddress]:
    """Return the addresses of a running pod for this endpoint's port; only TCP.

    A port number does not need to be declared. A port name gives one address for each container that declares
    it. Without a port, each declared port gives one.
    """
    declared = [
        (container, port)
        for container in pod.containers
        for port in container.ports
        if port.protocol == _TCP and _matches_port(port, endpoint)
    ]
    if not declared and endpoint.number and pod.containers:
        return [_pod_address(pod, pod.containers[0], endpoint.number, None)]
    if endpoint.number:
        declared = declared[:1]
    return [_pod_address(pod, container, port.number, port) for container, port in declared]


def missing_port_reason(pod: PodObject, endpoint: EndpointSettings) -> str:
    """Return why a pod has no address, with the ports that it declares."""
    names = [port.name or str(port.number) for container in pod.containers for port in container.ports]
    return f"has no TCP port {endpoint.port or 'at all'} (it declares {', '.join(names) or 'none'})"


def _matches_port(port: ObjectPort, endpoint: EndpointSettings) -> bool:
    if endpoint.number:
        return port.number == endpoint.number
    return not endpoint.port or port.name == endpoint.port


def _pod_address(
    pod: PodObject, container: PodContainer, number: int, port: ObjectPort | None
) -> DiscoveredAddress:
    labels = pod_labels(pod) | container_labels(container, port)
    return DiscoveredAddress(join_host_port(pod.ip, number), labels, pod.node)


def matching_service_ports(service: ServiceObject, endpoint: EndpointSettings) -> set[str]:
    """Return the names of the matching service ports: by name, else by number, else by targetPort."""
    if not endpoint.port:
        return {port.name for port in service.ports}
    for matching in (
        {port.name for port in service.ports if port.name == endpoint.port},
        {port.name for port in service.ports if port.number == endpoint.number},
        {port.name for port in service.ports if port.target == endpoint.port},
    ):
        if matching:
            return matching
    return set()


def service_addresses(
    service: ServiceObject,
    parts: list[EndpointSliceObject],
    endpoint: EndpointSettings,
    pods: Mapping[str, PodObject],
) -> Iterator[DiscoveredAddress]:
    """Yield the addresses behind the service's matching ports. `pods`, by key, are for their labels."""
    names = matching_service_ports(service, endpoint)
    own = service_labels(service)
    for part in parts:
        for port in part.ports:
            if port.name not in names or port.protocol != _TCP or part.address_type == "FQDN":
                continue
            for behind in part.endpoints:
                pod = pod_behind(behind, pods)
                if pod is not None and pod.phase in ("Succeeded", "Failed"):
                    continue
                labels = endpoint_labels(part, behind, port) | own | _labels_behind(pod, port)
                node = behind.node or (pod.node if pod else "")
                for address in behind.addresses:
                    yield DiscoveredAddress(join_host_port(address, port.number), labels, node)


def pod_behind(behind: ServiceEndpoint, pods: Mapping[str, PodObject]) -> PodObject | None:
    """Return the pod behind an endpoint, if it is one of `pods`."""
    if behind.target_kind != "Pod":
        return None
    return pods.get(f"{behind.target_namespace}/{behind.target_name}")


def _labels_behind(pod: PodObject | None, port: ObjectPort) -> Labels:
    if pod is None:
        return {}
    labels = pod_labels(pod)
    for container in pod.containers:
        for declared in container.ports:
            if declared.number == port.number:
                return labels | backing_labels(container, declared)
    return labels


ADDRESS: Final = "__address__"
SCHEME: Final = "__scheme__"
PATH: Final = "__metrics_path__"
INTERVAL: Final = "__scrape_interval__"
TIMEOUT: Final = "__scrape_timeout__"
PARAM: Final = "__param_"

_DEFAULT_PORTS: Final = {"http": "80", "https": "443"}
_HOST: Final = re.compile(r"(?:\[[^\[\]/\s]+\]|[^:\[\]/\s]+)(?P<port>:[0-9]{1,5})?")
_seconds: Final = duration(lowest=0.001)


def build_target(
    group: str,
    found: Mapping[str, str],
    params: Mapping[str, tuple[str, ...]],
    rules: RelabelRules,
    settings: ScrapeSettings,
) -> Target | None:
    """Apply relabeling and build the target; None if relabeling drops it.

    Raises ValueError (one line) for a target that cannot be scraped.
    """
    labels = {name: value for name, value in found.items() if value}
    # As in Prometheus: rules may read them.
    labels |= {
        INTERVAL: format_duration(settings.interval),
        TIMEOUT: format_duration(settings.timeout),
        **{PARAM + name: values[0] for name, values in params.items() if values and values[0]},
    }
    if not rules.apply(labels):
        return None
    scheme = labels.get(SCHEME) or "http"
    if scheme not in _DEFAULT_PORTS:
        raise ValueError(f"the scheme {scheme!r} is neither http nor https")
    address = parse_address(labels.get(ADDRESS, ""), scheme)
    interval, timeout = _seconds(labels.get(INTERVAL, "")), _seconds(labels.get(TIMEOUT, ""))
    url = f"{scheme}://{address}{_path(labels.get(PATH, ''))}{_query(params, labels)}"
    final = {name: value for name, value in labels.items() if not name.startswith("__")}
    wrong = next((name for name in final if not LABEL_NAME.fullmatch(name)), None)
    if wrong is not None:
        raise ValueError(f"relabeling produced the invalid label name {wrong!r}")
    final.setdefault("instance", address)
    return Target(
        group, url, tuple(sorted(final.items())), replace(settings, interval=interval, timeout=timeout)
    )


def parse_address(written: str, scheme: str) -> str:
    """Return `HOST:PORT`, with the scheme's default port if none is given. Raises ValueError."""
    match = _HOST.fullmatch(written)
    if match is None or (match["port"] and int(match["port"][1:]) > 65535):
        raise ValueError(f"expected an address such as 10.0.0.1:9400 or gpu-node:9400, not {written!r}")
    return written if match["port"] else f"{written}:{_DEFAULT_PORTS[scheme]}"


def _path(written: str) -> str:
    return quote(written if written.startswith("/") else f"/{written}", "/:@!$&'()*+,;=-._~%")


def _query(params: Mapping[str, tuple[str, ...]], labels: Mapping[str, str]) -> str:
    query = {name: list(values) for name, values in params.items()}
    for label, value in labels.items():
        if label.startswith(PARAM):
            name = label.removeprefix(PARAM)
            query[name] = [value, *query.get(name, [])[1:]]
    return f"?{urlencode(sorted(query.items()), doseq=True)}" if query else ""
