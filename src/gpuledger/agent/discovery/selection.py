"""Selections: PodMonitor and ServiceMonitor targets of the configuration, and the report of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from gpuledger.agent.relabel.rules import RelabelRules
from gpuledger.agent.scrape.settings import ScrapeSettings
from gpuledger.kubernetes.objects import LabelSelector, NamespaceSelector

POD_MONITOR = "PodMonitor"
SERVICE_MONITOR = "ServiceMonitor"


@dataclass(frozen=True, slots=True)
class EndpointSettings:
    """One endpoint of a selection. `port` is a name or number as written; empty means every port."""

    port: str
    scheme: str
    path: str
    params: Mapping[str, tuple[str, ...]]
    settings: ScrapeSettings
    add_node_label: bool = False

    @property
    def number(self) -> int:
        """The port if it is a number, else 0."""
        return int(self.port) if self.port.isascii() and self.port.isdigit() else 0


@dataclass(frozen=True, slots=True)
class Selection:
    """A target configuration to discover. `name`: targetName. `job_label`: pod or service label for `job`."""

    name: str
    kind: str
    namespaces: NamespaceSelector
    selector: LabelSelector
    endpoints: tuple[EndpointSettings, ...]
    rules: RelabelRules = field(default_factory=RelabelRules)
    job_label: str = ""

    def mentions(self, prefix: str) -> bool:
        """Return whether the rules may read labels with this prefix, by name or by labelmap."""
        for rule in self.rules.rules:
            if any(source.startswith(prefix) for source in rule.source_labels):
                return True
            if rule.action == "labelmap" and _may_match(rule.regex, prefix):
                return True
        return False


def _may_match(regex: str, prefix: str) -> bool:
    """Return whether a labelmap's expression may match a name with this prefix; true if unclear."""
    plain = regex[: next((at for at, char in enumerate(regex) if char in "\\.[](){}*+?|^$"), len(regex))]
    if "|" in regex:
        return True
    return plain.startswith(prefix) or prefix.startswith(plain)


# Steps in order: an object that fails one is not checked in the next.
STEPS: Final = ("namespace", "labels", "running", "port", "relabelling", "scraped")
# Further steps of each target: the endpoint returned a page, and the page was accepted.
SCRAPE_STEPS: Final = ("endpoint", "scrape")
# Reasons kept for each selection; the counts cover all objects.
_MOST_REASONS: Final = 50


@dataclass(slots=True)
class SelectionReport:
    """Result of a selection's last discovery.

    `passed`: number of objects (up to `running`) or addresses (from `port` on) that passed each step.
    `reasons`: why single objects failed a step. `error`: why the cluster could not be read; the last targets
    are kept then.
    """

    name: str
    kind: str
    passed: dict[str, int] = field(default_factory=lambda: dict.fromkeys(STEPS, 0))
    reasons: list[str] = field(default_factory=list)
    more_reasons: int = 0
    error: str = ""

    @property
    def known(self) -> bool:
        """Whether the counts are valid: they are not before the first successful list."""
        return not self.error or any(self.passed.values())

    def add_reason(self, what: str, why: str) -> None:
        """Record why an object failed a step."""
        if len(self.reasons) < _MOST_REASONS:
            self.reasons.append(f"{what} {why}")
        else:
            self.more_reasons += 1

    def summary(self) -> str:
        """Return one line about the first step that no object passed; empty if there is a target."""
        texts: Mapping[str, str] = {
            "namespace": "no namespace is selected",
            "labels": "no object in the selected namespaces has the labels",
            "running": "no object with the labels is running and has an address",
            "port": "no running object has the port",
            "relabelling": "relabelConfigs drop all addresses",
            "scraped": "all targets belong to other shards",
        }
        return next((texts[step] for step in STEPS if not self.passed[step]), "")
