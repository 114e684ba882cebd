"""The series that tell of a scrape itself: `up` and `scrape_*`, as Prometheus 2.42 writes them."""

from __future__ import annotations

from struct import Struct
from typing import Final

from gpuledger.agent.scrape.labelling import Labelling
from gpuledger.agent.scrape.reader import Counts
from gpuledger.agent.scrape.settings import ScrapeSettings
from gpuledger.exposition.remote_write import STALE

_pack: Final = Struct("<d").pack
_ALWAYS: Final = (
    "up",
    "scrape_duration_seconds",
    "scrape_samples_scraped",
    "scrape_samples_post_metric_relabeling",
    "scrape_series_added",
)
_EXTRA: Final = ("scrape_timeout_seconds", "scrape_sample_limit", "scrape_body_size_bytes")


class Report:
    """Those of one target, whose names and labels are encoded once."""

    def __init__(self, labelling: Labelling, settings: ScrapeSettings) -> None:
        names = _ALWAYS + (_EXTRA if settings.extra_metrics else ())
        # What write_relabel_configs drop is None.
        self._prefixes = [
            fate if isinstance(fate, bytes) else None for fate in map(labelling.reported, names)
        ]
        self._settings = settings

    @property
    def prefixes(self) -> tuple[bytes, ...]:
        """The bytes before the values."""
        return tuple(prefix for prefix in self._prefixes if prefix is not None)

    def entries(self, *, up: bool, seconds: float, counts: Counts, body_bytes: int) -> list[bytes]:
        """Prefix and value of each. `body_bytes` is -1 for a page that was larger than allowed."""
        values = [float(up), seconds, counts.scraped, counts.kept, counts.added]
        if self._settings.extra_metrics:
            values += [self._settings.timeout, self._settings.sample_limit, body_bytes]
        told = zip(self._prefixes, values, strict=True)
        return [prefix + _pack(value) for prefix, value in told if prefix is not None]

    def ends(self) -> list[bytes]:
        """Staleness markers for all of them."""
        return [prefix + STALE for prefix in self.prefixes]
