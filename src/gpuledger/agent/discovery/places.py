"""Where the objects of a cluster can be scraped: addresses with their labels, before any relabelling."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import quote, urlencode

from gpuledger.agent.discovery.meta import (
    Labels,
    backing_labels,
    container_labels,
    endpoint_labels,
    pod_labels,
    service_labels,
)
from gpuledger.agent.discovery.selection import EndpointSettings
from gpuledger.agent.relabel.rule import LABEL_NAME, Relabelling
from gpuledger.agent.scrape.settings import ScrapeSettings, Target
from gpuledger.kubernetes.objects import (
    Container,
    Endpoint,
    PodObject,
    Port,
    ServiceObject,
    SliceObject,
)
from gpuledger.model.settings import duration
from gpuledger.model.text import as_prometheus, host_and_port

RUNNING = "Running"
_TCP = "TCP"


@dataclass(frozen=True, slots=True)
class Place:
    """One address, its labels, and the node that it is on where that is known."""

    address: str
    labels: Labels
    node: str


def why_not_scraped(pod: PodObject) -> str:
    """Empty for a pod that runs and has an address: whether it is ready is for a label to say."""
    if pod.phase != RUNNING:
        return f"is {pod.phase or 'of unknown phase'}, not Running"
    return "" if pod.ip else "has no IP address yet"


def places_of_pod(pod: PodObject, endpoint: EndpointSettings) -> list[Place]:
    """Where a running pod has this endpoint's port.

    A number need not be declared by any container: it is then that port of the pod. A name must be, and is
    at every container that declares it; no port at all is every declared one. Only TCP can be scraped.
    """
    declared = [
        (container, port)
        for container in pod.containers
        for port in container.ports
        if port.protocol == _TCP and _is_meant(port, endpoint)
    ]
    if not declared and endpoint.number and pod.containers:
        return [_place(pod, pod.containers[0], endpoint.number, None)]
    if endpoint.number:
        declared = declared[:1]
    return [_place(pod, container, port.number, port) for container, port in declared]


def missing_port(pod: PodObject, endpoint: EndpointSettings) -> str:
    """Why there is no place: which ports there are."""
    names = [port.name or str(port.number) for container in pod.containers for port in container.ports]
    return f"has no TCP port {endpoint.port or 'at all'} (it declares {', '.join(names) or 'none'})"


def _is_meant(port: Port, endpoint: EndpointSettings) -> bool:
    if endpoint.number:
        return port.number == endpoint.number
    return not endpoint.port or port.name == endpoint.port


def _place(pod: PodObject, container: Container, number: int, port: Port | None) -> Place:
    labels = pod_labels(pod) | container_labels(container, port)
    return Place(host_and_port(pod.ip, number), labels, pod.node)


def service_ports(service: ServiceObject, endpoint: EndpointSettings) -> set[str]:
    """Names of the service's ports that are meant: by name, by number, else by their targetPort."""
    if not endpoint.port:
        return {port.name for port in service.ports}
    for meant in (
        {port.name for port in service.ports if port.name == endpoint.port},
        {port.name for port in service.ports if port.number == endpoint.number},
        {port.name for port in service.ports if port.target == endpoint.port},
    ):
        if meant:
            return meant
    return set()


def places_of_service(
    service: ServiceObject,
    parts: list[SliceObject],
    endpoint: EndpointSettings,
    pods: Mapping[str, PodObject],
) -> Iterator[Place]:
    """Where the service's ports that are meant lead to; `pods` by key are those that labels may tell of."""
    names = service_ports(service, endpoint)
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
                    yield Place(host_and_port(address, port.number), labels, node)


def pod_behind(behind: Endpoint, pods: Mapping[str, PodObject]) -> PodObject | None:
    """The pod that an endpoint leads to, where it leads to one of these."""
    if behind.target_kind != "Pod":
        return None
    return pods.get(f"{behind.target_namespace}/{behind.target_name}")


def _labels_behind(pod: PodObject | None, port: Port) -> Labels:
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


def target_of(
    group: str,
    found: Mapping[str, str],
    params: Mapping[str, tuple[str, ...]],
    rules: Relabelling,
    settings: ScrapeSettings,
) -> Target | None:
    """The target; None where relabelling drops it.

    Raises ValueError, one line, for what cannot be scraped.
    """
    labels = {name: value for name, value in found.items() if value}
    # As Prometheus has them, since rules may read them.
    labels |= {
        INTERVAL: as_prometheus(settings.interval),
        TIMEOUT: as_prometheus(settings.timeout),
        **{PARAM + name: values[0] for name, values in params.items() if values and values[0]},
    }
    if not rules.apply(labels):
        return None
    scheme = labels.get(SCHEME) or "http"
    if scheme not in _DEFAULT_PORTS:
        raise ValueError(f"the scheme {scheme!r} is neither http nor https")
    address = address_of(labels.get(ADDRESS, ""), scheme)
    interval, timeout = _seconds(labels.get(INTERVAL, "")), _seconds(labels.get(TIMEOUT, ""))
    if timeout > interval:
        raise ValueError(f"the timeout of {timeout:g} s is longer than the interval of {interval:g} s")
    url = f"{scheme}://{address}{_path(labels.get(PATH, ''))}{_query(params, labels)}"
    final = {name: value for name, value in labels.items() if not name.startswith("__")}
    wrong = next((name for name in final if not LABEL_NAME.fullmatch(name)), None)
    if wrong is not None:
        raise ValueError(f"relabelling makes {wrong!r}, which is no label name")
    final.setdefault("instance", address)
    return Target(
        group, url, tuple(sorted(final.items())), replace(settings, interval=interval, timeout=timeout)
    )


def address_of(written: str, scheme: str) -> str:
    """`HOST:PORT`, the port being the scheme's where none is written. Raises ValueError."""
    match = _HOST.fullmatch(written)
    if match is None or (match["port"] and int(match["port"][1:]) > 65535):
        raise ValueError(f"an address such as 10.0.0.1:9400 or gpu-node:9400 is wanted, not {written!r}")
    return written if match["port"] else f"{written}:{_DEFAULT_PORTS[scheme]}"


def _path(written: str) -> str:
    return quote(written if written.startswith("/") else f"/{written}", "/:@!$&'()*+,;=-._~%")


def _query(params: Mapping[str, tuple[str, ...]], labels: Mapping[str, str]) -> str:
    asked = {name: list(values) for name, values in params.items()}
    for label, value in labels.items():
        if label.startswith(PARAM):
            name = label.removeprefix(PARAM)
            asked[name] = [value, *asked.get(name, [])[1:]]
    return f"?{urlencode(sorted(asked.items()), doseq=True)}" if asked else ""
