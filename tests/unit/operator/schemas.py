"""Generates values for every schema node."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

from gpuledger.operator.schema.nodes import (
    CEL_RULES,
    BooleanNode,
    IgnoredNode,
    IntegerNode,
    IntOrStringNode,
    ListNode,
    MapNode,
    ObjectNode,
    SchemaNode,
    TextNode,
)
from gpuledger.operator.schema.pods import VolumeSizeNode

Path = tuple[str, ...]


def without_cel_rules(schema: Any) -> Any:
    """A copy of a schema, or of a part of a CRD, as the chart renders it for servers before 1.30."""
    if isinstance(schema, dict):
        return {key: without_cel_rules(below) for key, below in schema.items() if key != CEL_RULES}
    return [without_cel_rules(below) for below in schema] if isinstance(schema, list) else schema


# Valid as label names, as variables and as configuration keys.
_NAMES = st.sampled_from(["a", "team", "example.com/pool", "x-1", "nvidia.com/gpu"])
_WORDS = st.text("abcXYZ019 .:;/$(){}[]|*+?^\\\"'_-äß\n", max_size=12)


def leaf_fields(node: SchemaNode, path: Path = ()) -> Iterator[tuple[Path, SchemaNode]]:
    """Every field without nested fields; of lists, the fields of an item."""
    if isinstance(node, ObjectNode) and node.keys:
        for name, below in node.keys.items():
            yield from leaf_fields(below, (*path, name))
    elif isinstance(node, ListNode) and isinstance(node.item, ObjectNode) and node.item.keys:
        yield from leaf_fields(node.item, (*path, "[]"))
    else:
        yield path, node


def values(node: SchemaNode) -> st.SearchStrategy[Any]:
    """Arbitrary values that the schema allows."""
    if isinstance(node, TextNode):
        return _texts(node)
    if isinstance(node, BooleanNode):
        return st.booleans()
    if isinstance(node, IntegerNode):
        return st.integers(node.minimum, node.maximum)
    if isinstance(node, VolumeSizeNode):
        return st.integers(2**22, node.maximum) | st.from_regex("^[1-9][0-9]{0,3}[GT]i?$", fullmatch=True)
    if isinstance(node, IntOrStringNode):
        texts = st.from_regex(node.pattern, fullmatch=True) if node.pattern else _WORDS
        return st.one_of(st.integers(node.minimum, node.maximum), texts)
    if isinstance(node, ListNode):
        return st.lists(values(node.item), min_size=node.min_items, max_size=node.min_items + 2)
    if isinstance(node, MapNode):
        return st.dictionaries(_NAMES, values(node.value), max_size=2)
    if isinstance(node, IgnoredNode):
        return st.one_of(st.booleans(), _WORDS, st.dictionaries(_NAMES, st.integers(0, 9), max_size=1))
    assert isinstance(node, ObjectNode)
    required = {name: values(node.keys[name]) for name in node.required}
    others = {
        name: st.none() | values(below) for name, below in node.keys.items() if name not in node.required
    }
    return st.fixed_dictionaries(required, optional=others)


def _texts(node: TextNode) -> st.SearchStrategy[str]:
    if node.choices:
        return st.sampled_from(node.choices)
    if node.pattern:
        found = st.from_regex(node.pattern, fullmatch=True)
        return found.filter(lambda text: len(text) <= node.max_length) if node.max_length else found
    return _WORDS.filter(lambda text: len(text) <= node.max_length) if node.max_length else _WORDS


# Sample values of fields that are restricted by more than their schema.
_BY_NAME = {
    "regex": "a.*b",
    "action": "drop",
    "url": "http://other/write",
    "fieldPath": "metadata.uid",
    "address": "host:1",
    "topologyKey": "kubernetes.io/hostname",
    "file": "seventeen.prom",
    "schedule": "17 * * * *",
}


def sample(node: SchemaNode, name: str = "") -> Any:
    """A value that is not the default, for a field of this name."""
    if name in _BY_NAME and isinstance(node, TextNode):
        return _BY_NAME[name]
    if isinstance(node, TextNode):
        if node.choices:
            return node.choices[-1]
        for text in ("17s", "/seventeen", "example.com/x=seventeen", "SEVENTEEN", "seventeen", "simulator"):
            if not list(node.check(text, "")):
                return text
        raise AssertionError(f"no example for {node}")
    if isinstance(node, BooleanNode):
        return True
    if isinstance(node, IntegerNode):
        return min(17, node.maximum)
    if isinstance(node, IntOrStringNode):
        return next(value for value in (17, "17", "17%", "17Gi") if not list(node.check(value, "")))
    if isinstance(node, ListNode):
        return [sample(node.item)]
    if isinstance(node, MapNode):
        return {"seventeen": sample(node.value)}
    if isinstance(node, IgnoredNode):
        return "seventeen"
    assert isinstance(node, ObjectNode)
    if not node.keys:
        return {"seventeen": 17}
    return {name: sample(node.keys[name], name) for name in node.required}
