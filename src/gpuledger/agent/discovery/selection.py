"""What a PodMonitor or ServiceMonitor target of the configuration selects, and how it is scraped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from gpuledger.agent.relabel.rule import Relabelling
from gpuledger.agent.scrape.settings import ScrapeSettings
from gpuledger.kubernetes.objects import NamespaceSelector, Selector

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


# In the order in which they are taken: an object that fails at one is not looked at in the next.
STEPS: Final = ("namespace", "labels", "running", "port", "relabelling", "scraped")
# Those that follow are every target's own: its endpoint gives a page, and the page can be taken.
SCRAPE_STEPS: Final = ("endpoint", "scrape")
# Reasons that are remembered of one selection; the numbers are of all.
_MOST_REASONS: Final = 50


@dataclass(slots=True)
class SelectionReport:
    """One selection as it was looked at last.

    `passed` counts, by step, what came so far: objects up to `running`, addresses from `port` on. `reasons`
    say of single objects why they came no further. `trouble` is why the cluster could not be asked; then
    the targets of before stay.
    """

    name: str
    kind: str
    passed: dict[str, int] = field(default_factory=lambda: dict.fromkeys(STEPS, 0))
    reasons: list[str] = field(default_factory=list)
    more_reasons: int = 0
    trouble: str = ""

    @property
    def known(self) -> bool:
        """Whether the numbers say anything: of a cluster that could never be listed they do not."""
        return not self.trouble or any(self.passed.values())

    def count(self, step: str, number: int = 1) -> None:
        """So many more came past a step."""
        self.passed[step] += number

    def stopped(self, what: str, why: str) -> None:
        """An object came no further."""
        if len(self.reasons) < _MOST_REASONS:
            self.reasons.append(f"{what} {why}")
        else:
            self.more_reasons += 1

    def verdict(self) -> str:
        """In one line, the first step that nothing passed; empty when there is a target."""
        told: Mapping[str, str] = {
            "namespace": "no namespace is selected",
            "labels": "nothing in the selected namespaces has the labels",
            "running": "nothing that has the labels is running with an address",
            "port": "nothing that is running has the port",
            "relabelling": "relabelConfigs drop everything",
            "scraped": "all targets are another shard's",
        }
        return next((told[step] for step in STEPS if not self.passed[step]), "")
