"""Sections of a resource, declared once: a dataclass with a schema node for each of its fields."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, TypeVar

from gpuledger.operator.schema.nodes import CelRule, ObjectNode, SchemaNode, TextNode

T = TypeVar("T")


def spec_field(
    node: SchemaNode, default: Any = MISSING, *, key: str = "", read: Callable[[Any], Any] | None = None
) -> Any:
    """A field of a section. Its key is the name in camel case, unless `key` is given.

    `read` converts the checked value to the field's value, instead of the node's `read`.
    """
    metadata = {"node": node, "key": key, "read": read or node.read}
    if isinstance(default, dict):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


def text_field(default: Any, description: str, **node: Any) -> Any:
    """A field of a section with a TextNode."""
    return spec_field(TextNode(description, **node), default)


@dataclass(frozen=True)
class SectionNode(ObjectNode):
    """A mapping that is parsed into the section `kind`; created by `section`."""

    kind: type = object

    def read(self, value: Mapping[str, Any]) -> Any:
        """An instance of `kind`; a key that is absent or null leaves the field at its default."""
        return read_section(self.kind, value)


def section(kind: type, description: str = "", rules: tuple[CelRule, ...] = ()) -> SectionNode:
    """The schema of a section, from the declarations of its fields. Those without a default are required."""
    declared = dict(_declared(kind))
    keys = {key: item.metadata["node"] for key, item in declared.items()}
    required = (key for key, item in declared.items() if item.default is item.default_factory is MISSING)
    return SectionNode(keys, description, tuple(required), rules=rules, kind=kind)


def read_section(kind: type[T], value: Mapping[str, Any]) -> T:
    """The section from a checked mapping."""
    return kind(**section_values(kind, value))


def section_values(kind: type, value: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that a checked mapping sets."""
    found = {}
    for key, item in _declared(kind):
        if value.get(key) is not None:
            found[item.name] = item.metadata["read"](value[key])
    return found


def _declared(kind: type) -> Iterator[tuple[str, Field[Any]]]:
    """The fields of a section with the keys under which a resource has them."""
    for item in fields(kind):
        if "node" in item.metadata:
            yield item.metadata["key"] or _camel_case(item.name), item


def _camel_case(name: str) -> str:
    return re.sub(r"_([a-z])", lambda match: match[1].upper(), name)
