"""values.yaml as a tree: every key with its default, its description and its JSON schema."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

_SCHEMA_MARK = "@ "


@dataclass(frozen=True)
class Key:
    """One key by its dotted path; `below` are the keys in it, where the chart knows them."""

    path: str
    default: Any
    description: str
    schema: dict[str, Any]
    below: tuple[Key, ...] = ()

    @property
    def name(self) -> str:
        """The last part of the path; keys bear no dots."""
        return self.path.rsplit(".", 1)[-1]


def read(file: Path) -> tuple[Key, ...]:
    """The keys at the top. Raises ValueError naming a key without a description or with a bad schema."""
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
        below: tuple[Key, ...] = ()
        if isinstance(default, dict) and default and not free:
            below = tuple(_keys(value, default, lines, f"{path}."))
        schema = fragment if fragment.keys() & {"type", "enum"} else {"type": _type(default), **fragment}
        yield Key(path, default, description, schema, below)


def _comment(lines: list[str], line: int, path: str) -> tuple[str, dict[str, Any]]:
    """The comment right above a line: its words, and the schema in it."""
    words: list[str] = []
    schema: dict[str, Any] = {}
    start = line
    while start and lines[start - 1].lstrip().startswith("#"):
        start -= 1
    for text in lines[start:line]:
        said = text.lstrip().removeprefix("#").strip()
        if not said.startswith(_SCHEMA_MARK):
            words.append(said)
            continue
        fragment = yaml.safe_load(said.removeprefix(_SCHEMA_MARK))
        if not isinstance(fragment, dict):
            raise ValueError(f"values.yaml: {path}: what follows # @ is not a mapping")
        schema |= fragment
    description = " ".join(words)
    if not description:
        raise ValueError(f"values.yaml: {path}: a comment that says what it means is wanted above it")
    return description, schema


def _type(default: object) -> str:
    # bool before int, which it is one of.
    for kind, name in (
        (bool, "boolean"),
        (int, "integer"),
        (str, "string"),
        (list, "array"),
        (dict, "object"),
    ):
        if isinstance(default, kind):
            return name
    raise ValueError(f"values.yaml: a default like {default!r} needs a type in its # @ line")
