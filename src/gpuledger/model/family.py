"""Families and Samples as in Prometheus, and the one declaration that each family has."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

MetricType = Literal["gauge", "counter", "info", "unknown", "histogram"]
LabelValues = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FamilySpec:
    """The declaration of a family: the only place where its name, type, unit, labels and help stand.

    `name` is as in text 0.0.4 (a native counter ends in `_total`, an info in `_info`). `unit` is the
    OpenMetrics unit and must then be the name's suffix; empty for names that a document demands.
    `source` says where the fact comes from, for the catalogue.
    """

    name: str
    type: MetricType
    help: str
    labels: tuple[str, ...] = ()
    unit: str = ""
    source: str = ""

    def __post_init__(self) -> None:
        bare = self.name.removesuffix("_total")
        if self.unit and not bare.endswith("_" + self.unit):
            raise ValueError(f"family {self.name}: unit {self.unit!r} is not the suffix of the name")
        if len(set(self.labels)) != len(self.labels):
            raise ValueError(f"family {self.name}: repeated label")


@dataclass(frozen=True, slots=True)
class Distribution:
    """How many observations were at most each bound, how many there were in all, and their sum."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    count: int
    sum: float


@dataclass(slots=True)
class Family:
    """The samples of one family on one page: label values, in the order of the spec's labels, to value.

    Being a mapping, it cannot hold a duplicate series. A value of None is absent and adds no sample.
    A histogram has `distributions` instead.
    """

    spec: FamilySpec
    samples: dict[LabelValues, float] = field(default_factory=dict)
    distributions: dict[LabelValues, Distribution] = field(default_factory=dict)

    def add(self, value: float | None, *labels: str) -> None:
        """Tell one sample unless it is absent. The first telling of a series stands."""
        if value is not None:
            self.samples.setdefault(labels, value)


def single(spec: FamilySpec, value: float | None, *labels: str) -> Family:
    """The family of one sample, or of none where the value is absent."""
    family = Family(spec)
    family.add(value, *labels)
    return family
