"""values.schema.json: what Helm holds values against before it renders anything."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from values import Key

_DRAFT = "http://json-schema.org/draft-07/schema#"
# What Helm itself puts among the values of a subchart.
_GLOBAL = {"type": "object", "description": "Values of a chart that has this one as a part; none is read."}


def build(keys: Iterable[Key]) -> dict[str, Any]:
    """The schema; a key that is not in values.yaml is an error."""
    return {
        "$schema": _DRAFT,
        "title": "Values of the gpuledger chart",
        "type": "object",
        "additionalProperties": False,
        "properties": {key.name: _of(key) for key in keys} | {"global": _GLOBAL},
    }


def _of(key: Key) -> dict[str, Any]:
    made = {"description": key.description, **key.schema}
    if key.below:
        made |= {"additionalProperties": False, "properties": {one.name: _of(one) for one in key.below}}
    else:
        made["default"] = key.default
    return made
