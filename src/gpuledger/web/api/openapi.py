"""The description of the API, made of the table of endpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpuledger import __version__
from gpuledger.web.api.endpoints import ENDPOINTS, Endpoint
from gpuledger.web.api.examples import EXAMPLES
from gpuledger.web.api.parameters import Parameter
from gpuledger.web.api.schemas import EVENT, SCHEMAS

_ABOUT = (
    "What `gpuledger serve` knows, for its page, for `gpuledger top` and for programs. Base units and unix "
    "seconds throughout; energy in joules, exact to the millijoule; absent is null, never 0. Names of users, "
    "pods and processes are personal data, and are texts, never markup."
)
_JSON = "application/json"


def description() -> dict[str, Any]:
    """OpenAPI 3.1 as plain values."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "gpuledger", "version": __version__, "description": _ABOUT},
        "paths": {endpoint.path: {"get": _operation(endpoint)} for endpoint in ENDPOINTS},
        "components": {"schemas": SCHEMAS},
    }


def _operation(endpoint: Endpoint) -> Mapping[str, Any]:
    return {
        "operationId": endpoint.name.partition(".")[0],
        "summary": endpoint.summary,
        "description": endpoint.about,
        "parameters": [_parameter(one) for one in endpoint.parameters],
        "responses": _responses(endpoint),
    }


def _parameter(one: Parameter) -> Mapping[str, Any]:
    example = {} if one.example is None else {"example": one.example}
    return {"name": one.name, "in": "query", "description": one.about, "schema": one.schema, **example}


def _responses(endpoint: Endpoint) -> Mapping[str, Any]:
    found = {"200": _success(endpoint), "400": _error("A parameter is wrong, or there is none of this name.")}
    if any(one.name == "cursor" for one in endpoint.parameters):
        found["404"] = _error("The cursor is too old to go on with.")
    if endpoint.tagged:
        found["304"] = {"description": "Nothing has changed since the ETag in If-None-Match."}
    if endpoint.computed:
        found["503"] = _error("There are no books, or too many ask at once.")
    return found


def _success(endpoint: Endpoint) -> Mapping[str, Any]:
    if not endpoint.schema:
        content: Mapping[str, Any] = {"text/event-stream": {"schema": EVENT}}
    else:
        schema = {"$ref": f"#/components/schemas/{endpoint.schema}"}
        example = EXAMPLES.get(endpoint.name)
        content = {_JSON: {"schema": schema, **({} if example is None else {"example": example})}}
    return {"description": endpoint.about, "content": content}


def _error(about: str) -> Mapping[str, Any]:
    return {
        "description": about,
        "content": {_JSON: {"schema": {"$ref": "#/components/schemas/Error"}}},
    }
