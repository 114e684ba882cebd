"""One family per name: what several dialects tell of the same family is joined, what clashes is refused."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from gpuledger.model.family import Family, FamilySpec

_FAMILY_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL_NAME = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")


def merge(families: Iterable[Family]) -> list[Family]:
    """Families in order of first telling, those of the same spec joined.

    The first telling of a series stands; the given families are left as they are. Raises ValueError when
    two specs share a name.
    """
    found: dict[str, Family] = {}
    joined: set[str] = set()
    for family in families:
        name = family.spec.name
        first = found.setdefault(name, family)
        if first is family:
            continue
        if first.spec != family.spec:
            raise ValueError(_two_declarations(name))
        if name not in joined:
            joined.add(name)
            first = found[name] = Family(first.spec, dict(first.samples), dict(first.distributions))
        for labels, value in family.samples.items():
            first.samples.setdefault(labels, value)
        for labels, told in family.distributions.items():
            first.distributions.setdefault(labels, told)
    return list(found.values())


def check_specs(specs: Iterable[FamilySpec]) -> None:
    """Make sure, once at start, that families told together make a valid page in every format.

    Raises ValueError for a name or label that Prometheus cannot carry, for two specs that share a name,
    and for two whose names meet in OpenMetrics (a counter `x_total` beside a gauge `x`).
    """
    owners: dict[str, FamilySpec] = {}
    for spec in dict.fromkeys(specs):
        _check_names(spec)
        for name in _claims(spec):
            other = owners.setdefault(name, spec)
            if other is spec:
                continue
            if other.name == spec.name:
                raise ValueError(_two_declarations(name))
            raise ValueError(
                f"families {other.name} and {spec.name} would both be {name} in OpenMetrics; rename one"
            )


def _two_declarations(name: str) -> str:
    return f"family {name} is declared in two ways; one page can carry only one of them"


def _check_names(spec: FamilySpec) -> None:
    if not _FAMILY_NAME.fullmatch(spec.name):
        raise ValueError(f"{spec.name!r} is not a metric name")
    for label in spec.labels:
        if not _LABEL_NAME.fullmatch(label):
            raise ValueError(f"family {spec.name}: {label!r} is not a label name")


def _claims(spec: FamilySpec) -> Iterator[str]:
    """Every name that the family takes in OpenMetrics: its own, and those of its samples."""
    yield spec.name
    if spec.type == "counter" and spec.name.endswith("_total"):
        bare = spec.name.removesuffix("_total")
        yield bare
        yield f"{bare}_created"
    elif spec.type == "info" and spec.name.endswith("_info"):
        yield spec.name.removesuffix("_info")
