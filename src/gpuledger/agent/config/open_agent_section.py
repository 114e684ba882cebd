"""Parser of `features.openAgent`, as in a WhatapAgent resource: targets and their endpoints."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from gpuledger.agent.config.client_auth import ClientAuthReader
from gpuledger.agent.discovery.addresses import ADDRESS, PATH, SCHEME, build_target, parse_address
from gpuledger.agent.discovery.selection import POD_MONITOR, SERVICE_MONITOR, EndpointSettings, Selection
from gpuledger.agent.relabel.rule_parser import read_relabel_rules
from gpuledger.agent.relabel.rules import RelabelRules
from gpuledger.agent.scrape.series_labels import LabelLimits
from gpuledger.agent.scrape.settings import AHEAD_LIMIT, BODY_LIMIT, AdaptiveTimeout, ScrapeSettings, Target
from gpuledger.host.yaml_nodes import YamlNode
from gpuledger.kubernetes.objects import LabelExpression, LabelSelector, NamespaceSelector
from gpuledger.model.errors import UsageError, collect_errors, raise_errors, unknown_name_error
from gpuledger.model.settings import binary_size, boolean, choice, duration, integer, number

T = TypeVar("T")

_SELECTOR_KEYS: Final = ("matchLabels", "matchExpressions")
_OPERATORS: Final = ("In", "NotIn", "Exists", "DoesNotExist")


def read_selector(node: YamlNode) -> LabelSelector:
    """Parse `matchLabels` and `matchExpressions`. Raises UsageError naming the key."""
    return _selector(node.section(_SELECTOR_KEYS))


def read_namespace_selector(node: YamlNode) -> NamespaceSelector:
    """Parse a selector that also has `matchNames`; if it is absent or empty, it selects all namespaces."""
    keys = node.section(("matchNames", *_SELECTOR_KEYS))
    names = frozenset(name.text() for name in keys["matchNames"].elements())
    return NamespaceSelector(names or None, _selector(keys))


def _selector(keys: Mapping[str, YamlNode]) -> LabelSelector:
    return LabelSelector(
        tuple((key, value.literal("")) for key, value in keys["matchLabels"].items()),
        tuple(_expression(element) for element in keys["matchExpressions"].elements()),
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
    *("port", "address", "path", "interval", "timeout", "adaptiveTimeout", "scheme", "params"),
    "addNodeLabel",
    *("tlsConfig", "basicAuth", "authorization", "credentialsOverHttp", "followRedirects"),
    *("honorLabels", "honorTimestamps", "timestampAheadLimit", "metricRelabelConfigs"),
    *("bodySizeLimit", "sampleLimit", "labelLimit", "labelNameLengthLimit", "labelValueLengthLimit"),
)
_EVERYWHERE: Final = NamespaceSelector()
_EVERY_LABEL: Final = LabelSelector()
_count: Final = integer(0, 10**9)
_interval: Final = duration(lowest=0.1)
_ahead_limit: Final = duration()
_DEFAULT_TIMEOUT: Final = 10.0


@dataclass(frozen=True, slots=True)
class _Common:
    """Defaults for all endpoints."""

    interval: float
    path: str
    extra_metrics: bool
    access: ClientAuthReader
    # Names of selections, which are unique.
    names: set[str] = field(default_factory=set)


@dataclass(kw_only=True)
class OpenAgentConfig:
    """Parsed section: static targets, the number that relabeling drops, and selections to discover.

    `automatic`: no target is configured, so the known exporters are discovered.
    """

    targets: list[Target] = field(default_factory=list)
    dropped: int = 0
    selections: list[Selection] = field(default_factory=list)
    automatic: bool = False


def read_open_agent(node: YamlNode, access: ClientAuthReader) -> OpenAgentConfig:
    """Parse the section. Raises UsageError naming each wrong key and the remedy."""
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
    automatic = keys["autoTargets"].parse(boolean, keys["targets"].absent)
    if automatic:
        common.names.update(name for name, *_ in KNOWN_EXPORTERS)
    errors: list[UsageError] = []
    for element in keys["targets"].elements():
        with collect_errors(errors):
            _read_target(element, common, found)
    if automatic:
        timeout = min(_DEFAULT_TIMEOUT, common.interval)
        settings = ScrapeSettings(interval=common.interval, timeout=timeout, honor_labels=True)
        found.selections += known_exporter_selections(settings, common.path)
        found.automatic = keys["autoTargets"].absent
    raise_errors(errors)
    return found


# An endpoint as written, its keys, and its settings.
_ReadEndpoint = tuple[YamlNode, Mapping[str, YamlNode], EndpointSettings]


def _read_target(node: YamlNode, common: _Common, found: OpenAgentConfig) -> None:
    """Add a target to `found`. Raises UsageError naming each wrong key; then nothing is added."""
    keys = node.section(_TARGET_KEYS)
    errors: list[UsageError] = []
    name = _attempt(errors, lambda: _target_name(keys["targetName"]), "")
    kind = _attempt(errors, lambda: _target_type(keys["type"]), "")
    enabled = _attempt(errors, lambda: keys["enabled"].parse(boolean, True), True)
    rules = _relabel_rules(errors, keys["relabelConfigs"])
    below = _relabel_rules(errors, keys["metricRelabelConfigs"])
    elements: list[YamlNode] = _attempt(errors, keys["endpoints"].elements, [])
    endpoints: list[_ReadEndpoint] = []
    for element in elements:
        with collect_errors(errors):
            section = element.section(_ENDPOINT_KEYS)
            own = _relabel_rules(errors, section["metricRelabelConfigs"])
            both = RelabelRules((*below.rules, *own.rules))
            endpoints.append((element, section, _endpoint(section, common, both)))
    targets: list[Target | None] = []
    selections: list[Selection] = []
    if enabled and kind:
        with collect_errors(errors):
            if not elements:
                expected = "address" if kind == STATIC else "port"
                raise keys["endpoints"].error(f"is empty: expected at least one {expected}")
        with collect_errors(errors):
            if kind == STATIC:
                targets = _static_targets(name, rules, keys, endpoints)
            else:
                selections = [_selection(name, kind, keys, rules, endpoints, common.names)]
    raise_errors(errors)
    common.names.update(selection.name for selection in selections)
    found.selections += selections
    found.targets += [target for target in targets if target is not None]
    found.dropped += targets.count(None)


def _attempt(errors: list[UsageError], read: Callable[[], T], default: T) -> T:
    """The value that `read` returns; `default` if it raises an error, which is collected."""
    try:
        return read()
    except UsageError as error:
        errors += error.errors
        return default


def _relabel_rules(errors: list[UsageError], node: YamlNode) -> RelabelRules:
    return _attempt(errors, lambda: read_relabel_rules(node), RelabelRules())


def _target_name(node: YamlNode) -> str:
    if not (name := node.text()):
        raise node.error("is missing: it becomes the job label")
    return name


def _target_type(node: YamlNode) -> str:
    if (kind := node.text()) not in (STATIC, *_DISCOVERED_TYPES):
        raise node.error(str(unknown_name_error("type", kind, (STATIC, *_DISCOVERED_TYPES))))
    return kind


def _static_targets(
    name: str, rules: RelabelRules, keys: Mapping[str, YamlNode], endpoints: Iterable[_ReadEndpoint]
) -> list[Target | None]:
    """The targets of fixed addresses; None for each that relabeling drops."""
    found: list[Target | None] = []
    errors = [
        keys[selector].error(f"has no effect for {STATIC}; remove it")
        for selector in ("namespaceSelector", "selector", "jobLabel")
        if not keys[selector].absent
    ]
    for element, section, endpoint in endpoints:
        if endpoint.add_node_label:
            errors.append(section["addNodeLabel"].error("the node of a static address is unknown; remove it"))
        try:
            address = _static_address(section, endpoint)
            labels = {"job": name, ADDRESS: address, SCHEME: endpoint.scheme, PATH: endpoint.path}
            found.append(build_target(name, labels, endpoint.params, rules, endpoint.settings))
        except UsageError as error:
            errors.append(error)
        except ValueError as error:
            errors.append(element.error(str(error)))
    raise_errors(errors)
    return found


def _selection(
    name: str,
    kind: str,
    keys: Mapping[str, YamlNode],
    rules: RelabelRules,
    endpoints: Sequence[_ReadEndpoint],
    taken: Container[str],
) -> Selection:
    """What a PodMonitor or ServiceMonitor selects. `taken` are the names of other selections."""
    errors: list[UsageError] = []
    for _, section, _ in endpoints:
        with collect_errors(errors):
            _check_discovered(section)
    with collect_errors(errors):
        if name in taken:
            raise keys["targetName"].error(f"duplicate targetName {name}; each must be unique")
    with collect_errors(errors):
        if not keys["selector"].mapping:
            raise keys["selector"].error(
                "is missing: set matchLabels or matchExpressions; {} selects everything"
            )
    namespaces = _attempt(errors, lambda: read_namespace_selector(keys["namespaceSelector"]), _EVERYWHERE)
    selector = _attempt(errors, lambda: read_selector(keys["selector"]), _EVERY_LABEL)
    label = _attempt(errors, keys["jobLabel"].text, "")
    raise_errors(errors)
    settings = tuple(endpoint for _, _, endpoint in endpoints)
    return Selection(name, kind, namespaces, selector, settings, rules, label)


def _endpoint(keys: Mapping[str, YamlNode], common: _Common, rules: RelabelRules) -> EndpointSettings:
    """Parse one entry of `endpoints`, except for its address and relabeling, which is `rules`."""
    tls = common.access.tls(keys["tlsConfig"])
    login = common.access.login(keys["basicAuth"], keys["authorization"])
    interval = keys["interval"].parse(_interval, common.interval)
    timeout = keys["timeout"].parse(_interval, min(_DEFAULT_TIMEOUT, interval))
    encrypted = keys["port"].text() == "https" or not keys["tlsConfig"].absent
    scheme = keys["scheme"].parse(choice("http", "https"), "https" if encrypted else "http")
    settings = ScrapeSettings(
        interval=interval,
        timeout=timeout,
        adaptive_timeout=_adaptive_timeout(keys["adaptiveTimeout"]),
        honor_labels=_honor(keys["honorLabels"]),
        honor_timestamps=keys["honorTimestamps"].parse(boolean, True),
        ahead_limit=keys["timestampAheadLimit"].parse(_ahead_limit, AHEAD_LIMIT),
        body_limit=keys["bodySizeLimit"].parse(binary_size, BODY_LIMIT),
        sample_limit=keys["sampleLimit"].parse(_count, 0),
        label_limits=LabelLimits(
            keys["labelLimit"].parse(_count, 0),
            keys["labelNameLengthLimit"].parse(_count, 0),
            keys["labelValueLengthLimit"].parse(_count, 0),
        ),
        metric_relabeling=rules,
        tls=tls,
        login=login,
        follow_redirects=keys["followRedirects"].parse(boolean, True),
        credentials_over_http=keys["credentialsOverHttp"].parse(boolean, False),
        extra_metrics=common.extra_metrics,
    )
    if login is not None and scheme == "http" and not settings.credentials_over_http:
        which = "basicAuth" if not keys["basicAuth"].absent else "authorization"
        raise keys[which].error(
            "is not sent over plain http; set scheme: https, or credentialsOverHttp: true to allow it"
        )
    path, params = keys["path"].parse(_path, common.path), _params(keys["params"])
    add_node_label = keys["addNodeLabel"].parse(boolean, False)
    return EndpointSettings(keys["port"].text(), scheme, path, params, settings, add_node_label)


def _adaptive_timeout(node: YamlNode) -> AdaptiveTimeout | None:
    """Parse `adaptiveTimeout`, which is on if it is written, as in document 002."""
    keys = node.section(("enabled", "failureThreshold", "multiplier"))
    usual = AdaptiveTimeout()
    threshold = keys["failureThreshold"].parse(integer(1, 1000), usual.failure_threshold)
    multiplier = keys["multiplier"].parse(number(1.0, 1000.0), usual.multiplier)
    enabled = keys["enabled"].parse(boolean, not node.absent)
    return AdaptiveTimeout(threshold, multiplier) if enabled else None


def _check_discovered(keys: Mapping[str, YamlNode]) -> None:
    """Check the address and port of a PodMonitor or ServiceMonitor endpoint."""
    if not keys["address"].absent:
        raise keys["address"].error(f"is only for {STATIC}; set port instead")
    if keys["port"].text().isdigit():
        keys["port"].parse(integer(1, 65535), 0)


def _static_address(keys: Mapping[str, YamlNode], endpoint: EndpointSettings) -> str:
    written, port = keys["address"].text(), keys["port"]
    if not written:
        raise ValueError("has no address; StaticEndpoints needs one")
    address = parse_address(written, endpoint.scheme)
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
