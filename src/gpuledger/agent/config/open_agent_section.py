"""Parser of `features.openAgent`, as in a WhatapAgent resource: targets and their endpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from gpuledger.agent.config.client_auth import ClientAuthReader
from gpuledger.agent.discovery.addresses import ADDRESS, PATH, SCHEME, build_target, parse_address
from gpuledger.agent.discovery.selection import POD_MONITOR, SERVICE_MONITOR, EndpointSettings, Selection
from gpuledger.agent.relabel.rule_parser import read_relabel_rules
from gpuledger.agent.relabel.rules import RelabelRules
from gpuledger.agent.scrape.series_labels import LabelLimits
from gpuledger.agent.scrape.settings import BODY_LIMIT, ScrapeSettings, Target
from gpuledger.host.yaml_nodes import YamlNode
from gpuledger.kubernetes.objects import LabelExpression, LabelSelector, NamespaceSelector
from gpuledger.model.errors import unknown_name_error
from gpuledger.model.settings import binary_size, boolean, choice, duration, integer

_OPERATORS: Final = ("In", "NotIn", "Exists", "DoesNotExist")


def read_selector(node: YamlNode) -> LabelSelector:
    """Parse `matchLabels` and `matchExpressions`. Raises UsageError naming the key."""
    keys = node.section(("matchLabels", "matchExpressions"))
    return _selector(keys["matchLabels"], keys["matchExpressions"])


def read_namespace_selector(node: YamlNode) -> NamespaceSelector:
    """Parse a selector that also has `matchNames`; if it is absent or empty, it selects all namespaces."""
    keys = node.section(("matchNames", "matchLabels", "matchExpressions"))
    names = frozenset(name.text() for name in keys["matchNames"].elements())
    return NamespaceSelector(names or None, _selector(keys["matchLabels"], keys["matchExpressions"]))


def _selector(labels: YamlNode, expressions: YamlNode) -> LabelSelector:
    return LabelSelector(
        tuple((key, value.literal("")) for key, value in labels.items()),
        tuple(_expression(element) for element in expressions.elements()),
    )


def _expression(node: YamlNode) -> LabelExpression:
    keys = node.section(("key", "operator", "values"))
    operator = keys["operator"].text()
    if keys["key"].absent:
        raise keys["key"].error("is missing: expected a label name")
    if operator not in _OPERATORS:
        raise keys["operator"].error(str(unknown_name_error("operator", operator, _OPERATORS)))
    values = tuple(value.literal("") for value in keys["values"].elements())
    if operator in ("In", "NotIn") and not values:
        raise keys["values"].error(f"is empty: {operator} needs at least one value")
    if operator in ("Exists", "DoesNotExist") and values:
        raise keys["values"].error(f"is not allowed for {operator}")
    return LabelExpression(keys["key"].text(), operator, values)


_APP: Final = "app.kubernetes.io/name"
# Exporters found by this label; the selections by other labels exclude them to avoid duplicate targets.
_NAMED: Final = ("gpuledger", "dcgm-exporter", "gke-managed-dcgm-exporter", "nvidia-gpu-exporter")
_NOT_NAMED: Final = LabelExpression(_APP, "NotIn", _NAMED)

# targetName, label, more expressions, port; the comment names the source of the labels.
KNOWN_EXPORTERS: Final = (
    # This project's chart and manifests; its agent and operator export no GPU metrics.
    (
        *("gpuledger", (_APP, "gpuledger")),
        *((LabelExpression("app.kubernetes.io/component", "NotIn", ("agent", "operator")),), "metrics"),
    ),
    # github.com/NVIDIA/dcgm-exporter: its Helm chart and dcgm-exporter.yaml.
    ("dcgm-exporter", (_APP, "dcgm-exporter"), (), "metrics"),
    # NVIDIA's GPU Operator.
    ("nvidia-dcgm-exporter", ("app", "nvidia-dcgm-exporter"), (_NOT_NAMED,), "metrics"),
    # Google Kubernetes Engine's managed exporter, in gke-managed-system.
    ("gke-managed-dcgm-exporter", (_APP, "gke-managed-dcgm-exporter"), (), "metrics"),
    # The DaemonSets of a WhatapAgent resource, with and without a node selector for GPUs.
    ("dcgm-exporter-auto", ("name", "whatap-node-agent"), (_NOT_NAMED,), "9400"),
    ("dcgm-exporter-auto-gpu", ("name", "whatap-node-agent-gpu"), (_NOT_NAMED,), "9400"),
    # github.com/utkuozdemir/nvidia_gpu_exporter: its Helm chart.
    ("nvidia-gpu-exporter", (_APP, "nvidia-gpu-exporter"), (), "http"),
)


def known_exporter_selections(settings: ScrapeSettings, path: str) -> list[Selection]:
    """Return a selection for each of KNOWN_EXPORTERS, in all namespaces, with a `node` label."""
    return [
        Selection(
            name,
            POD_MONITOR,
            NamespaceSelector(),
            LabelSelector((label,), expressions),
            (EndpointSettings(port, "http", path, {}, settings, add_node_label=True),),
        )
        for name, label, expressions, port in KNOWN_EXPORTERS
    ]


STATIC: Final = "StaticEndpoints"
_DISCOVERED_TYPES: Final = (POD_MONITOR, SERVICE_MONITOR)

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
    """Defaults for all endpoints."""

    interval: float
    path: str
    extra_metrics: bool
    access: ClientAuthReader


@dataclass(slots=True)
class OpenAgentConfig:
    """Parsed section: static targets, the number that relabeling drops, and selections to discover.

    `automatic`: no target is configured, so the known exporters are discovered.
    """

    targets: list[Target] = field(default_factory=list)
    dropped: int = 0
    selections: list[Selection] = field(default_factory=list)
    automatic: bool = False


def read_open_agent(node: YamlNode, access: ClientAuthReader) -> OpenAgentConfig:
    """Parse the section. Raises UsageError naming the key and the remedy."""
    found = OpenAgentConfig()
    if node.absent:
        return found
    keys = node.section(
        ("enabled", "globalInterval", "globalPath", "extraScrapeMetrics", "targets", "autoTargets")
    )
    if not keys["enabled"].parse(boolean, True):
        return found
    common = _Common(
        keys["globalInterval"].parse(_interval, 15.0),
        keys["globalPath"].parse(_path, "/metrics"),
        keys["extraScrapeMetrics"].parse(boolean, False),
        access,
    )
    for element in keys["targets"].elements():
        _read_target(element, common, found)
    if keys["autoTargets"].parse(boolean, keys["targets"].absent):
        timeout = min(_DEFAULT_TIMEOUT, common.interval)
        settings = ScrapeSettings(interval=common.interval, timeout=timeout, honor_labels=True)
        found.selections += known_exporter_selections(settings, common.path)
        found.automatic = keys["autoTargets"].absent
    names: set[str] = set()
    for selection in found.selections:
        if selection.name in names:
            raise keys["targets"].error(f"duplicate targetName {selection.name}; each must be unique")
        names.add(selection.name)
    return found


def _read_target(node: YamlNode, common: _Common, found: OpenAgentConfig) -> None:
    keys = node.section(_TARGET_KEYS)
    name = keys["targetName"].text()
    if not name:
        raise keys["targetName"].error("is missing: it becomes the job label")
    kind = keys["type"].text()
    if kind not in (STATIC, *_DISCOVERED_TYPES):
        raise keys["type"].error(str(unknown_name_error("type", kind, (STATIC, *_DISCOVERED_TYPES))))
    rules = read_relabel_rules(keys["relabelConfigs"])
    below = read_relabel_rules(keys["metricRelabelConfigs"])
    endpoints = [_Endpoint(element, common, below) for element in keys["endpoints"].elements()]
    if not keys["enabled"].parse(boolean, True):
        return
    if kind != STATIC:
        found.selections.append(_selection(name, kind, keys, rules, endpoints))
        return
    for selector in ("namespaceSelector", "selector", "jobLabel"):
        if not keys[selector].absent:
            raise keys[selector].error(f"has no effect for {STATIC}; remove it")
    if not endpoints:
        raise keys["endpoints"].error("is empty: expected at least one address")
    for endpoint in endpoints:
        target = endpoint.target(name, rules)
        if target is None:
            found.dropped += 1
        else:
            found.targets.append(target)


def _selection(
    name: str, kind: str, keys: Mapping[str, YamlNode], rules: RelabelRules, endpoints: list[_Endpoint]
) -> Selection:
    if not keys["selector"].mapping:
        raise keys["selector"].error("is missing: set matchLabels or matchExpressions; {} selects everything")
    if not endpoints:
        raise keys["endpoints"].error("is empty: expected at least one port")
    return Selection(
        name,
        kind,
        read_namespace_selector(keys["namespaceSelector"]),
        read_selector(keys["selector"]),
        tuple(endpoint.discovery_settings() for endpoint in endpoints),
        rules,
        keys["jobLabel"].text(),
    )


class _Endpoint:
    """One entry of `endpoints`."""

    def __init__(self, node: YamlNode, common: _Common, rules: RelabelRules) -> None:
        self._node = node
        self._keys = keys = node.section(_ENDPOINT_KEYS)
        tls = common.access.tls(keys["tlsConfig"])
        login = common.access.login(keys["basicAuth"], keys["authorization"])
        interval = keys["interval"].parse(_interval, common.interval)
        timeout = keys["timeout"].parse(_interval, min(_DEFAULT_TIMEOUT, interval))
        if timeout > interval:
            raise keys["timeout"].error(f"is longer than the interval of {interval:g} s")
        encrypted = keys["port"].text() == "https" or not keys["tlsConfig"].absent
        self._scheme = keys["scheme"].parse(choice("http", "https"), "https" if encrypted else "http")
        self._path = keys["path"].parse(_path, common.path)
        self._params = _params(keys["params"])
        own = read_relabel_rules(keys["metricRelabelConfigs"])
        self._settings = ScrapeSettings(
            interval=interval,
            timeout=timeout,
            honor_labels=_honor(keys["honorLabels"]),
            honor_timestamps=keys["honorTimestamps"].parse(boolean, True),
            body_limit=keys["bodySizeLimit"].parse(binary_size, BODY_LIMIT),
            sample_limit=keys["sampleLimit"].parse(_count, 0),
            label_limits=LabelLimits(
                keys["labelLimit"].parse(_count, 0),
                keys["labelNameLengthLimit"].parse(_count, 0),
                keys["labelValueLengthLimit"].parse(_count, 0),
            ),
            metric_relabeling=RelabelRules((*rules.rules, *own.rules)),
            tls=tls,
            login=login,
            follow_redirects=keys["followRedirects"].parse(boolean, True),
            credentials_over_http=keys["credentialsOverHttp"].parse(boolean, False),
            extra_metrics=common.extra_metrics,
        )
        if login is not None and self._scheme == "http" and not self._settings.credentials_over_http:
            which = "basicAuth" if not keys["basicAuth"].absent else "authorization"
            raise keys[which].error(
                "is not sent over plain http; set scheme: https, or credentialsOverHttp: true to allow it"
            )

    def target(self, name: str, rules: RelabelRules) -> Target | None:
        """Return the target of a StaticEndpoints endpoint; None if relabeling drops it."""
        if self._keys["addNodeLabel"].parse(boolean, False):
            raise self._keys["addNodeLabel"].error("the node of a static address is unknown; remove it")
        try:
            address = self._address()
            found = {"job": name, ADDRESS: address, SCHEME: self._scheme, PATH: self._path}
            return build_target(name, found, self._params, rules, self._settings)
        except ValueError as error:
            raise self._node.error(str(error)) from None

    def discovery_settings(self) -> EndpointSettings:
        """Return the settings of a PodMonitor or ServiceMonitor endpoint."""
        if not self._keys["address"].absent:
            raise self._keys["address"].error(f"is only for {STATIC}; set port instead")
        port = self._keys["port"]
        if port.text().isdigit():
            port.parse(integer(1, 65535), 0)
        return EndpointSettings(
            port.text(),
            self._scheme,
            self._path,
            self._params,
            self._settings,
            self._keys["addNodeLabel"].parse(boolean, False),
        )

    def _address(self) -> str:
        written, port = self._keys["address"].text(), self._keys["port"]
        if not written:
            raise ValueError("has no address; StaticEndpoints needs one")
        address = parse_address(written, self._scheme)
        if address != written and not port.absent:
            return f"{written}:{port.parse(integer(1, 65535), 0)}"
        if port.text().isdigit() and not written.endswith(f":{port.text()}"):
            raise ValueError(f"has port {port.text()} and address {written}; set the port only once")
        return address


def _path(value: object) -> str:
    path = str(value)
    if any(char in path for char in "?# \t") or not path.isprintable():
        raise ValueError("expected a path such as /metrics (set query parameters in params)")
    return path


def _params(node: YamlNode) -> Mapping[str, tuple[str, ...]]:
    return {name: tuple(value.text() for value in values.elements()) for name, values in node.items()}


def _honor(node: YamlNode) -> bool | None:
    word = node.text().lower()
    return None if word in ("", "auto") else node.parse(boolean, False)
