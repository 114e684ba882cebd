"""What a PodMonitor or ServiceMonitor target of the configuration selects, and how it is scraped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpuledger.agent.kubernetes.selectors import NamespaceSelector, Selector
from gpuledger.agent.relabel.rule import Relabelling
from gpuledger.agent.scrape.settings import ScrapeSettings

POD_MONITOR = "PodMonitor"
SERVICE_MONITOR = "ServiceMonitor"


@dataclass(frozen=True, slots=True)
class EndpointSettings:
    """One of a target's endpoints. `port` is a name or a number as written; empty is every port there is."""

    port: str
    scheme: str
    path: str
    params: Mapping[str, tuple[str, ...]]
    settings: ScrapeSettings
    add_node_label: bool = False

    @property
    def number(self) -> int:
        """The port when it is a number, else 0."""
        return int(self.port) if self.port.isascii() and self.port.isdigit() else 0


@dataclass(frozen=True, slots=True)
class Selection:
    """`name` is the targetName. `job_label` is the label of the pod or service whose value becomes `job`."""

    name: str
    kind: str
    namespaces: NamespaceSelector
    selector: Selector
    endpoints: tuple[EndpointSettings, ...]
    rules: Relabelling = field(default_factory=lambda: Relabelling(()))
    job_label: str = ""

    def mentions(self, prefix: str) -> bool:
        """Whether the rules may read labels that begin so; a rule over all names reads them, too."""
        for rule in self.rules.rules:
            if any(source.startswith(prefix) for source in rule.source_labels):
                return True
            if rule.action == "labelmap" and _may_match(rule.regex, prefix):
                return True
        return False


def _may_match(regex: str, prefix: str) -> bool:
    """Whether a labelmap's expression may match a name that begins with `prefix`; yes where unclear."""
    plain = regex[: next((at for at, char in enumerate(regex) if char in "\\.[](){}*+?|^$"), len(regex))]
    if "|" in regex:
        return True
    return plain.startswith(prefix) or prefix.startswith(plain)
