"""Renders the agent's targets: those of the resource, and its own exporters unless a target selects them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gpuledger.model.settings import duration
from gpuledger.operator.render.naming import Manifest, Naming
from gpuledger.operator.render.pods import to_plain
from gpuledger.operator.render.secrets import SecretFiles
from gpuledger.operator.spec import WHATAP_AGENT, GpuMonitor
from gpuledger.operator.spec_sections import Plain
from gpuledger.operator.target_parts import kept_items

_ACCESS: Final = ("tlsConfig", "basicAuth", "authorization")
_SECONDS: Final = duration("s")


def agent_targets(naming: Naming, secrets: SecretFiles) -> tuple[list[Manifest] | None, bool]:
    """The targets, and whether the agent also discovers the usual exporters. None: no list is written."""
    agent, path = naming.monitor.agent, naming.monitor.agent_path
    listed = [
        _target(target, secrets, f"{path}.targets[{index}]") for index, target in kept_items(agent.targets)
    ]
    if agent.auto_targets is not None:
        return listed, agent.auto_targets
    if agent.targets is None and (not naming.monitor.exporter.enabled or _uses_automatic_targets(naming)):
        return None, True
    if scrapes_its_own(naming):
        listed.append(own_target(naming))
    return listed, False


def scrapes_its_own(naming: Naming) -> bool:
    """Whether a target for the resource's own exporters is added automatically."""
    agent, enabled = naming.monitor.agent, naming.monitor.exporter.enabled
    covered = any(covers_own_exporters(target, naming) for _, target in kept_items(agent.targets))
    serves = enabled and not naming.monitor.exporter.collects
    return serves and agent.auto_targets is None and not covered


def own_target_name(monitor: GpuMonitor) -> str:
    """The targetName of the target for the exporters of the same resource."""
    return "dcgm-exporter-auto" if monitor.kind == WHATAP_AGENT else monitor.name


def own_target(naming: Naming) -> Manifest:
    """The target for the exporters of the same resource."""
    monitor, auto = naming.monitor, naming.monitor.agent.auto
    # The path of these exporters is known, so globalPath does not apply.
    endpoint: Manifest = {
        "port": "9400" if naming.whatap else "metrics",
        "path": monitor.exporter.metrics_path,
        "addNodeLabel": True,
    }
    if auto.interval:
        endpoint["interval"] = auto.interval
    if auto.metric_relabel:
        endpoint["metricRelabelConfigs"] = to_plain(auto.metric_relabel)
    return {
        "targetName": own_target_name(monitor),
        "type": "PodMonitor",
        "namespaceSelector": {"matchNames": [naming.names.namespace]},
        "selector": {"matchLabels": dict(naming.selector("exporter"))},
        "endpoints": [endpoint],
        **({"relabelConfigs": to_plain(auto.relabel)} if auto.relabel else {}),
    }


def longest_scrape(naming: Naming) -> float:
    """The longest scrape interval of the resource's own exporters with its timeout, in seconds; 0 if the
    agent does not scrape them.
    """
    agent = naming.monitor.agent
    if not agent.enabled:
        return 0.0
    selecting = [target for _, target in kept_items(agent.targets) if selects_own_exporters(target, naming)]
    endpoints = [endpoint for target in selecting for _, endpoint in kept_items(target.get("endpoints"))]
    if scrapes_its_own(naming):
        endpoints.append({"interval": agent.auto.interval})
    longest = 0.0
    for endpoint in endpoints:
        interval = _seconds(endpoint.get("interval") or agent.global_interval or "15s")
        longest = max(longest, interval + _longest_timeout(endpoint, interval))
    return longest


def _longest_timeout(endpoint: Plain, interval: float) -> float:
    given = endpoint.get("timeout")
    timeout = _seconds(given) if given else min(interval, _seconds("10s"))
    # An adaptive timeout can grow until shortly before the next scrape.
    adaptive = endpoint.get("adaptiveTimeout")
    grows = adaptive is not None and adaptive.get("enabled") is not False
    return max(timeout, interval) if grows else timeout


def _seconds(value: str) -> float:
    try:
        return _SECONDS(value)
    except ValueError:
        # Too long: the agent's own check reports it.
        return 0.0


def covers_own_exporters(target: Plain, naming: Naming) -> bool:
    """Whether a target scrapes the page of the resource's own exporters, which must not be scraped twice.

    A disabled target counts, too: it is an explicit decision not to scrape them. One of other ports or
    dialects does not.
    """
    return selects_own_exporters(target, naming) and _names_own_page(target, naming)


def selects_own_exporters(target: Plain, naming: Naming) -> bool:
    """Whether a target selects the resource's own exporters, with any port and path."""
    selector = target.get("selector") or {}
    labels = _selected_labels(target, naming)
    if labels is None or not (selector.get("matchLabels") or selector.get("matchExpressions")):
        return False
    namespace = naming.names.namespace
    namespaces = target.get("namespaceSelector") or {}
    names = namespaces.get("matchNames")
    # The only known label of the namespace.
    namespace_labels = {"kubernetes.io/metadata.name": namespace}
    return (
        (not names or namespace in names)
        and _selector_matches(namespaces, namespace_labels)
        and _selector_matches(selector, labels)
    )


def _selected_labels(target: Plain, naming: Naming) -> Mapping[str, str] | None:
    """The labels of what the target could select: the exporters' pods, or their Service; None: neither."""
    exporter = naming.monitor.exporter
    if target.get("type") == "PodMonitor":
        return {**exporter.pod_labels, **naming.labels("exporter")}
    has_service = target.get("type") == "ServiceMonitor" and exporter.service is not None
    return naming.labels("exporter") if has_service else None


def _names_own_page(target: Plain, naming: Naming) -> bool:
    """Whether an endpoint of the target is the exporters' metrics page; so is one that is left out."""
    exporter, service = naming.monitor.exporter, naming.monitor.exporter.service
    of_service = target.get("type") == "ServiceMonitor" and service is not None and service.port
    ports = {"", "metrics", str(of_service or exporter.port)}
    paths = {exporter.metrics_path, *(f"/metrics/{dialect}" for dialect in exporter.page_dialects)}
    default = naming.monitor.agent.global_path or "/metrics"
    endpoints = target.get("endpoints") or (None,)
    return any(
        endpoint is None
        or (str(endpoint.get("port") or "") in ports and (endpoint.get("path") or default) in paths)
        for endpoint in endpoints
    )


def _uses_automatic_targets(naming: Naming) -> bool:
    """Whether the agent's automatic targets suffice: a WhatapAgent without scrape settings for its exporters.
    The agent then discovers them, and other exporters of the customer.
    """
    auto = naming.monitor.agent.auto
    return naming.whatap and not (auto.interval or auto.relabel or auto.metric_relabel)


def _target(target: Plain, secrets: SecretFiles, path: str) -> Manifest:
    config: Manifest = to_plain(target)
    if "endpoints" in config:
        config["endpoints"] = [
            _endpoint(endpoint, secrets, f"{path}.endpoints[{index}]")
            for index, endpoint in kept_items(target["endpoints"])
        ]
    return config


def _endpoint(endpoint: Plain, secrets: SecretFiles, path: str) -> Manifest:
    config: Manifest = {key: value for key, value in to_plain(endpoint).items() if key not in _ACCESS}
    if "port" in config:
        config["port"] = str(config["port"])
    return {**config, **secrets.endpoint_config(endpoint, path)}


def _selector_matches(selector: Plain, labels: Mapping[str, str]) -> bool:
    match_labels: Mapping[str, Any] = selector.get("matchLabels") or {}
    expressions = selector.get("matchExpressions") or ()
    return all(labels.get(name) == value for name, value in match_labels.items()) and all(
        _expression_matches(expression, labels) for expression in expressions
    )


def _expression_matches(expression: Plain, labels: Mapping[str, str]) -> bool:
    value, values = labels.get(expression["key"]), expression.get("values") or ()
    return {
        "In": value in values,
        "NotIn": value not in values,
        "Exists": value is not None,
        "DoesNotExist": value is None,
    }[expression["operator"]]
