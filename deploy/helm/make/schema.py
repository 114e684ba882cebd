"""Builds values.schema.json, against which Helm validates values before it renders templates."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from values import Key

_DRAFT = "http://json-schema.org/draft-07/schema#"
# Helm adds this key to the values of a subchart.
_GLOBAL = {"type": "object", "description": "Global values of a parent chart; ignored."}


def build_schema(keys: Iterable[Key]) -> dict[str, Any]:
    """JSON schema that rejects keys which are not in values.yaml."""
    return {
        "$schema": _DRAFT,
        "title": "Values of the gpuledger chart",
        "type": "object",
        "additionalProperties": False,
        "properties": {key.name: _key_schema(key) for key in keys} | {"global": _GLOBAL},
    }


def _key_schema(key: Key) -> dict[str, Any]:
    schema = {"description": key.description, **key.schema}
    if key.children:
        properties = {child.name: _key_schema(child) for child in key.children}
        schema |= {"additionalProperties": False, "properties": properties}
    else:
        schema["default"] = key.default
    return schema
