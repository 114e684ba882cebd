"""How far each object came on its way to be a target: what document and page call the steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

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
