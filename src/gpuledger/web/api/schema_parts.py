"""Parts of the JSON Schemas of the responses: values, and how schemas are made of others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gpuledger.web.api.json_values import OWNER

Schema = Mapping[str, Any]

TEXT: Final = {"type": "string"}
FLAG: Final = {"type": "boolean"}
NUMBER: Final = {"type": "number"}
COUNT: Final = {"type": "integer", "minimum": 0}
POSITIVE: Final = {"type": "number", "minimum": 0}
RATIO: Final = {"type": "number", "minimum": 0, "maximum": 1}
UNIX: Final = {"type": "number", "description": "Unix seconds."}
VERSION: Final = {"const": "v1"}


def or_null(schema: Schema) -> Schema:
    """A schema that also accepts null, for absent values."""
    if "type" not in schema:
        return {"anyOf": [schema, {"type": "null"}]}
    return {**schema, "type": [schema["type"], "null"]}


def described(schema: Schema, text: str) -> Schema:
    """A schema with a description."""
    return {**schema, "description": text}


def list_of(items: Schema) -> Schema:
    """The schema of a list."""
    return {"type": "array", "items": items}


def object_schema(about: str, **properties: Schema) -> Schema:
    """The schema of an object with exactly these keys; `about` describes it."""
    return {
        "type": "object",
        "description": about,
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def reference(name: str) -> Schema:
    """A reference to a named schema."""
    return {"$ref": f"#/components/schemas/{name}"}


JOULES: Final = {"type": "number", "minimum": 0, "description": "Joules, exact to the millijoule."}
PLACE: Final = {
    "uuid": described(TEXT, "UUID of the GPU, under MIG too."),
    "gpu": described(TEXT, "Index of the GPU."),
    "instance": described(TEXT, "`GI_CI` of a MIG instance, else empty."),
}
OWNER_FIELDS: Final[dict[str, Schema]] = dict.fromkeys(OWNER, TEXT)
