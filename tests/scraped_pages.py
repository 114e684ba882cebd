"""Pages of one target, and what their samples become."""

from __future__ import annotations

import struct

from gpuledger.agent.relabel.rule import Relabelling, Rule
from gpuledger.agent.scrape.labelling import LabelLimits, Labelling, encoded
from gpuledger.agent.scrape.lines import TEXT, Format
from gpuledger.agent.scrape.pages import Pages
from gpuledger.agent.scrape.reader import Samples
from gpuledger.agent.scrape.state import PageMemory
from gpuledger.exposition.remote_write import STALE, series_prefix

TARGET = {"job": "j", "instance": "i"}


def entry(value: float | None, **labels: str) -> bytes:
    """What a sample of the target's becomes; None is its staleness marker."""
    name = labels.pop("name", "a")
    told = {"__name__": name, **TARGET, **labels}
    return series_prefix(encoded(told)) + (STALE if value is None else struct.pack("<d", value))


def pages(*rules: Rule, limits: LabelLimits | None = None, memory: PageMemory | None = None) -> Pages:
    return Pages(Labelling(TARGET, Relabelling(rules), limits), memory=memory)


def take(given: Pages, text: str, form: Format = TEXT, limit: int = 0, honor: bool = False) -> Samples:
    return given.take(text.encode(), form, honor=honor, limit=limit)
