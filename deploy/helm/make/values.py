"""Reads values.yaml as a tree of keys with their defaults, descriptions and JSON schemas."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gpuledger.operator.spec import SOURCE_PATTERN

_SCHEMA_MARK = "@ "
# Keywords that the program declares, by path.
_OF_PROGRAM = {"source": {"pattern": SOURCE_PATTERN}}


@dataclass(frozen=True)
class Key:
    """A key with its dotted path; `children` are its keys, empty for mappings with arbitrary keys."""

    path: str
    default: Any
    description: str
    schema: dict[str, Any]
    children: tuple[Key, ...] = ()

    @property
    def name(self) -> str:
        """Last part of the path; keys contain no dots."""
        return self.path.rsplit(".", 1)[-1]


def read_keys(file: Path) -> tuple[Key, ...]:
    """Top-level keys. Raises ValueError naming a key without a description or with an invalid schema."""
    text = file.read_text(encoding="utf-8")
    lines = text.splitlines()
    node = yaml.compose(text, Loader=yaml.SafeLoader)
    return tuple(_keys(node, yaml.safe_load(text), lines, ""))


def _keys(node: Any, values: dict[str, Any], lines: list[str], prefix: str) -> Iterator[Key]:
    for name, value in node.value:
        path = f"{prefix}{name.value}"
        description, fragment = _comment(lines, name.start_mark.line, path)
        default = values[name.value]
        free = {"properties", "additionalProperties", "propertyNames"} & fragment.keys()
        children: tuple[Key, ...] = ()
        if isinstance(default, dict) and default and not free:
            children = tuple(_keys(value, default, lines, f"{path}."))
        schema = fragment if fragment.keys() & {"type", "enum"} else {"type": _type(default), **fragment}
        yield Key(path, default, description, schema, children)


def _comment(lines: list[str], line: int, path: str) -> tuple[str, dict[str, Any]]:
    """Description and schema in the comment directly above a line."""
    words: list[str] = []
    schema: dict[str, Any] = dict(_OF_PROGRAM.get(path, {}))
    start = line
    while start and lines[start - 1].lstrip().startswith("#"):
        start -= 1
    for text in lines[start:line]:
        comment = text.lstrip().removeprefix("#").strip()
        if not comment.startswith(_SCHEMA_MARK):
            words.append(comment)
            continue
        fragment = yaml.safe_load(comment.removeprefix(_SCHEMA_MARK))
        if not isinstance(fragment, dict):
            raise ValueError(f"values.yaml: {path}: expected a mapping of JSON schema keywords after '# @'")
        schema |= fragment
    description = " ".join(words)
    if not description:
        raise ValueError(f"values.yaml: {path}: missing description; add a comment above the key")
    return description, schema


def _type(default: object) -> str:
    # bool comes before int, because it is a subclass of int.
    for kind, name in (
        (bool, "boolean"),
        (int, "integer"),
        (str, "string"),
        (list, "array"),
        (dict, "object"),
    ):
        if isinstance(default, kind):
            return name
    raise ValueError(f"values.yaml: the default {default!r} has no JSON type; add a type in a '# @' line")
