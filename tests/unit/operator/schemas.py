"""Values of every kind of field, made from the same trees as the definitions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

from gpuledger.operator.schema.nodes import (
    Count,
    Each,
    Fields,
    Named,
    Node,
    NumberOrText,
    Switch,
    Text,
    Unheeded,
)

Path = tuple[str, ...]

# Label names, variables and words of configurations alike.
_NAMES = st.sampled_from(["a", "team", "example.com/pool", "x-1", "nvidia.com/gpu"])
_WORDS = st.text("abcXYZ019 .:;/$(){}[]|*+?^\\\"'_-äß\n", max_size=12)


def leaves(node: Node, path: Path = ()) -> Iterator[tuple[Path, Node]]:
    """Every field that has no fields below it; of lists, those of an element."""
    if isinstance(node, Fields) and node.keys:
        for name, below in node.keys.items():
            yield from leaves(below, (*path, name))
    elif isinstance(node, Each) and isinstance(node.item, Fields) and node.item.keys:
        yield from leaves(node.item, (*path, "[]"))
    else:
        yield path, node


def values(node: Node) -> st.SearchStrategy[Any]:
    """What the schema admits, and more than anybody would write."""
    if isinstance(node, Text):
        return _texts(node)
    if isinstance(node, Switch):
        return st.booleans()
    if isinstance(node, Count):
        return st.integers(node.lowest, node.highest)
    if isinstance(node, NumberOrText):
        texts = st.from_regex(node.pattern, fullmatch=True) if node.pattern else _WORDS
        return st.one_of(st.integers(node.lowest, node.highest), texts)
    if isinstance(node, Each):
        return st.lists(values(node.item), min_size=node.fewest, max_size=node.fewest + 2)
    if isinstance(node, Named):
        return st.dictionaries(_NAMES, values(node.value), max_size=2)
    if isinstance(node, Unheeded):
        return st.one_of(st.booleans(), _WORDS, st.dictionaries(_NAMES, st.integers(0, 9), max_size=1))
    assert isinstance(node, Fields)
    required = {name: values(node.keys[name]) for name in node.required}
    others = {
        name: st.none() | values(below) for name, below in node.keys.items() if name not in node.required
    }
    return st.fixed_dictionaries(required, optional=others)


def _texts(node: Text) -> st.SearchStrategy[str]:
    if node.words:
        return st.sampled_from(node.words)
    if node.pattern:
        found = st.from_regex(node.pattern, fullmatch=True)
        return found.filter(lambda text: len(text) <= node.longest) if node.longest else found
    return _WORDS.filter(lambda text: len(text) <= node.longest) if node.longest else _WORDS


# What is needed of a value that a field of its kind may have, and whoever reads it can use.
_BY_NAME = {
    "regex": "a.*b",
    "action": "drop",
    "url": "http://other/write",
    "fieldPath": "metadata.uid",
    "address": "host:1",
    "topologyKey": "kubernetes.io/hostname",
}


def sample(node: Node, name: str = "") -> Any:
    """One value that is no default, for a field of this name."""
    if name in _BY_NAME and isinstance(node, Text):
        return _BY_NAME[name]
    if isinstance(node, Text):
        if node.words:
            return node.words[-1]
        for text in ("17s", "/seventeen", "example.com/x=seventeen", "SEVENTEEN", "seventeen", "simulator"):
            if not list(node.check(text, "")):
                return text
        raise AssertionError(f"no example for {node}")
    if isinstance(node, Switch):
        return True
    if isinstance(node, Count):
        return min(17, node.highest)
    if isinstance(node, NumberOrText):
        return next(value for value in (17, "17", "17%") if not list(node.check(value, "")))
    if isinstance(node, Each):
        return [sample(node.item)]
    if isinstance(node, Named):
        return {"seventeen": sample(node.value)}
    if isinstance(node, Unheeded):
        return "seventeen"
    assert isinstance(node, Fields)
    if not node.keys:
        return {"seventeen": 17}
    return {name: sample(node.keys[name], name) for name in node.required}
