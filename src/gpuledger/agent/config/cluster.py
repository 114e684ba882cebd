"""Selectors of namespaces and of labels out of a configuration file, as Kubernetes writes them."""

from __future__ import annotations

from typing import Final

from gpuledger.agent.kubernetes.selectors import Expression, NamespaceSelector, Selector
from gpuledger.model.errors import unknown
from gpuledger.outputs.nodes import Node

_OPERATORS: Final = ("In", "NotIn", "Exists", "DoesNotExist")


def read_selector(node: Node) -> Selector:
    """`matchLabels` and `matchExpressions`. Raises UsageError naming the place."""
    keys = node.section(("matchLabels", "matchExpressions"))
    return _selector(keys["matchLabels"], keys["matchExpressions"])


def read_namespaces(node: Node) -> NamespaceSelector:
    """`matchNames` besides; an absent one, as an empty one, selects every namespace."""
    keys = node.section(("matchNames", "matchLabels", "matchExpressions"))
    names = frozenset(name.text() for name in keys["matchNames"].elements())
    return NamespaceSelector(names or None, _selector(keys["matchLabels"], keys["matchExpressions"]))


def _selector(labels: Node, expressions: Node) -> Selector:
    return Selector(
        tuple((key, value.literal("")) for key, value in labels.items()),
        tuple(_expression(element) for element in expressions.elements()),
    )


def _expression(node: Node) -> Expression:
    keys = node.section(("key", "operator", "values"))
    operator = keys["operator"].text()
    if keys["key"].absent:
        raise keys["key"].wrong("is missing: a label's name is wanted")
    if operator not in _OPERATORS:
        raise keys["operator"].wrong(str(unknown("operator", operator, _OPERATORS)))
    values = tuple(value.literal("") for value in keys["values"].elements())
    if operator in ("In", "NotIn") and not values:
        raise keys["values"].wrong(f"is empty: {operator} needs at least one")
    if operator in ("Exists", "DoesNotExist") and values:
        raise keys["values"].wrong(f"is not for {operator}")
    return Expression(keys["key"].text(), operator, values)
