"""What the endpoints answer, in JSON Schema. Absent is null, in every answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gpuledger.model.checks import Verdict
from gpuledger.web.api.values import OWNER

Schema = Mapping[str, Any]

_TEXT: Final = {"type": "string"}
_FLAG: Final = {"type": "boolean"}
_NUMBER: Final = {"type": "number"}
_COUNT: Final = {"type": "integer", "minimum": 0}
_POSITIVE: Final = {"type": "number", "minimum": 0}
_RATIO: Final = {"type": "number", "minimum": 0, "maximum": 1}
_UNIX: Final = {"type": "number", "description": "Unix seconds."}
_VERSION: Final = {"const": "v1"}


def _or_null(schema: Schema) -> Schema:
    """Absent is null: never 0, never NaN."""
    if "type" not in schema:
        return {"anyOf": [schema, {"type": "null"}]}
    return {**schema, "type": [schema["type"], "null"]}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _object(about: str, **properties: Schema) -> Schema:
    return {
        "type": "object",
        "description": about,
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


_JOULES: Final = {"type": "number", "minimum": 0, "description": "Joules, exact to the millijoule."}
_PLACE: Final = {
    "uuid": {"type": "string", "description": "UUID of the GPU, under MIG too."},
    "gpu": {"type": "string", "description": "Index of the GPU."},
    "instance": {"type": "string", "description": "`GI_CI` of a MIG instance, else empty."},
}
_OWNER: Final[dict[str, Schema]] = dict.fromkeys(OWNER, _TEXT)
_STATUS: Final = _object(
    "How the node is.",
    text={"type": "string", "description": "`ok`, or what is wrong and what to do."},
    healthy=_FLAG,
    stalled={"type": "boolean", "description": "A tick has not come back."},
    readings={"type": "boolean", "description": "Whether anything could be read."},
    paused=_FLAG,
    paused_until=_or_null(_UNIX),
    interval_seconds=_POSITIVE,
)
_SOURCE: Final = _object(
    "What is read.",
    name=_TEXT,
    simulated={"type": "boolean", "description": "True for anything that is not hardware."},
    detail=_TEXT,
    driver_version=_TEXT,
    cuda_version=_TEXT,
)
_DEVICE_OWNER: Final = _object(
    "Who has the device, or had it lately; seconds since the program started.",
    **_OWNER,
    present=_FLAG,
    processes=_or_null(_COUNT),
    held_seconds=_POSITIVE,
    allocated_seconds=_POSITIVE,
)
_DEVICE: Final = _object(
    "A GPU or a MIG instance.",
    **_PLACE,
    name=_TEXT,
    profile=_TEXT,
    pci_bus_id=_TEXT,
    up=_FLAG,
    holds_processes={"type": "boolean", "description": "False for a GPU that is cut into instances."},
    state=_or_null({"enum": ["active", "held", "idle", "unknown"]}),
    utilization_ratio=_or_null(_RATIO),
    memory_used_bytes=_or_null(_COUNT),
    memory_total_bytes=_or_null(_COUNT),
    power_watts=_or_null(_POSITIVE),
    power_limit_watts=_or_null(_POSITIVE),
    temperature_celsius=_or_null(_NUMBER),
    processes=_or_null(_COUNT),
    sessions=_or_null(_COUNT),
    energy_joules=_or_null({**_JOULES, "description": "Of a GPU, since the books were opened."}),
    owners=_list(_ref("DeviceOwner")),
)
_PROCESS: Final = _object(
    "A process on a device; with pid null and a count, all that are beyond the cap of the device.",
    **_PLACE,
    pid=_or_null(_COUNT),
    count=_or_null(_COUNT),
    command=_TEXT,
    types=_list({"enum": ["M", "C", "G"]}),
    **_OWNER,
    memory_bytes=_or_null(_COUNT),
    sm_ratio=_or_null(_RATIO),
    memory_bandwidth_ratio=_or_null(_RATIO),
    start_unix=_or_null(_UNIX),
    start_exact={"type": "boolean", "description": "False where the first sight stands in."},
    unresolved={"type": "string", "description": "Why the owner is not fully known; empty when it is."},
    power_watts=_or_null({**_POSITIVE, "description": "What the last interval booked, by its seconds."}),
    joules=_or_null({**_JOULES, "description": "Booked to it since it was first seen."}),
    measured_joules=_or_null({**_JOULES, "description": "The part that was not apportioned."}),
)
_SESSION: Final = _object(
    "A process from first to last sight. Its energy is what is booked to it, with bounds that need no model.",
    id={"type": "string", "description": "Names it in these books."},
    **_PLACE,
    pid=_COUNT,
    command=_TEXT,
    **_OWNER,
    first_seen=_UNIX,
    last_seen=_UNIX,
    ended=_or_null(_UNIX),
    exit_seen={
        "type": "boolean",
        "description": "False while it runs, and where nobody looked when it ended.",
    },
    peak_memory_bytes=_or_null(_COUNT),
    sm_mean_ratio=_or_null(_RATIO),
    sm_most_ratio=_or_null(_RATIO),
    held_seconds={**_POSITIVE, "description": "There, and certainly doing nothing."},
    joules=_or_null(_JOULES),
    measured_joules=_or_null(_JOULES),
    apportioned_joules=_or_null(_JOULES),
    low_joules=_or_null(_JOULES),
    high_joules=_or_null(_JOULES),
)
_NEXT: Final = {
    "type": ["string", "null"],
    "description": "`cursor` of what follows; null when this is all.",
}
_AMOUNTS: Final = {
    "joules": _JOULES,
    "measured_joules": _JOULES,
    "apportioned_joules": _JOULES,
}
_TIMES: Final = {
    "gpu_seconds": _or_null(_POSITIVE),
    "held_gpu_seconds": _or_null(_POSITIVE),
    "allocated_gpu_seconds": _or_null(_POSITIVE),
}
_COSTS: Final = {"cost": _or_null(_POSITIVE), "co2_grams": _or_null(_POSITIVE)}
_COLLECTOR: Final = _object(
    "A part of the tick.",
    name=_TEXT,
    success=_FLAG,
    seconds=_or_null(_POSITIVE),
    last_success=_or_null(_UNIX),
    error=_TEXT,
    failures=_COUNT,
)
_MAP: Final = _object(
    "A map of owners.", name=_TEXT, success=_FLAG, last_success=_or_null(_UNIX), entries=_COUNT, error=_TEXT
)

# Of one server-sent event; its data are JSON.
EVENT: Final = {
    "type": "object",
    "description": (
        "tick: {tick, unix, now, healthy, readings}, with the tick as id; session: {opened, closed} since "
        "the event before."
    ),
    "properties": {"id": _TEXT, "event": {"enum": ["tick", "session"]}, "data": _TEXT},
    "required": ["event", "data"],
}

SCHEMAS: Final[dict[str, Schema]] = {
    "Status": _STATUS,
    "DeviceOwner": _DEVICE_OWNER,
    "Device": _DEVICE,
    "Process": _PROCESS,
    "Session": _SESSION,
    "Snapshot": _object(
        "What is now.",
        version=_VERSION,
        gpuledger={"type": "string", "description": "Version of the program."},
        node=_TEXT,
        unix=_UNIX,
        tick=_COUNT,
        source=_SOURCE,
        status=_ref("Status"),
        devices_complete={"type": "boolean", "description": "False when not all could be listed."},
        devices=_list(_ref("Device")),
        processes=_list(_ref("Process")),
    ),
    "Recent": _object(
        "The last hour.",
        version=_VERSION,
        step_seconds={"type": "integer", "minimum": 1},
        until=_UNIX,
        devices=_list(
            _object(
                "One device.",
                uuid=_TEXT,
                instance=_TEXT,
                utilization_ratio=_list(_or_null(_RATIO)),
                power_watts=_list(_or_null(_POSITIVE)),
                memory_used_bytes=_list(_or_null(_COUNT)),
            )
        ),
    ),
    "Sessions": _object(
        "A part of the sessions.",
        version=_VERSION,
        since=_UNIX,
        until=_UNIX,
        sessions=_list(_ref("Session")),
        next=_NEXT,
        from_books={"type": "boolean", "description": "False: only what runs now is known."},
    ),
    "Energy": _object(
        "A part of a report.",
        version=_VERSION,
        since=_UNIX,
        until=_UNIX,
        by=_TEXT,
        keys={**_list(_TEXT), "description": "Names of the parts of each key."},
        complete={"type": "boolean", "description": "False: the books begin after `since`."},
        rows=_list(
            _object(
                "One owner; a key of empty texts is what the grouping has no word for.",
                key=_list(_TEXT),
                **_AMOUNTS,
                low_joules=_JOULES,
                high_joules=_or_null(_JOULES),
                **_TIMES,
                sessions=_or_null(_COUNT),
                **_COSTS,
            )
        ),
        own=_list(
            _object(
                "What is no owner's.",
                account={"enum": ["idle", "unattributed", "unobserved"]},
                joules=_JOULES,
                **_COSTS,
            )
        ),
        total=_object(
            "All of it; gpu_seconds count a shared GPU once for each owner, occupied_gpu_seconds once.",
            **_AMOUNTS,
            **_TIMES,
            occupied_gpu_seconds=_or_null(_POSITIVE),
            sessions=_or_null(_COUNT),
            **_COSTS,
        ),
        gpus=_list(
            _object(
                "One GPU.",
                uuid=_TEXT,
                gpu=_TEXT,
                name=_TEXT,
                joules=_JOULES,
                observed_gpu_seconds=_POSITIVE,
            )
        ),
        currency=_TEXT,
        notes={**_list(_TEXT), "description": "What is to be known of the numbers, such as a PUE in costs."},
        from_books=_FLAG,
        next=_NEXT,
    ),
    "Health": _object(
        "The node's condition.",
        version=_VERSION,
        status=_ref("Status"),
        started=_UNIX,
        ticks=_COUNT,
        interval_seconds=_POSITIVE,
        asked_interval_seconds=_POSITIVE,
        collectors=_list(_COLLECTOR),
        maps=_list(_MAP),
        reload=_or_null(
            _object(
                "How the settings were read last.",
                success=_FLAG,
                last_success=_UNIX,
                error=_TEXT,
                pending=_list(_TEXT),
            )
        ),
        findings=_list(
            _object(
                "What `gpuledger doctor` says of one thing.",
                check=_TEXT,
                level={"enum": [verdict.value for verdict in Verdict]},
                summary=_TEXT,
                remedy=_TEXT,
            )
        ),
        findings_unix=_or_null(_UNIX),
    ),
    "Description": {"type": "object", "required": ["openapi", "info", "paths"]},
    "Error": _object(
        "What was wrong.",
        version=_VERSION,
        error=_object(
            "One line that names the parameter and the remedy.",
            code=_TEXT,
            message=_TEXT,
            parameter=_or_null(_TEXT),
        ),
    ),
}
