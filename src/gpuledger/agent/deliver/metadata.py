"""HELP, TYPE and UNIT of the targets' metric families, for delivery with remote write."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from gpuledger.exposition.remote_write import METRIC_TYPES, FamilyMetadata

# Suffixes of the series of a family, by its type.
_SUFFIXES: Final = {
    METRIC_TYPES[kind]: suffixes
    for kind, suffixes in {
        "counter": ("_total", "_created"),
        "histogram": ("_bucket", "_count", "_sum", "_created"),
        "gaugehistogram": ("_bucket", "_gcount", "_gsum"),
        "summary": ("_count", "_sum", "_created"),
        "info": ("_info",),
    }.items()
}


class TargetMetadata:
    """Metadata of the families of a target's page; targets with equal pages share one."""

    __slots__ = ("_by_family", "families")

    def __init__(self, families: Iterable[FamilyMetadata]) -> None:
        self.families = tuple(families)
        self._by_family = {one.family: one for one in self.families}

    def of_series(self, name: str) -> FamilyMetadata | None:
        """Return the metadata of the family that a series with this name belongs to; None if unknown."""
        found = self._by_family.get(name)
        if found is None:
            stem, underscore, suffix = name.rpartition("_")
            family = self._by_family.get(stem)
            if family is not None and underscore + suffix in _SUFFIXES.get(family.kind, ()):
                found = family
        return found


class MetadataStore:
    """Metadata of all targets, by their shard hash (see `Block`)."""

    def __init__(self) -> None:
        self._targets: dict[int, TargetMetadata] = {}

    def set(self, shard: int, metadata: TargetMetadata) -> None:
        """Replace the metadata of a target."""
        self._targets[shard] = metadata

    def remove(self, shard: int) -> None:
        """Forget a target."""
        self._targets.pop(shard, None)

    def of(self, shard: int) -> TargetMetadata | None:
        """Return the metadata of a target; None if it is unknown, as after a restart."""
        return self._targets.get(shard)

    def families(self) -> Sequence[FamilyMetadata]:
        """Return the different entries of all targets. A family has several if its targets disagree."""
        pages = {id(page): page for page in self._targets.values()}
        return tuple(dict.fromkeys(_families_of(pages.values())))


def _families_of(pages: Iterable[TargetMetadata]) -> Iterator[FamilyMetadata]:
    for page in pages:
        yield from page.families
