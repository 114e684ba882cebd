"""Merges families of several dialects into one family per name, and checks that dialects do not conflict."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from gpuledger.model.family import Family, FamilySpec

_FAMILY_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL_NAME = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")


def merge_families(families: Iterable[Family]) -> list[Family]:
    """Merges families of the same spec, in order of first appearance.

    The first value of a series is kept, and the given families are not modified. Raises ValueError if two
    specs have the same name.
    """
    merged: dict[str, Family] = {}
    copied: set[str] = set()
    for family in families:
        name = family.spec.name
        first = merged.setdefault(name, family)
        if first is family:
            continue
        if first.spec != family.spec:
            raise ValueError(_conflict_text(name))
        if name not in copied:
            copied.add(name)
            first = merged[name] = Family(first.spec, dict(first.samples), dict(first.distributions))
        for labels, value in family.samples.items():
            first.samples.setdefault(labels, value)
        for labels, distribution in family.distributions.items():
            first.distributions.setdefault(labels, distribution)
    return list(merged.values())


def check_family_specs(specs: Iterable[FamilySpec]) -> None:
    """Checks, once at startup, that families form a valid page in every format.

    Raises ValueError for an invalid metric or label name, for two specs with the same name, and for two specs
    with equal names in OpenMetrics (a counter `x_total` and a gauge `x`).
    """
    owners: dict[str, FamilySpec] = {}
    for spec in dict.fromkeys(specs):
        _check_names(spec)
        for name in _used_names(spec):
            other = owners.setdefault(name, spec)
            if other is spec:
                continue
            if other.name == spec.name:
                raise ValueError(_conflict_text(name))
            raise ValueError(
                f"families {other.name} and {spec.name} would both be {name} in OpenMetrics; rename one"
            )


def _conflict_text(name: str) -> str:
    return f"family {name} has two different declarations; a page can contain only one of them"


def _check_names(spec: FamilySpec) -> None:
    if not _FAMILY_NAME.fullmatch(spec.name):
        raise ValueError(f"{spec.name!r} is not a valid metric name")
    for label in spec.labels:
        if not _LABEL_NAME.fullmatch(label):
            raise ValueError(f"family {spec.name}: {label!r} is not a valid label name")


def _used_names(spec: FamilySpec) -> Iterator[str]:
    """Yields every name that the family uses in OpenMetrics: its own and those of its samples."""
    yield spec.name
    if spec.type == "counter" and spec.name.endswith("_total"):
        bare = spec.name.removesuffix("_total")
        yield bare
        yield f"{bare}_created"
    elif spec.type == "info" and spec.name.endswith("_info"):
        yield spec.name.removesuffix("_info")
