"""How one target is scraped, and where it is."""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final

from gpuledger.agent.deliver.settings import ClientTls, Login
from gpuledger.agent.relabel.rule import Relabelling
from gpuledger.agent.scrape.labelling import LabelLimits

# Without a word no more is taken of one page: a few kilobytes of gzip would unpack to all memory otherwise.
# The largest pages known, of exporters that tell of a whole cluster, have some 100 MB.
BODY_LIMIT: Final = 256 << 20


@dataclass(frozen=True, slots=True)
class ScrapeSettings:
    """What an endpoint's targets have in common. Seconds and bytes; 0 is no limit.

    `honor_labels` None decides by the page: yes for gpuledger's own and for dcgm-exporter's, whose pod
    and namespace labels say whose GPU it is. `credentials_over_http` lets a login go unencrypted;
    `extra_metrics` tells scrape_timeout_seconds, scrape_sample_limit and scrape_body_size_bytes as well.
    """

    interval: float = 15.0
    timeout: float = 10.0
    honor_labels: bool | None = None
    honor_timestamps: bool = True
    body_limit: int = BODY_LIMIT
    sample_limit: int = 0
    label_limits: LabelLimits = field(default_factory=LabelLimits)
    relabelling: Relabelling = field(default_factory=lambda: Relabelling(()))
    tls: ClientTls = field(default_factory=ClientTls)
    login: Login | None = None
    follow_redirects: bool = True
    credentials_over_http: bool = False
    extra_metrics: bool = False


@dataclass(frozen=True, slots=True)
class Target:
    """One page to be scraped: where it is, the labels that all its series get, and how. `group` is the
    `targetName` that it comes from.
    """

    group: str
    url: str
    labels: tuple[tuple[str, str], ...]
    settings: ScrapeSettings

    @property
    def key(self) -> tuple[str, tuple[tuple[str, str], ...]]:
        """Which target it is, however it is scraped."""
        return self.url, self.labels

    @property
    def digest(self) -> int:
        """64 bits of a hash of the key, the same in every run."""
        return int.from_bytes(sha256(repr(self.key).encode()).digest()[:8], "big")
