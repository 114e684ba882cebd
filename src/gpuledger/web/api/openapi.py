"""The OpenAPI description of the API, built from the table of endpoints."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pkgutil import get_data
from typing import Any

from gpuledger import __version__
from gpuledger.web.api.endpoints import ENDPOINTS, Endpoint
from gpuledger.web.api.parameters import Parameter
from gpuledger.web.api.schemas import EVENT, SCHEMAS

_ABOUT = (
    "The data of `gpuledger serve`, for its web page, `gpuledger top` and other programs. Base units and "
    "unix seconds throughout; energy in joules, exact to the millijoule; absent values are null, never 0. "
    "Names of users, pods and processes are personal data; treat them as text, never as markup."
)
_JSON = "application/json"


def openapi_document() -> dict[str, Any]:
    """The OpenAPI 3.1 document."""
    examples = example_responses()
    return {
        "openapi": "3.1.0",
        "info": {"title": "gpuledger", "version": __version__, "description": _ABOUT},
        "paths": {
            endpoint.path: {"get": _operation(endpoint, examples.get(endpoint.name))}
            for endpoint in ENDPOINTS
        },
        "components": {"schemas": SCHEMAS},
    }


def example_responses() -> dict[str, Any]:
    """A response of a simulated node by the endpoint's name; `make docs` writes them."""
    found: dict[str, Any] = json.loads(get_data(__name__, "examples.json") or b"{}")
    return found


def _operation(endpoint: Endpoint, example: Any) -> Mapping[str, Any]:
    return {
        "operationId": endpoint.name.partition(".")[0],
        "summary": endpoint.summary,
        "description": endpoint.about,
        "parameters": [_parameter(one) for one in endpoint.parameters],
        "responses": _responses(endpoint, example),
    }


def _parameter(one: Parameter) -> Mapping[str, Any]:
    example = {} if one.example is None else {"example": one.example}
    return {"name": one.name, "in": "query", "description": one.about, "schema": one.schema, **example}


def _responses(endpoint: Endpoint, example: Any) -> Mapping[str, Any]:
    found = {
        "200": _success(endpoint, example),
        "400": _error("A parameter is invalid or unknown."),
        "403": _error("`access.mode` is `own`, and the client may not read this."),
    }
    if any(one.name == "cursor" for one in endpoint.parameters):
        found["404"] = _error("The cursor has expired, or the ledger has no data of the range.")
    elif endpoint.name in ("books", "report", "explain", "idle", "receipt"):
        found["404"] = _error("The ledger has no such row of the client, or no data of the range.")
    if endpoint.tagged:
        found["304"] = {"description": "Nothing has changed since the ETag in If-None-Match."}
    if endpoint.computed:
        found["503"] = _error(
            "There is no ledger on disk, it has no reading yet, or too many requests are pending."
        )
    return found


def _success(endpoint: Endpoint, example: Any) -> Mapping[str, Any]:
    described: dict[str, Any] = {"schema": {"$ref": f"#/components/schemas/{endpoint.schema}"}}
    if example is not None:
        described["example"] = example
    if not endpoint.schema:
        # Binary content has no schema in OpenAPI 3.1.
        described = {"schema": EVENT} if endpoint.name == "events" else {}
    return {"description": endpoint.about, "content": {endpoint.content: described}}


def _error(about: str) -> Mapping[str, Any]:
    return {
        "description": about,
        "content": {_JSON: {"schema": {"$ref": "#/components/schemas/Error"}}},
    }
