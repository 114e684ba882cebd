"""Prometheus metric families: their declarations and their samples."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

MetricType = Literal["gauge", "counter", "info", "unknown", "histogram"]
LabelValues = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FamilySpec:
    """The declaration of a family: its name, type, unit, labels and help.

    `name` is the one of text 0.0.4 (a native counter ends in `_total`, an info in `_info`). `unit` is the
    OpenMetrics unit and must be the suffix of the name; it is empty where the name is prescribed elsewhere.
    `source` names the origin of the value, for the documentation of metrics.
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


_UNITS = ("bytes", "celsius", "hertz", "joules", "ratio", "seconds", "watts")


def declare_family(
    name: str,
    help_text: str,
    labels: tuple[str, ...] = (),
    source: str = "",
    kind: MetricType | None = None,
) -> FamilySpec:
    """Declares a family with a name that implies its unit and type, as in OpenMetrics.

    `kind` is the type if it is neither counter (`_total`), info (`_info`) nor gauge.
    """
    bare = name.removesuffix("_total")
    unit = bare.rpartition("_")[2]
    implied: MetricType = "info" if name.endswith("_info") else "gauge" if bare == name else "counter"
    return FamilySpec(name, kind or implied, help_text, labels, unit if unit in _UNITS else "", source)


@dataclass(frozen=True, slots=True)
class Distribution:
    """A histogram value: cumulative `counts` up to each of `bounds`, the total `count` and the `sum`."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    count: int
    sum: float


@dataclass(slots=True)
class Family:
    """The samples of one family on one page, by label values in the order of the spec's labels.

    A histogram has `distributions` instead of `samples`.
    """

    spec: FamilySpec
    samples: dict[LabelValues, float] = field(default_factory=dict)
    distributions: dict[LabelValues, Distribution] = field(default_factory=dict)

    def add(self, value: float | None, *labels: str) -> None:
        """Adds a sample; None adds nothing. If the series already exists, its first value is kept."""
        if value is not None:
            self.samples.setdefault(labels, value)


def single_sample_family(spec: FamilySpec, value: float | None, *labels: str) -> Family:
    """Returns a family with one sample, or with none if `value` is None."""
    family = Family(spec)
    family.add(value, *labels)
    return family
