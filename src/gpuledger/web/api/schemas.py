"""The JSON Schemas of the responses. Absent values are null in every response."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gpuledger.ledger.report.formats import SCHEMA_VERSION
from gpuledger.model.checks import Verdict
from gpuledger.model.session import ALLOCATION, RESIDENCE
from gpuledger.web.api.json_values import OWNER

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
    """A schema that also accepts null, for absent values."""
    if "type" not in schema:
        return {"anyOf": [schema, {"type": "null"}]}
    return {**schema, "type": [schema["type"], "null"]}


def _described(schema: Schema, text: str) -> Schema:
    return {**schema, "description": text}


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
    "uuid": _described(_TEXT, "UUID of the GPU, under MIG too."),
    "gpu": _described(_TEXT, "Index of the GPU."),
    "instance": _described(_TEXT, "`GI_CI` of a MIG instance, else empty."),
}
_OWNER: Final[dict[str, Schema]] = dict.fromkeys(OWNER, _TEXT)
_STATUS: Final = _object(
    "Status of the node.",
    text=_described(_TEXT, "`ok`, or what is wrong and what to do."),
    healthy=_FLAG,
    stalled=_described(_FLAG, "The running tick hangs."),
    readings=_described(_FLAG, "Whether the driver could be read."),
    paused=_FLAG,
    paused_until=_or_null(_UNIX),
    interval_seconds=_POSITIVE,
)
_SOURCE: Final = _object(
    "The source of the readings.",
    name=_TEXT,
    simulated=_described(_FLAG, "True when the source is not hardware."),
    detail=_TEXT,
    driver_version=_TEXT,
    cuda_version=_TEXT,
)
_DEVICE_OWNER: Final = _object(
    "A current or recent owner of the device; seconds are counted since the program started.",
    **_OWNER,
    present=_FLAG,
    processes=_or_null(_COUNT),
    held_seconds=_POSITIVE,
    allocated_seconds=_POSITIVE,
)
_LEVEL: Final = {"enum": ["failure", "warning", "info"]}
_PROBLEM: Final = _object(
    "Something that is wrong with a GPU.",
    kind=_described(_TEXT, "`down`, `recovery_action`, `pcie_width`, `thermal_throttling`, `xid`, ..."),
    level=_described(_LEVEL, "`failure`: act now; `warning`: slower, or will fail; `info`: can stay."),
    label=_TEXT,
    summary=_described(_TEXT, "The end of a sentence about the GPU."),
    remedy=_TEXT,
    since=_or_null(_UNIX),
    count=_COUNT,
    ratio=_or_null(_described(_RATIO, "The share of `observed_seconds`.")),
    observed_seconds=_or_null(_described(_POSITIVE, "What is known of the last hour.")),
)
_THROTTLING: Final = _object(
    "Time in the last hour for which the clocks were reduced.",
    reason=_TEXT,
    active=_FLAG,
    since=_or_null(_described(_NUMBER, "Unix seconds; null if the clocks are not reduced now.")),
    seconds=_POSITIVE,
    observed_seconds=_described(_POSITIVE, "What is known of the last hour."),
    ratio=_RATIO,
    estimated=_described(_FLAG, "The driver does not count this time: reasons at each tick were added up."),
)
_XID: Final[dict[str, Schema]] = {
    "xid": _COUNT,
    "meaning": _TEXT,
    "action": _described(_TEXT, "NVIDIA's recommended action (RESET_GPU); empty for an unknown Xid."),
    "advice": _TEXT,
    "instance": _described(_TEXT, "`GI_CI` if the driver names a MIG instance, else empty."),
    "unix": _described(_NUMBER, "Unix seconds of the last of `count` equal Xids in quick succession."),
    "first_unix": _UNIX,
    "count": _COUNT,
    "pid": _or_null(
        _described(_COUNT, "The only process on the device then; null if there was none or several.")
    ),
    "command": _TEXT,
}
_COUNT_OR_NULL: Final = _or_null(_COUNT)
_LINKS: Final = _or_null(_list(_COUNT))
_DEVICE: Final = _object(
    "A GPU or a MIG instance.",
    **_PLACE,
    name=_TEXT,
    profile=_TEXT,
    pci_bus_id=_TEXT,
    up=_FLAG,
    down_reason=_described(
        _TEXT, "What is wrong with a GPU that is not up (`requires a reset`); else empty."
    ),
    holds_processes=_described(_FLAG, "False for a GPU that is partitioned into MIG instances."),
    state=_or_null({"enum": ["active", "held", "idle", "unknown"]}),
    utilization_ratio=_or_null(_RATIO),
    memory_used_bytes=_or_null(_COUNT),
    memory_total_bytes=_or_null(_COUNT),
    memory_shared_with=_described(
        _TEXT, "The compute instance that has the memory of this one's GPU instance; empty for all others."
    ),
    power_watts=_or_null(_POSITIVE),
    power_limit_watts=_or_null(_POSITIVE),
    temperature_celsius=_or_null(_NUMBER),
    processes=_or_null(_COUNT),
    sessions=_or_null(_COUNT),
    energy_joules=_or_null(_described(_JOULES, "Energy of the GPU since the ledger was opened.")),
    energy_of_module=_described(
        _FLAG, "Whether the energy is that of the whole module of a superchip, with its CPU and memory."
    ),
    owners=_list(_ref("DeviceOwner")),
    problems=_described(_list(_ref("Problem")), "The worst first. Empty for a MIG instance: see its GPU."),
    throttling=_list(_ref("Throttling")),
    xids=_described(_list(_ref("DeviceXid")), "The newest five; `/api/v1/xids` has all."),
    ecc=_object(
        "ECC errors over the life of the card, and since the driver was loaded.",
        **dict.fromkeys(
            ("corrected", "uncorrected", "corrected_volatile", "uncorrected_volatile"), _COUNT_OR_NULL
        ),
    ),
    memory_repair=_object(
        "Memory that was taken out of use.",
        remapped_correctable=_COUNT_OR_NULL,
        remapped_uncorrectable=_COUNT_OR_NULL,
        retired_correctable=_COUNT_OR_NULL,
        retired_uncorrectable=_COUNT_OR_NULL,
        pending=_or_null(_described(_FLAG, "A repair takes effect at the next reset.")),
        failed=_or_null(_FLAG),
    ),
    pcie=_object(
        "The PCIe link; the maxima are those of card and slot together, `generation_gpu_max` of the card.",
        **dict.fromkeys(
            ("generation", "generation_max", "generation_gpu_max", "width", "width_max"), _COUNT_OR_NULL
        ),
    ),
    nvlink=_object(
        "NVLinks by number; null if the driver does not report their state.",
        up=_LINKS,
        down=_LINKS,
        **dict.fromkeys(
            (
                "speed_bytes_per_second",
                "crc_flit_errors",
                "crc_data_errors",
                "replay_errors",
                "recovery_errors",
            ),
            _COUNT_OR_NULL,
        ),
    ),
)
_PROCESS: Final = _object(
    "A process on a device; a row with pid null stands for `count` processes beyond the process limit.",
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
    start_exact=_described(_FLAG, "False when the start is the first sighting."),
    unresolved=_described(_TEXT, "Why the owner is not fully known; empty when it is."),
    power_watts=_or_null(
        _described(_POSITIVE, "Energy booked in the last interval, divided by its seconds.")
    ),
    joules=_or_null(_described(_JOULES, "Energy booked to the process since it was first seen.")),
    measured_joules=_or_null(_described(_JOULES, "The measured part, which was not apportioned.")),
)
_SESSION: Final = _object(
    "A process from first to last sighting. Its energy is the booked energy, with model-free bounds.",
    id=_described(_TEXT, "Identifies the session in this ledger."),
    **_PLACE,
    pid=_COUNT,
    command=_TEXT,
    **_OWNER,
    first_seen=_UNIX,
    last_seen=_UNIX,
    ended=_or_null(_UNIX),
    exit_seen=_described(_FLAG, "False while the process runs, and when its exit was not observed."),
    peak_memory_bytes=_or_null(_COUNT),
    sm_mean_ratio=_or_null(_RATIO),
    sm_most_ratio=_or_null(_RATIO),
    held_seconds=_or_null(
        _described(_POSITIVE, "Time on the device without any activity; null if activity is unknown.")
    ),
    joules=_or_null(_JOULES),
    measured_joules=_or_null(_JOULES),
    apportioned_joules=_or_null(_JOULES),
    low_joules=_or_null(_JOULES),
    high_joules=_or_null(_JOULES),
)
_NEXT: Final = _described(_or_null(_TEXT), "`cursor` of the next page; null on the last page.")
_MONEY: Final = dict.fromkeys(("time_cost", "energy_cost", "cost"), _or_null(_POSITIVE))
_DECIMALS: Final = _described(
    {"type": "object", "additionalProperties": {"type": "string", "pattern": r"^(0|[0-9]+\.[0-9]{10})$"}},
    "Costs as text with ten decimals, or 0. Those of rows and own accounts sum to the total's.",
)
_AMOUNT: Final[dict[str, Schema]] = {
    "gpu_seconds": _or_null(
        _described(_POSITIVE, "Billed time: owners of a shared GPU share its seconds, so rows add up.")
    ),
    "gpu_microseconds": _or_null(_described(_COUNT, "The same, exact.")),
    "estimated_microseconds": _described(
        _COUNT, "Billed time that rests on an allocation of which the part of the GPU is unknown."
    ),
    "unpriced_microseconds": _or_null(
        _described(_COUNT, "Billed time without a price; null without prices.")
    ),
    "joules": _or_null(_JOULES),
    "millijoules": _or_null(_described(_COUNT, "The same, exact.")),
    "unpriced_millijoules": _or_null(_COUNT),
    **_MONEY,
    "decimals": _DECIMALS,
    "co2_grams": _or_null(_POSITIVE),
    "unmetered_gpus": _described(
        _COUNT, "GPUs that were not measured for some or all of the time: their energy is not included."
    ),
}
# What the Gpus' own accounts do not have.
_OWNER_AMOUNT: Final[dict[str, Schema]] = {
    "measured_joules": _or_null(_JOULES),
    "apportioned_joules": _or_null(_JOULES),
    "resident_gpu_seconds": _or_null(
        _described(_POSITIVE, "With a process on the GPU. A second counts once per row: rows do not add up.")
    ),
    "held_gpu_seconds": _or_null(
        _described(_POSITIVE, "Had the GPU, and no engine was busy. Rows do not add up.")
    ),
    "allocated_gpu_seconds": _or_null(_described(_POSITIVE, "Had the GPU allocated. Rows do not add up.")),
    "active_gpu_seconds": _or_null(_described(_POSITIVE, "An engine was busy. Rows do not add up.")),
    "unknown_gpu_seconds": _or_null(
        _described(_POSITIVE, "Had the GPU, and activity is not known. Rows do not add up.")
    ),
    "sessions": _or_null(_COUNT),
}
_ROW_NAMES: Final[dict[str, Schema]] = {
    "key": _list(_TEXT),
    "period": _or_null(_described(_TEXT, "Name of the period; null without `every`.")),
}
_COLLECTOR: Final = _object(
    "A collector: a part of the tick.",
    name=_TEXT,
    success=_FLAG,
    seconds=_or_null(_POSITIVE),
    last_success=_or_null(_UNIX),
    error=_TEXT,
    failures=_COUNT,
)
_MAP: Final = _object(
    "An owner index.", name=_TEXT, success=_FLAG, last_success=_or_null(_UNIX), entries=_COUNT, error=_TEXT
)

# The schema of one server-sent event; its data is JSON.
EVENT: Final = {
    "type": "object",
    "description": (
        "tick: {tick, unix, now, healthy, readings}, with the tick as id; session: {opened, closed} since "
        "the previous session event."
    ),
    "properties": {"id": _TEXT, "event": {"enum": ["tick", "session"]}, "data": _TEXT},
    "required": ["event", "data"],
}

SCHEMAS: Final[dict[str, Schema]] = {
    "Status": _STATUS,
    "DeviceOwner": _DEVICE_OWNER,
    "Problem": _PROBLEM,
    "Throttling": _THROTTLING,
    "DeviceXid": _object("An Xid of a device.", **_XID),
    "Device": _DEVICE,
    "Process": _PROCESS,
    "Session": _SESSION,
    "Snapshot": _object(
        "The current state.",
        version=_VERSION,
        gpuledger=_described(_TEXT, "Version of the program."),
        node=_TEXT,
        unix=_UNIX,
        tick=_COUNT,
        source=_SOURCE,
        status=_ref("Status"),
        invalid_values=_described(_COUNT, "Impossible values that were rejected since the start."),
        devices_complete=_described(_FLAG, "False when the list of devices is incomplete."),
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
        "A page of sessions.",
        version=_VERSION,
        since=_UNIX,
        until=_UNIX,
        sessions=_list(_ref("Session")),
        next=_NEXT,
        from_books=_described(_FLAG, "False without a ledger on disk: only running sessions are known."),
    ),
    "Energy": _object(
        "A page of a report.",
        version=_VERSION,
        schema=_described(
            {"const": SCHEMA_VERSION},
            "Changes with the meaning of an amount. Since 2, `gpu_seconds` is billed time.",
        ),
        since=_UNIX,
        until=_described(_NUMBER, "Unix seconds: the last reading, if the range ends after it."),
        by=_TEXT,
        keys=_described(_list(_TEXT), "Names of the elements of each row's key."),
        groupings=_described(
            _list(_object("A value of `by`, and its number of names.", by=_TEXT, names=_COUNT)),
            "By what the owners of this range can be grouped.",
        ),
        basis=_described({"enum": [ALLOCATION, RESIDENCE]}, "Who pays for GPU time."),
        price_list=_or_null(_described(_TEXT, "Fingerprint of the price list; null without prices.")),
        complete=_described(_FLAG, "False when the ledger begins after `since`."),
        periods=_described(
            _list(_object("A period of `every`.", period=_TEXT, since=_UNIX, until=_UNIX)),
            "Empty without `every`.",
        ),
        rows=_list(
            _object(
                "One owner; a key of empty strings is what has no value for the grouping.",
                **_ROW_NAMES,
                **_AMOUNT,
                **_OWNER_AMOUNT,
                low_joules=_or_null(_JOULES),
                high_joules=_or_null(_JOULES),
            )
        ),
        own=_list(
            _object(
                "An account without an owner. Unobserved time is in `not_billed`.",
                account={"enum": ["idle", "unattributed", "unobserved"]},
                **_ROW_NAMES,
                **_AMOUNT,
            )
        ),
        total=_object(
            "The total. Times that do not add up count a shared GPU once per owner; occupied_gpu_seconds "
            "counts it once.",
            **_AMOUNT,
            **_OWNER_AMOUNT,
            occupied_gpu_seconds=_or_null(_POSITIVE),
        ),
        not_billed=_list(
            _object(
                "Time that is not in the total, and what it would have cost: `unobserved` (it could not be "
                "read who had the GPU), `down` (the GPU failed), `unwatched` (gpuledger did not run).",
                account={"enum": ["unobserved", "down", "unwatched"]},
                **_ROW_NAMES,
                gpu_seconds=_POSITIVE,
                gpu_microseconds=_COUNT,
                unpriced_microseconds=_or_null(_COUNT),
                cost=_or_null(_POSITIVE),
                decimals=_DECIMALS,
            )
        ),
        gpus=_list(
            _object(
                "One GPU.",
                uuid=_TEXT,
                gpu=_TEXT,
                name=_TEXT,
                joules=_or_null(_JOULES),
                millijoules=_or_null(_COUNT),
                observed_gpu_seconds=_or_null(_POSITIVE),
                watched_microseconds=_described(_COUNT, "The sum of `microseconds_by_account`."),
                unwatched_microseconds=_described(_COUNT, "Between its first and last reading."),
                microseconds_by_account={"type": "object", "additionalProperties": _COUNT},
            )
        ),
        currency=_TEXT,
        notes=_described(_list(_TEXT), "Notes about the numbers, such as a PUE in the costs."),
        from_books=_FLAG,
        next=_NEXT,
    ),
    "Xids": _object(
        "Xids that the ledger keeps, the newest first.",
        version=_VERSION,
        xids=_list(_object("An Xid of a GPU.", uuid=_TEXT, gpu=_or_null(_TEXT), **_XID)),
    ),
    "Health": _object(
        "Health of the node.",
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
                "The last reload of the settings.",
                success=_FLAG,
                last_success=_UNIX,
                error=_TEXT,
                pending=_list(_TEXT),
            )
        ),
        findings=_list(
            _object(
                "A finding of `gpuledger doctor`.",
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
        "An error.",
        version=_VERSION,
        error=_object(
            "`message` is one line with the remedy, `parameter` the invalid parameter.",
            code=_TEXT,
            message=_TEXT,
            parameter=_or_null(_TEXT),
        ),
    ),
}
