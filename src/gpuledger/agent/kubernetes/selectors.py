"""Label selectors as Kubernetes has them (meta/v1 LabelSelector), and those of namespaces."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Expression:
    """One of `matchExpressions`. NotIn and DoesNotExist hold for objects without the key, too."""

    key: str
    operator: str
    values: tuple[str, ...] = ()

    def matches(self, labels: Labels) -> bool:
        """Whether an object with these labels is meant."""
        value = labels.get(self.key)
        if self.operator == "In":
            return value is not None and value in self.values
        if self.operator == "NotIn":
            return value is None or value not in self.values
        return (value is not None) is (self.operator == "Exists")

    def __str__(self) -> str:
        if self.operator in ("In", "NotIn"):
            return f"{self.key} {self.operator.lower()} ({','.join(self.values)})"
        return self.key if self.operator == "Exists" else f"!{self.key}"


@dataclass(frozen=True, slots=True)
class Selector:
    """All of `labels` and all of `expressions` must hold; without any it selects everything."""

    labels: tuple[tuple[str, str], ...] = ()
    expressions: tuple[Expression, ...] = ()

    def matches(self, labels: Labels) -> bool:
        """Whether an object with these labels is meant."""
        return all(labels.get(key) == value for key, value in self.labels) and all(
            expression.matches(labels) for expression in self.expressions
        )

    def __bool__(self) -> bool:
        return bool(self.labels or self.expressions)

    def __str__(self) -> str:
        """As `kubectl -l` and the API's labelSelector take it."""
        return ",".join([*(f"{key}={value}" for key, value in self.labels), *map(str, self.expressions)])


@dataclass(frozen=True, slots=True)
class NamespaceSelector:
    """Namespaces with one of `names` (None: with any) whose own labels are selected."""

    names: frozenset[str] | None = None
    selector: Selector = Selector()

    def matches(self, name: str, labels: Labels) -> bool:
        """Whether a namespace is meant."""
        return (self.names is None or name in self.names) and self.selector.matches(labels)
