"""Families as Prometheus text 0.0.4."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from gpuledger.exposition.lines import page
from gpuledger.model.family import Family, FamilySpec

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# The format knows neither: client_golang writes both so.
_TYPES = {"info": "gauge", "unknown": "untyped"}


def encode(families: Iterable[Family]) -> bytes:
    """The page: HELP, TYPE and samples of each family together. Raises ValueError as `lines.page` does."""
    return page(families, _header)


@lru_cache(maxsize=4096)
def _header(spec: FamilySpec) -> str:
    written = spec.help.replace("\\", r"\\").replace("\n", r"\n")
    about = f"# HELP {spec.name} {written}\n" if written else ""
    return f"{about}# TYPE {spec.name} {_TYPES.get(spec.type, spec.type)}\n"
