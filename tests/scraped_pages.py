"""Helpers to read pages of one target and to encode the expected samples."""

from __future__ import annotations

import struct

from gpuledger.agent.relabel.rules import RelabelRule, RelabelRules
from gpuledger.agent.scrape.line_parser import TEXT_FORMAT, PageFormat
from gpuledger.agent.scrape.page_cache import PageCache
from gpuledger.agent.scrape.page_reader import PageSamples
from gpuledger.agent.scrape.series_labels import LabelLimits, SeriesLabeler, encode_labels
from gpuledger.agent.scrape.state import PageMemoryBudget
from gpuledger.exposition.remote_write import STALE, encode_series_prefix

TARGET = {"job": "j", "instance": "i"}


def entry(value: float | None, **labels: str) -> bytes:
    """Return the encoded entry of a sample of the target; None encodes its staleness marker."""
    name = labels.pop("name", "a")
    final = {"__name__": name, **TARGET, **labels}
    return encode_series_prefix(encode_labels(final)) + (STALE if value is None else struct.pack("<d", value))


def page_cache(
    *rules: RelabelRule, limits: LabelLimits | None = None, memory: PageMemoryBudget | None = None
) -> PageCache:
    return PageCache(SeriesLabeler(TARGET, RelabelRules(rules), limits), memory=memory)


def read_page(
    cache: PageCache, text: str, form: PageFormat = TEXT_FORMAT, limit: int = 0, honor: bool = False
) -> PageSamples:
    return cache.read_page(text.encode(), form, honor=honor, limit=limit)
