"""The description of the API, made of the table of endpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gpuledger import __version__
from gpuledger.web.api.endpoints import ENDPOINTS, Endpoint
from gpuledger.web.api.parameters import Parameter
from gpuledger.web.api.schemas import EVENT, SCHEMAS

_OWNER: Final = {
    "owner_kind": "pod",
    "namespace": "ml",
    "pod": "train-0",
    "container": "pytorch",
    "user": "",
    "job": "",
}
_PLACE: Final = {"uuid": "GPU-5c1b8e8e-9b5c-4a3e-8f3b-2f6d3c1a0b9e", "gpu": "0", "instance": ""}
_STATUS: Final = {
    "text": "ok",
    "healthy": True,
    "stalled": False,
    "readings": True,
    "paused": False,
    "paused_until": None,
    "interval_seconds": 1.0,
}

EXAMPLES: Final[dict[str, Any]] = {
    "snapshot": {
        "version": "v1",
        "gpuledger": "0.1.0",
        "node": "node-17",
        "unix": 1795860000.25,
        "tick": 4711,
        "source": {
            "name": "nvml",
            "simulated": False,
            "detail": "",
            "driver_version": "580.95.05",
            "cuda_version": "13.0",
        },
        "status": _STATUS,
        "devices_complete": True,
        "devices": [
            {
                **_PLACE,
                "name": "NVIDIA H100 80GB HBM3",
                "profile": "",
                "pci_bus_id": "00000000:18:00.0",
                "up": True,
                "holds_processes": True,
                "state": "active",
                "utilization_ratio": 0.97,
                "memory_used_bytes": 42949672960,
                "memory_total_bytes": 85899345920,
                "power_watts": 512.345,
                "power_limit_watts": 700,
                "temperature_celsius": 61,
                "processes": 1,
                "sessions": 1,
                "energy_joules": 1813.568,
                "owners": [
                    {
                        **_OWNER,
                        "present": True,
                        "processes": 1,
                        "held_seconds": 2.5,
                        "allocated_seconds": 90,
                    }
                ],
            }
        ],
        "processes": [
            {
                **_PLACE,
                "pid": 4242,
                "count": None,
                "command": "python3",
                "types": ["C"],
                **_OWNER,
                "memory_bytes": 42949672960,
                "sm_ratio": 0.57,
                "memory_bandwidth_ratio": None,
                "start_unix": 1795856400.0,
                "start_exact": True,
                "unresolved": "",
                "power_watts": 430.2,
                "joules": 1234.567,
                "measured_joules": 1000,
            }
        ],
    },
    "recent": {
        "version": "v1",
        "step_seconds": 10,
        "until": 1795860000,
        "devices": [
            {
                "uuid": _PLACE["uuid"],
                "instance": "",
                "utilization_ratio": [0.91, None, 0.97],
                "power_watts": [498.2, None, 512.3],
                "memory_used_bytes": [42949672960, None, 42949672960],
            }
        ],
    },
    "sessions": {
        "version": "v1",
        "since": 1795773600.0,
        "until": 1795860000.0,
        "sessions": [
            {
                "id": "815",
                **_PLACE,
                "pid": 4242,
                "command": "python3",
                **_OWNER,
                "first_seen": 1795856400.0,
                "last_seen": 1795860000.0,
                "ended": None,
                "exit_seen": False,
                "peak_memory_bytes": 42949672960,
                "sm_mean_ratio": 0.55,
                "sm_most_ratio": 0.99,
                "held_seconds": 12,
                "joules": 1234.567,
                "measured_joules": 1000,
                "apportioned_joules": 234.567,
                "low_joules": 1000,
                "high_joules": 1500,
            }
        ],
        "next": None,
        "from_books": True,
    },
    "energy": {
        "version": "v1",
        "since": 1795824000,
        "until": 1795860000,
        "by": "namespace",
        "keys": ["namespace"],
        "complete": True,
        "rows": [
            {
                "key": ["ml"],
                "joules": 1234.567,
                "measured_joules": 1000,
                "apportioned_joules": 234.567,
                "low_joules": 1000,
                "high_joules": 1500,
                "gpu_seconds": 3600,
                "held_gpu_seconds": 12,
                "allocated_gpu_seconds": 3600,
                "sessions": 1,
                "cost": 0.000154,
                "co2_grams": None,
            }
        ],
        "own": [{"account": "idle", "joules": 60, "cost": 0.000008, "co2_grams": None}],
        "total": {
            "joules": 1294.567,
            "measured_joules": 1000,
            "apportioned_joules": 234.567,
            "gpu_seconds": 3600,
            "held_gpu_seconds": 12,
            "allocated_gpu_seconds": 3600,
            "occupied_gpu_seconds": 3600,
            "sessions": 1,
            "cost": 0.000162,
            "co2_grams": None,
        },
        "gpus": [
            {
                "uuid": _PLACE["uuid"],
                "gpu": "0",
                "name": "NVIDIA H100 80GB HBM3",
                "joules": 1294.567,
                "observed_gpu_seconds": 36000,
            }
        ],
        "currency": "EUR",
        "notes": [],
        "from_books": True,
        "next": None,
    },
    "health": {
        "version": "v1",
        "status": _STATUS,
        "started": 1795773600.0,
        "ticks": 4711,
        "interval_seconds": 1.0,
        "asked_interval_seconds": 1.0,
        "collectors": [
            {
                "name": "source",
                "success": True,
                "seconds": 0.0025,
                "last_success": 1795860000.25,
                "error": "",
                "failures": 0,
            }
        ],
        "maps": [
            {
                "name": "pods",
                "success": False,
                "last_success": None,
                "entries": 0,
                "error": "the API server does not answer: see gpuledger doctor",
            }
        ],
        "reload": {"success": True, "last_success": 1795773600.0, "error": "", "pending": []},
        "findings": [
            {
                "check": "host.pids",
                "level": "fails",
                "summary": "host pids: this is a pid namespace of its own",
                "remedy": "hostPID: true",
            }
        ],
        "findings_unix": 1795859990.0,
    },
}


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
