"""Scrape settings of one target, and the target itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final

from gpuledger.agent.deliver.settings import ClientTls, Login
from gpuledger.agent.relabel.rules import RelabelRules
from gpuledger.agent.scrape.series_labels import LabelLimits

# Default body size limit: a few kilobytes of gzip could otherwise unpack to all memory. The largest known
# pages (exporters of a whole cluster) have about 100 MB.
BODY_LIMIT: Final = 256 << 20
# Seconds that a timestamp of a page may be ahead of the scrape: maxAheadTime of Prometheus's
# scrape/scrape.go. A receiver that accepts a later one refuses all other targets' samples as too old.
AHEAD_LIMIT: Final = 600.0


@dataclass(frozen=True, slots=True)
class AdaptiveTimeout:
    """Multiplies the timeout after this number of timeouts in succession, until a scrape succeeds."""

    failure_threshold: int = 2
    multiplier: float = 2.0


@dataclass(frozen=True, slots=True)
class ScrapeSettings:
    """Settings shared by all targets of an endpoint. Seconds and bytes; 0 is no limit.

    `honor_labels` None decides by the page: true for gpuledger and dcgm-exporter, because their pod and
    namespace labels name the GPU's owner. `ahead_limit`: samples with timestamps on the page later than
    the scrape by more are dropped. A `timeout` above the interval skips intervals while a scrape runs;
    without `adaptive_timeout` it never changes. `credentials_over_http` allows credentials over plain http.
    `extra_metrics` adds scrape_timeout_seconds, scrape_sample_limit and scrape_body_size_bytes.
    """

    interval: float = 15.0
    timeout: float = 10.0
    adaptive_timeout: AdaptiveTimeout | None = None
    honor_labels: bool | None = None
    honor_timestamps: bool = True
    body_limit: int = BODY_LIMIT
    sample_limit: int = 0
    ahead_limit: float = AHEAD_LIMIT
    label_limits: LabelLimits = field(default_factory=LabelLimits)
    metric_relabeling: RelabelRules = field(default_factory=RelabelRules)
    tls: ClientTls = field(default_factory=ClientTls)
    login: Login | None = None
    follow_redirects: bool = True
    credentials_over_http: bool = False
    extra_metrics: bool = False


@dataclass(frozen=True, slots=True)
class Target:
    """A scrape target: URL, labels of all its series, and settings. `group` is its `targetName`."""

    group: str
    url: str
    labels: tuple[tuple[str, str], ...]
    settings: ScrapeSettings

    @property
    def key(self) -> tuple[str, tuple[tuple[str, str], ...]]:
        """Identity of the target: URL and labels, independent of its settings."""
        return self.url, self.labels

    @property
    def digest(self) -> int:
        """64-bit hash of the key, stable across runs."""
        return int.from_bytes(sha256(repr(self.key).encode()).digest()[:8], "big")
