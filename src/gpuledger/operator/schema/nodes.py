"""Schema nodes: from one tree follow the CRD's OpenAPI schema, our own check, and the values that are read.

The API server validates resources too, but perhaps against the CRD of another chart version.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import nan
from re import fullmatch
from typing import Any, Final

OpenApiSchema = dict[str, Any]

# Kubernetes has no larger integers: this bound means "no bound".
INT64: Final = 2**63 - 1
# The keyword of CEL rules in a schema.
CEL_RULES: Final = "x-kubernetes-validations"
# A wrong value is quoted in a status up to this length.
_QUOTED_LENGTH: Final = 60


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One line for the resource's status, with the path of the field, such as
    `spec.features.openAgent.targets[0].endpoints[0].interval`.
    """

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


@dataclass(frozen=True, slots=True)
class CelRule:
    """A condition that types and patterns cannot express, in CEL.

    API servers since 1.30 check it before they store a resource. An expression that fails refuses the value,
    too. The operator finds the same problems itself, for the resources of older servers.
    """

    expression: str
    message: str


class SchemaNode:
    """The type of one field. `description` is what `kubectl explain` shows.

    The API server estimates what `rules` cost at most, so lists and mappings around them must be bounded, and
    the texts in them.
    """

    description: str = ""
    rules: tuple[CelRule, ...] = ()

    def openapi(self) -> OpenApiSchema:
        """The structural OpenAPI v3 schema, without the description."""
        raise NotImplementedError

    def check(self, value: object, path: str) -> Iterator[Problem]:
        """The problems of a value; none for a value that the schema allows."""
        raise NotImplementedError

    def read(self, value: Any) -> Any:
        """A checked value as the program holds it."""
        return value

    def described(self) -> OpenApiSchema:
        """The schema with its description and its rules."""
        schema = {"description": self.description, **self.openapi()} if self.description else self.openapi()
        if self.rules:
            schema[CEL_RULES] = [{"rule": rule.expression, "message": rule.message} for rule in self.rules]
        return schema


@dataclass(frozen=True)
class TextNode(SchemaNode):
    """A string. `pattern` starts with ^, ends with $, and means the same to RE2 and Python."""

    description: str = ""
    pattern: str = ""
    choices: tuple[str, ...] = ()
    expected: str = ""
    max_length: int = 0
    rules: tuple[CelRule, ...] = ()

    def openapi(self) -> OpenApiSchema:
        """See SchemaNode."""
        schema = {"type": "string", "enum": [*self.choices], "pattern": self.pattern}
        return _without_empty({**schema, "maxLength": self.max_length})

    def check(self, value: object, path: str) -> Iterator[Problem]:
        """See SchemaNode."""
        if not isinstance(value, str):
            yield Problem(path, f"expected a string, not {_quote(value)}")
        elif self.choices and value not in self.choices:
            yield Problem(
                path, f"expected one of {', '.join(filter(None, self.choices))}, not {_quote(value)}"
            )
        elif self.pattern and not fullmatch(self.pattern, value):
            yield Problem(path, f"expected {self.expected or self.pattern}, not {_quote(value)}")
        elif self.max_length and len(value) > self.max_length:
            yield Problem(path, f"expected at most {self.max_length} characters")


@dataclass(frozen=True)
class BooleanNode(SchemaNode):
    """true or false."""

    description: str = ""

    def openapi(self) -> OpenApiSchema:
        """See SchemaNode."""
        return {"type": "boolean"}

    def check(self, value: object, path: str) -> Iterator[Problem]:
        """See SchemaNode."""
        if not isinstance(value, bool):
            yield Problem(path, f"expected true or false, not {_quote(value)}")


@dataclass(frozen=True)
class IntegerNode(SchemaNode):
    """A whole number; both bounds are included."""

    description: str = ""
    minimum: int = 0
    maximum: int = 2**31 - 1

    def openapi(self) -> OpenApiSchema:
        """See SchemaNode."""
        schema: OpenApiSchema = {"type": "integer", "format": "int64" if self.maximum >= 2**31 else "int32"}
        if self.minimum > -INT64:
            schema["minimum"] = self.minimum
        if self.maximum < INT64:
            schema["maximum"] = self.maximum
        return schema

    def check(self, value: object, path: str) -> Iterator[Problem]:
        """See SchemaNode."""
        if not _is_integer(value, self.minimum, self.maximum):
            bounds = f"{self.minimum} to {self.maximum}"
            yield Problem(path, f"expected a whole number from {bounds}, not {_quote(value)}")


class NumberNode(IntegerNode):
    """A number, with or without decimals; both bounds are included."""

    def openapi(self) -> OpenApiSchema:
        """See SchemaNode."""
        return {"type": "number", "minimum": self.minimum, "maximum": self.maximum}

    def check(self, value: object, path: str) -> Iterator[Problem]:
        """See SchemaNode."""
        number = value if isinstance(value, int | float) and not isinstance(value, bool) else nan
        if not self.minimum <= number <= self.maximum:
            bounds = f"{self.minimum} to {self.maximum}"
            yield Problem(path, f"expected a number from {bounds}, not {_quote(value)}")


@dataclass(frozen=True)
class IntOrStringNode(SchemaNode):
    """A number that people write with or without quotes: a port, a size, a percentage."""

    description: str = ""
    pattern: str = ""
    expected: str = ""
    minimum: int = 0
    maximum: int = 2**31 - 1

    def openapi(self) -> OpenApiSchema:
        """See SchemaNode."""
        schema: OpenApiSchema = {
            "x-kubernetes-int-or-string": True,
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "minimum": self.minimum,
            "maximum": self.maximum,
        }
        return {**schema, "pattern": self.pattern} if self.pattern else schema

    def check(self, value: object, path: str) -> Iterator[Problem]:
        """See SchemaNode."""
        is_text = isinstance(value, str) and (not self.pattern or fullmatch(self.pattern, value) is not None)
        if not is_text and not _is_integer(value, self.minimum, self.maximum):
            yield Problem(path, f"expected {self.expected or 'a number or a string'}, not {_quote(value)}")


@dataclass(frozen=True)
class ListNode(SchemaNode):
    """A list of items of one type."""

    item: SchemaNode
    description: str = ""
    min_items: int = 0
    max_items: int = 0
    rules: tuple[CelRule, ...] = ()

    def openapi(self) -> OpenApiSchema:
        """See SchemaNode."""
        bounds = {"minItems": self.min_items, "maxItems": self.max_items}
        return _without_empty({"type": "array", "items": self.item.described(), **bounds})

    def check(self, value: object, path: str) -> Iterator[Problem]:
        """See SchemaNode."""
        if not isinstance(value, list | tuple):
            yield Problem(path, f"expected a list, not {_quote(value)}")
            return
        if len(value) < self.min_items:
            yield Problem(path, f"expected at least {self.min_items} items")
        if self.max_items and len(value) > self.max_items:
            yield Problem(path, f"expected at most {self.max_items} items")
        for index, item in enumerate(value):
            yield from self.item.check(item, f"{path}[{index}]")

    def read(self, value: Any) -> tuple[Any, ...]:
        """The items as a tuple."""
        return tuple(self.item.read(item) for item in value)


@dataclass(frozen=True)
class JudgedListNode(ListNode):
    """A list of items that are independent of each other. The API server takes any items; only our own check
    judges them, so that a bad one does not cost the others.
    """

    def openapi(self) -> OpenApiSchema:
        """See SchemaNode; the schema of the items only describes them."""
        return {**super().openapi(), "items": _only_descriptions(self.item.described())}


def _only_descriptions(schema: OpenApiSchema) -> OpenApiSchema:
    found: OpenApiSchema = {"x-kubernetes-preserve-unknown-fields": True}
    if "description" in schema:
        found["description"] = schema["description"]
    if "properties" in schema:
        found["properties"] = {
            name: _only_descriptions(below) for name, below in schema["properties"].items()
        }
    if "items" in schema:
        found["items"] = _only_descriptions(schema["items"])
    return found


@dataclass(frozen=True)
class MapNode(SchemaNode):
    """A mapping with any keys, and values of one type.

    `name` checks the keys. OpenAPI cannot express that, so only our own check does.
    """

    value: SchemaNode
    description: str = ""
    name: SchemaNode | None = None
    max_items: int = 0
    rules: tuple[CelRule, ...] = ()

    def openapi(self) -> OpenApiSchema:
        """See SchemaNode."""
        schema = {"type": "object", "additionalProperties": self.value.described()}
        return _without_empty({**schema, "maxProperties": self.max_items})

    def check(self, value: object, path: str) -> Iterator[Problem]:
        """See SchemaNode."""
        if not isinstance(value, Mapping):
            yield Problem(path, f"expected a mapping, not {_quote(value)}")
            return
        if self.max_items and len(value) > self.max_items:
            yield Problem(path, f"expected at most {self.max_items} entries")
        for name, item in value.items():
            if self.name is not None:
                yield from self.name.check(name, f"{path}.{name}")
            yield from self.value.check(item, f"{path}.{name}")


@dataclass(frozen=True)
class ObjectNode(SchemaNode):
    """A mapping with known keys. `open` keeps unknown keys, which have no effect."""

    keys: Mapping[str, SchemaNode] = field(default_factory=dict)
    description: str = ""
    required: tuple[str, ...] = ()
    open: bool = False
    rules: tuple[CelRule, ...] = ()

    def openapi(self) -> OpenApiSchema:
        """See SchemaNode."""
        return _without_empty(
            {
                "type": "object",
                "properties": {name: node.described() for name, node in self.keys.items()},
                "required": [*self.required],
                "x-kubernetes-preserve-unknown-fields": self.open,
            }
        )

    def check(self, value: object, path: str) -> Iterator[Problem]:
        """See SchemaNode."""
        if not isinstance(value, Mapping):
            yield Problem(path, f"expected a mapping, not {_quote(value)}")
            return
        for name in self.required:
            if value.get(name) is None:
                yield Problem(f"{path}.{name}", "is missing")
        for name, item in value.items():
            node = self.keys.get(name)
            # A key with null counts as absent: the API server removes it, too.
            if node is not None and item is not None:
                yield from node.check(item, f"{path}.{name}")
            elif node is None and not self.open:
                yield Problem(f"{path}.{name}", f"is unknown; known keys are {', '.join(self.keys)}")

    def read(self, value: Any) -> Any:
        """The mapping without keys that are unset or without effect."""
        if not isinstance(value, Mapping):
            return value
        found = ((name, item, self.keys.get(name)) for name, item in value.items())
        return {
            name: item if node is None or item is None else node.read(item)
            for name, item, node in found
            if not isinstance(node, IgnoredNode) and (item != "" or not _means_unset(node))
        }


@dataclass(frozen=True)
class PrunedNode(ObjectNode):
    """A mapping with unknown keys that are stored and reported as ignored."""

    open: bool = True

    def read(self, value: Any) -> Any:
        """The known keys that are set."""
        if not isinstance(value, Mapping):
            return value
        known = {name: item for name, item in value.items() if name in self.keys and item is not None}
        return super().read(known)


@dataclass(frozen=True)
class IgnoredNode(SchemaNode):
    """A key with any value that has no effect; `why` is reported to the author of the resource."""

    why: str = ""

    def openapi(self) -> OpenApiSchema:
        """See SchemaNode."""
        return {"x-kubernetes-preserve-unknown-fields": True}

    def described(self) -> OpenApiSchema:
        """The schema with the reason as its description."""
        return {"description": f"Ignored: {self.why}", **self.openapi()}

    def check(self, _value: object, _path: str) -> Iterator[Problem]:
        """No problem."""
        return iter(())


def ignored_keys(node: SchemaNode, value: object, path: str) -> Iterator[Problem]:
    """The keys of a checked value that have no effect: ignored keys that are set, and unknown keys."""
    if isinstance(node, IgnoredNode):
        if value and value != {"enabled": False}:
            yield Problem(path, node.why)
    elif isinstance(node, ListNode) and isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from ignored_keys(node.item, item, f"{path}[{index}]")
    elif isinstance(node, ObjectNode) and node.keys and isinstance(value, Mapping):
        for name, item in value.items():
            below = node.keys.get(name, IgnoredNode("is unknown"))
            yield from ignored_keys(below, item, f"{path}.{name}")


def _means_unset(node: SchemaNode | None) -> bool:
    """Whether an empty text stands for a value that is not set."""
    return isinstance(node, TextNode) and (node.pattern.endswith("|^$") or "" in node.choices)


def _without_empty(schema: OpenApiSchema) -> OpenApiSchema:
    """The schema without keywords that do not restrict anything."""
    return {keyword: value for keyword, value in schema.items() if value}


def _is_integer(value: object, lowest: int, highest: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and lowest <= value <= highest


def _quote(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _QUOTED_LENGTH else f"{text[: _QUOTED_LENGTH - 4]} ..."
