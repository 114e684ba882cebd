"""Builds values.schema.json, against which Helm validates values before it renders templates."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from values import Key

_DRAFT = "http://json-schema.org/draft-07/schema#"
# Keys of a subchart: Helm adds global, and the condition of a dependency is usually its key enabled. A
# subchart that is off has no values to validate.
_OF_SUBCHARTS = {
    "global": {"type": "object", "description": "Global values of a parent chart; ignored."},
    "enabled": {"enum": [True], "description": "The condition of a parent chart; ignored."},
}


def build_schema(keys: Iterable[Key]) -> dict[str, Any]:
    """JSON schema that rejects keys which are not in values.yaml."""
    return {
        "$schema": _DRAFT,
        "title": "Values of the gpuledger chart",
        "type": "object",
        "additionalProperties": False,
        "properties": {key.name: _key_schema(key) for key in keys} | _OF_SUBCHARTS,
    }


def _key_schema(key: Key) -> dict[str, Any]:
    schema = {"description": key.description, **_nullable(key.schema)}
    if key.children:
        properties = {child.name: _key_schema(child) for child in key.children}
        schema |= {"additionalProperties": False, "properties": properties}
    else:
        schema["default"] = key.default
    return schema


def _nullable(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema that also allows null, for itself and for its keys: null takes a value away."""
    made = dict(schema)
    if "type" in made:
        kinds = made["type"] if isinstance(made["type"], list) else [made["type"]]
        made["type"] = [*kinds, *(["null"] if "null" not in kinds else [])]
    if "enum" in made:
        made["enum"] = [*made["enum"], None]
    if isinstance(made.get("additionalProperties"), dict):
        made["additionalProperties"] = _nullable(made["additionalProperties"])
    if "properties" in made:
        made["properties"] = {name: _nullable(one) for name, one in made["properties"].items()}
    return made
