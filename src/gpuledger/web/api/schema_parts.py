"""Parts of the JSON Schemas of the responses: values, and how schemas are made of others."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import getdoc
from types import UnionType
from typing import Annotated, Any, Final, Union, get_args, get_origin, get_type_hints, is_typeddict

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


_OF_TYPE: Final[Mapping[object, Schema]] = {str: TEXT, bool: FLAG, int: COUNT, float: POSITIVE, Any: {}}


def schema_of(hint: Any) -> Schema:
    """The schema of a type: of a TypedDict, its fields, and what they consist of.

    In `Annotated`, a text is a description, and a pair a keyword of the schema with its value.
    """
    origin, parts = get_origin(hint), get_args(hint)
    if is_typeddict(hint):
        about = (getdoc(hint) or "").partition("\n\n")[0].replace("\n", " ")
        fields = get_type_hints(hint, include_extras=True)
        return object_schema(about, **{name: schema_of(part) for name, part in fields.items()})
    if origin is Annotated:
        found = schema_of(parts[0])
        for more in parts[1:]:
            keyword, value = ("description", more) if isinstance(more, str) else more
            found = {**found, keyword: list(value) if isinstance(value, tuple) else value}
        return found
    if origin in (Union, UnionType):
        return or_null(schema_of(parts[0]))
    if origin is list:
        return list_of(schema_of(parts[0]))
    if origin is dict:
        return {"type": "object", "additionalProperties": schema_of(parts[1])}
    return _OF_TYPE[hint]


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
