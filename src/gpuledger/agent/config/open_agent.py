"""`features.openAgent`, as in a WhatapAgent resource: targets, and endpoints at which they are scraped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from gpuledger.agent.config.access import AccessReader
from gpuledger.agent.discovery.places import ADDRESS, PATH, SCHEME, address_of, target_of
from gpuledger.agent.discovery.selection import POD_MONITOR, SERVICE_MONITOR, EndpointSettings, Selection
from gpuledger.agent.relabel.reading import read_rules
from gpuledger.agent.relabel.rule import Relabelling
from gpuledger.agent.scrape.labelling import LabelLimits
from gpuledger.agent.scrape.settings import BODY_LIMIT, ScrapeSettings, Target
from gpuledger.host.yaml_nodes import Node
from gpuledger.kubernetes.objects import Expression, NamespaceSelector, Selector
from gpuledger.model.errors import unknown
from gpuledger.model.settings import binary_size, boolean, choice, duration, integer

_OPERATORS: Final = ("In", "NotIn", "Exists", "DoesNotExist")


def read_selector(node: Node) -> Selector:
    """`matchLabels` and `matchExpressions`. Raises UsageError naming the place."""
    keys = node.section(("matchLabels", "matchExpressions"))
    return _selector(keys["matchLabels"], keys["matchExpressions"])


def read_namespaces(node: Node) -> NamespaceSelector:
    """`matchNames` besides; an absent one, as an empty one, selects every namespace."""
    keys = node.section(("matchNames", "matchLabels", "matchExpressions"))
    names = frozenset(name.text() for name in keys["matchNames"].elements())
    return NamespaceSelector(names or None, _selector(keys["matchLabels"], keys["matchExpressions"]))


def _selector(labels: Node, expressions: Node) -> Selector:
    return Selector(
        tuple((key, value.literal("")) for key, value in labels.items()),
        tuple(_expression(element) for element in expressions.elements()),
    )


def _expression(node: Node) -> Expression:
    keys = node.section(("key", "operator", "values"))
    operator = keys["operator"].text()
    if keys["key"].absent:
        raise keys["key"].wrong("is missing: a label's name is wanted")
    if operator not in _OPERATORS:
        raise keys["operator"].wrong(str(unknown("operator", operator, _OPERATORS)))
    values = tuple(value.literal("") for value in keys["values"].elements())
    if operator in ("In", "NotIn") and not values:
        raise keys["values"].wrong(f"is empty: {operator} needs at least one")
    if operator in ("Exists", "DoesNotExist") and values:
        raise keys["values"].wrong(f"is not for {operator}")
    return Expression(keys["key"].text(), operator, values)


_APP: Final = "app.kubernetes.io/name"
# Who has one of these is found by it, and is not to be found a second time by another label.
_NAMED: Final = ("gpuledger", "dcgm-exporter", "gke-managed-dcgm-exporter", "nvidia-gpu-exporter")
_NOT_NAMED: Final = Expression(_APP, "NotIn", _NAMED)

# targetName, labels, what else must hold, port, and whose manifests say so.
USUAL: Final = (
    # This project's chart and manifests; its agent and operator have no GPUs to tell of.
    (
        *("gpuledger", (_APP, "gpuledger")),
        *((Expression("app.kubernetes.io/component", "NotIn", ("agent", "operator")),), "metrics"),
    ),
    # github.com/NVIDIA/dcgm-exporter: its Helm chart and dcgm-exporter.yaml.
    ("dcgm-exporter", (_APP, "dcgm-exporter"), (), "metrics"),
    # NVIDIA's GPU Operator.
    ("nvidia-dcgm-exporter", ("app", "nvidia-dcgm-exporter"), (_NOT_NAMED,), "metrics"),
    # Google Kubernetes Engine's own, in gke-managed-system.
    ("gke-managed-dcgm-exporter", (_APP, "gke-managed-dcgm-exporter"), (), "metrics"),
    # The DaemonSets of a WhatapAgent resource, with and without a node selector for GPUs.
    ("dcgm-exporter-auto", ("name", "whatap-node-agent"), (_NOT_NAMED,), "9400"),
    ("dcgm-exporter-auto-gpu", ("name", "whatap-node-agent-gpu"), (_NOT_NAMED,), "9400"),
    # github.com/utkuozdemir/nvidia_gpu_exporter: its Helm chart.
    ("nvidia-gpu-exporter", (_APP, "nvidia-gpu-exporter"), (), "http"),
)


def usual_exporters(settings: ScrapeSettings, path: str) -> list[Selection]:
    """A selection for each of USUAL, in all namespaces, with the node's name on every series."""
    return [
        Selection(
            name,
            POD_MONITOR,
            NamespaceSelector(),
            Selector((label,), expressions),
            (EndpointSettings(port, "http", path, {}, settings, add_node_label=True),),
        )
        for name, label, expressions, port in USUAL
    ]


STATIC: Final = "StaticEndpoints"
_OF_CLUSTERS: Final = (POD_MONITOR, SERVICE_MONITOR)

_TARGET_KEYS: Final = (
    *("targetName", "type", "enabled", "namespaceSelector", "selector", "jobLabel"),
    *("relabelConfigs", "metricRelabelConfigs", "endpoints"),
)
_ENDPOINT_KEYS: Final = (
    *("port", "address", "path", "interval", "timeout", "scheme", "params", "addNodeLabel"),
    *("tlsConfig", "basicAuth", "authorization", "credentialsOverHttp", "followRedirects"),
    *("honorLabels", "honorTimestamps", "metricRelabelConfigs"),
    *("bodySizeLimit", "sampleLimit", "labelLimit", "labelNameLengthLimit", "labelValueLengthLimit"),
)
_count: Final = integer(0, 10**9)
_interval: Final = duration(lowest=0.1)
_DEFAULT_TIMEOUT: Final = 10.0


@dataclass(frozen=True, slots=True)
class _Common:
    """What holds for every endpoint that does not say otherwise."""

    interval: float
    path: str
    extra_metrics: bool
    access: AccessReader


@dataclass(slots=True)
class OpenAgent:
    """What the section asks for: static targets, how many of them relabelling drops, and what is to be
    looked for in a cluster. `automatic`: no target was named, so the usual exporters are looked for.
    """

    targets: list[Target] = field(default_factory=list)
    dropped: int = 0
    selections: list[Selection] = field(default_factory=list)
    automatic: bool = False


def read_open_agent(node: Node, access: AccessReader) -> OpenAgent:
    """What is to be scraped. Raises UsageError naming the place and the remedy."""
    found = OpenAgent()
    if node.absent:
        return found
    keys = node.section(
        ("enabled", "globalInterval", "globalPath", "extraScrapeMetrics", "targets", "autoTargets")
    )
    if not keys["enabled"].parsed(boolean, True):
        return found
    common = _Common(
        keys["globalInterval"].parsed(_interval, 15.0),
        keys["globalPath"].parsed(_path, "/metrics"),
        keys["extraScrapeMetrics"].parsed(boolean, False),
        access,
    )
    for element in keys["targets"].elements():
        _read_target(element, common, found)
    if keys["autoTargets"].parsed(boolean, keys["targets"].absent):
        timeout = min(_DEFAULT_TIMEOUT, common.interval)
        settings = ScrapeSettings(interval=common.interval, timeout=timeout, honor_labels=True)
        found.selections += usual_exporters(settings, common.path)
        found.automatic = keys["autoTargets"].absent
    names: set[str] = set()
    for selection in found.selections:
        if selection.name in names:
            raise keys["targets"].wrong(f"{selection.name} is there twice; each targetName once")
        names.add(selection.name)
    return found


def _read_target(node: Node, common: _Common, found: OpenAgent) -> None:
    keys = node.section(_TARGET_KEYS)
    name = keys["targetName"].text()
    if not name:
        raise keys["targetName"].wrong("is missing: it becomes the label job")
    kind = keys["type"].text()
    if kind not in (STATIC, *_OF_CLUSTERS):
        raise keys["type"].wrong(str(unknown("type", kind, (STATIC, *_OF_CLUSTERS))))
    rules = read_rules(keys["relabelConfigs"])
    below = read_rules(keys["metricRelabelConfigs"])
    endpoints = [_Endpoint(element, common, below) for element in keys["endpoints"].elements()]
    if not keys["enabled"].parsed(boolean, True):
        return
    if kind != STATIC:
        found.selections.append(_selection(name, kind, keys, rules, endpoints))
        return
    for selector in ("namespaceSelector", "selector", "jobLabel"):
        if not keys[selector].absent:
            raise keys[selector].wrong(f"selects nothing of {STATIC}; leave it out")
    if not endpoints:
        raise keys["endpoints"].wrong("is empty: at least one address is wanted")
    for endpoint in endpoints:
        target = endpoint.target(name, rules)
        if target is None:
            found.dropped += 1
        else:
            found.targets.append(target)


def _selection(
    name: str, kind: str, keys: Mapping[str, Node], rules: Relabelling, endpoints: list[_Endpoint]
) -> Selection:
    if not keys["selector"].mapping:
        raise keys["selector"].wrong("is missing: matchLabels or matchExpressions; {} selects everything")
    if not endpoints:
        raise keys["endpoints"].wrong("is empty: at least one port is wanted")
    return Selection(
        name,
        kind,
        read_namespaces(keys["namespaceSelector"]),
        read_selector(keys["selector"]),
        tuple(endpoint.of_cluster() for endpoint in endpoints),
        rules,
        keys["jobLabel"].text(),
    )


class _Endpoint:
    """One entry of `endpoints`."""

    def __init__(self, node: Node, common: _Common, rules: Relabelling) -> None:
        self._node = node
        self._keys = keys = node.section(_ENDPOINT_KEYS)
        tls = common.access.tls(keys["tlsConfig"])
        login = common.access.login(keys["basicAuth"], keys["authorization"])
        interval = keys["interval"].parsed(_interval, common.interval)
        timeout = keys["timeout"].parsed(_interval, min(_DEFAULT_TIMEOUT, interval))
        if timeout > interval:
            raise keys["timeout"].wrong(f"is longer than the interval of {interval:g} s")
        encrypted = keys["port"].text() == "https" or not keys["tlsConfig"].absent
        self._scheme = keys["scheme"].parsed(choice("http", "https"), "https" if encrypted else "http")
        self._path = keys["path"].parsed(_path, common.path)
        self._params = _params(keys["params"])
        own = read_rules(keys["metricRelabelConfigs"])
        self._settings = ScrapeSettings(
            interval=interval,
            timeout=timeout,
            honor_labels=_honor(keys["honorLabels"]),
            honor_timestamps=keys["honorTimestamps"].parsed(boolean, True),
            body_limit=keys["bodySizeLimit"].parsed(binary_size, BODY_LIMIT),
            sample_limit=keys["sampleLimit"].parsed(_count, 0),
            label_limits=LabelLimits(
                keys["labelLimit"].parsed(_count, 0),
                keys["labelNameLengthLimit"].parsed(_count, 0),
                keys["labelValueLengthLimit"].parsed(_count, 0),
            ),
            relabelling=Relabelling((*rules.rules, *own.rules)),
            tls=tls,
            login=login,
            follow_redirects=keys["followRedirects"].parsed(boolean, True),
            credentials_over_http=keys["credentialsOverHttp"].parsed(boolean, False),
            extra_metrics=common.extra_metrics,
        )
        if login is not None and self._scheme == "http" and not self._settings.credentials_over_http:
            which = "basicAuth" if not keys["basicAuth"].absent else "authorization"
            raise keys[which].wrong(
                "is not sent over plain http: set scheme: https, or credentialsOverHttp: true to do it anyway"
            )

    def target(self, name: str, rules: Relabelling) -> Target | None:
        """What the endpoint of a StaticEndpoints target is; None where relabelling drops it."""
        if self._keys["addNodeLabel"].parsed(boolean, False):
            raise self._keys["addNodeLabel"].wrong("an address is on no node that is known; leave it out")
        try:
            address = self._address()
            found = {"job": name, ADDRESS: address, SCHEME: self._scheme, PATH: self._path}
            return target_of(name, found, self._params, rules, self._settings)
        except ValueError as error:
            raise self._node.wrong(str(error)) from None

    def of_cluster(self) -> EndpointSettings:
        """What the endpoint of a PodMonitor or ServiceMonitor target is."""
        if not self._keys["address"].absent:
            raise self._keys["address"].wrong(f"is for {STATIC}; the cluster knows it: a port is enough")
        port = self._keys["port"]
        if port.text().isdigit():
            port.parsed(integer(1, 65535), 0)
        return EndpointSettings(
            port.text(),
            self._scheme,
            self._path,
            self._params,
            self._settings,
            self._keys["addNodeLabel"].parsed(boolean, False),
        )

    def _address(self) -> str:
        written, port = self._keys["address"].text(), self._keys["port"]
        if not written:
            raise ValueError("has no address, which StaticEndpoints needs")
        address = address_of(written, self._scheme)
        if address != written and not port.absent:
            return f"{written}:{port.parsed(integer(1, 65535), 0)}"
        if port.text().isdigit() and not written.endswith(f":{port.text()}"):
            raise ValueError(f"has port {port.text()} and address {written}; one of the two ports is wanted")
        return address


def _path(value: object) -> str:
    path = str(value)
    if any(char in path for char in "?# \t") or not path.isprintable():
        raise ValueError("a path such as /metrics is wanted (what follows a ? goes into params)")
    return path


def _params(node: Node) -> Mapping[str, tuple[str, ...]]:
    return {name: tuple(value.text() for value in values.elements()) for name, values in node.items()}


def _honor(node: Node) -> bool | None:
    word = node.text().lower()
    return None if word in ("", "auto") else node.parsed(boolean, False)
