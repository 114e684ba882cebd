"""Families as OpenMetrics 1.0 text."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from gpuledger.exposition.lines import escape, page
from gpuledger.model.family import Family, FamilySpec

CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"


def encode(families: Iterable[Family]) -> bytes:
    """The page, `# EOF` included. Sample names are those of text 0.0.4, so that a scraper which switches
    formats keeps its series. Raises ValueError as `lines.page` does.
    """
    return page(families, _header, end="# EOF\n")


@lru_cache(maxsize=4096)
def _header(spec: FamilySpec) -> str:
    name, kind = _name_and_type(spec)
    lines = [f"# TYPE {name} {kind}\n"]
    # The unit must end the family's name, and an info has none.
    if spec.unit and kind != "info" and name.endswith(f"_{spec.unit}"):
        lines.append(f"# UNIT {name} {spec.unit}\n")
    if spec.help:
        lines.append(f"# HELP {name} {escape(spec.help)}\n")
    return "".join(lines)


def _name_and_type(spec: FamilySpec) -> tuple[str, str]:
    """The family's name without the suffix that its type adds to samples.

    A counter or info that a document named without that suffix cannot be one here: the counter becomes
    unknown and the info a gauge, so that the series keeps its name.
    """
    if spec.type == "counter":
        bare = spec.name.removesuffix("_total")
        return (bare, "counter") if bare != spec.name else (spec.name, "unknown")
    if spec.type == "info":
        bare = spec.name.removesuffix("_info")
        return (bare, "info") if bare != spec.name else (spec.name, "gauge")
    return spec.name, spec.type
