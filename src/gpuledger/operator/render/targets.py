"""What the agent scrapes: the resource's targets, and its own exporters where none of these has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gpuledger.operator.render.names import Manifest, Naming
from gpuledger.operator.render.pods import plain
from gpuledger.operator.render.secrets import Secrets
from gpuledger.operator.spec import Plain

_ACCESS: Final = ("tlsConfig", "basicAuth", "authorization")


def targets_of(naming: Naming, secrets: Secrets) -> tuple[list[Manifest] | None, bool]:
    """The list, and whether the agent looks for the usual exporters by itself. None: no list at all."""
    agent, path = naming.monitor.agent, naming.monitor.agent_path
    listed = [
        _target(target, secrets, f"{path}.targets[{at}]") for at, target in enumerate(agent.targets or ())
    ]
    if agent.auto_targets:
        return listed, True
    if agent.auto_targets is False:
        return listed, False
    if agent.targets is None and (not naming.monitor.exporter.enabled or _plainly(naming)):
        return None, True
    if scrapes_its_own(naming):
        listed.append(own_target(naming))
    return listed, False


def scrapes_its_own(naming: Naming) -> bool:
    """Whether the resource's exporters are scraped without a word."""
    agent, enabled = naming.monitor.agent, naming.monitor.exporter.enabled
    return (
        enabled and agent.auto_targets is None and not any(covers(one, naming) for one in agent.targets or ())
    )


def own_target(naming: Naming) -> Manifest:
    """The exporters of the same resource."""
    monitor, auto = naming.monitor, naming.monitor.agent.auto
    # globalPath is for others: what this one serves is known.
    endpoint: Manifest = {
        "port": "9400" if naming.whatap else "metrics",
        "path": monitor.exporter.metrics_path,
        "addNodeLabel": True,
    }
    if auto.interval:
        endpoint["interval"] = auto.interval
    if auto.metric_relabel:
        endpoint["metricRelabelConfigs"] = plain(auto.metric_relabel)
    return {
        "targetName": "dcgm-exporter-auto" if naming.whatap else monitor.name,
        "type": "PodMonitor",
        "namespaceSelector": {"matchNames": [naming.names.namespace]},
        "selector": {"matchLabels": dict(naming.selector("exporter"))},
        "endpoints": [endpoint],
        **({"relabelConfigs": plain(auto.relabel)} if auto.relabel else {}),
    }


def covers(target: Plain, naming: Naming) -> bool:
    """Whether a target means the resource's own exporters: to scrape them by another, too, would count twice.

    One that is not enabled covers them as well: whoever wrote it has decided about them.
    """
    selector = target.get("selector") or {}
    if target.get("type") != "PodMonitor" or not (
        selector.get("matchLabels") or selector.get("matchExpressions")
    ):
        return False
    namespace = naming.names.namespace
    spaces = target.get("namespaceSelector") or {}
    names = spaces.get("matchNames")
    # Of a namespace no other label is known.
    known = {"kubernetes.io/metadata.name": namespace}
    labels = {**naming.monitor.exporter.pods.labels, **naming.labels("exporter")}
    return (not names or namespace in names) and _matches(spaces, known) and _matches(selector, labels)


def _plainly(naming: Naming) -> bool:
    """A WhatapAgent that says nothing of its exporters' scrape: the agent's own list of usual exporters has
    them, and a customer's beside them.
    """
    auto = naming.monitor.agent.auto
    return naming.whatap and not (auto.interval or auto.relabel or auto.metric_relabel)


def _target(target: Plain, secrets: Secrets, path: str) -> Manifest:
    made: Manifest = plain(target)
    if "endpoints" in made:
        made["endpoints"] = [
            _endpoint(endpoint, secrets, f"{path}.endpoints[{at}]")
            for at, endpoint in enumerate(target["endpoints"])
        ]
    return made


def _endpoint(endpoint: Plain, secrets: Secrets, path: str) -> Manifest:
    made: Manifest = {key: value for key, value in plain(endpoint).items() if key not in _ACCESS}
    if "port" in made:
        made["port"] = str(made["port"])
    return {**made, **secrets.endpoint(endpoint, path)}


def _matches(selector: Plain, labels: Mapping[str, str]) -> bool:
    wanted: Mapping[str, Any] = selector.get("matchLabels") or {}
    if any(labels.get(name) != value for name, value in wanted.items()):
        return False
    return all(_holds(one, labels) for one in selector.get("matchExpressions") or ())


def _holds(expression: Plain, labels: Mapping[str, str]) -> bool:
    there, values = labels.get(expression["key"]), expression.get("values") or ()
    return {
        "In": there in values,
        "NotIn": there not in values,
        "Exists": there is not None,
        "DoesNotExist": there is None,
    }[expression["operator"]]
