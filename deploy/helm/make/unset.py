"""Writes what each key of values.yaml is if it is set to null: empty, or its default if it cannot be."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml
from values import Key

_ABOUT = "# Written by `make chart` from values.yaml: the values of keys that are set to null.\n"


def write_unset(keys: Iterable[Key], file: Path) -> None:
    """Write the values of all keys as if each were null."""
    values = {key.name: _unset(key) for key in keys}
    file.write_text(_ABOUT + yaml.safe_dump(values, sort_keys=False, width=110), encoding="utf-8")


def _unset(key: Key) -> Any:
    if key.children:
        return {child.name: _unset(child) for child in key.children}
    may_be_empty = isinstance(key.default, str | dict | list) and _allows_empty(key.schema)
    return type(key.default)() if may_be_empty else key.default


def _allows_empty(schema: dict[str, Any]) -> bool:
    if "enum" in schema:
        return "" in schema["enum"]
    if {"minLength", "x-default-if-null"} & schema.keys():
        return False
    return re.search(schema.get("pattern", ""), "") is not None
