"""The JSON Schemas of the responses. Absent values are null in every response."""

from __future__ import annotations

from typing import Final

from gpuledger.ledger.report.formats import SCHEMA_VERSION
from gpuledger.ledger.report.receipt.content import ReceiptJson
from gpuledger.model.checks import Verdict
from gpuledger.model.session import ALLOCATION, RESIDENCE
from gpuledger.web.api.device_schemas import DEVICE, DEVICE_OWNER, PROBLEM, THROTTLING, XID
from gpuledger.web.api.schema_parts import (
    COUNT,
    FLAG,
    JOULES,
    NUMBER,
    OWNER_FIELDS,
    PLACE,
    POSITIVE,
    RATIO,
    TEXT,
    UNIX,
    VERSION,
    Schema,
    described,
    list_of,
    object_schema,
    or_null,
    reference,
    schema_of,
)

_STATUS: Final = object_schema(
    "Status of the node.",
    text=described(TEXT, "`ok`, or what is wrong and what to do."),
    healthy=FLAG,
    stalled=described(FLAG, "The running tick hangs."),
    readings=described(FLAG, "Whether the driver could be read."),
    paused=FLAG,
    paused_until=or_null(UNIX),
    interval_seconds=POSITIVE,
)
_SOURCE: Final = object_schema(
    "The source of the readings.",
    name=TEXT,
    simulated=described(FLAG, "True when the source is not hardware."),
    detail=TEXT,
    driver_version=TEXT,
    cuda_version=TEXT,
)
_PROCESS: Final = object_schema(
    "A process on a device; a row with pid null stands for `count` processes beyond the process limit.",
    **PLACE,
    pid=or_null(COUNT),
    count=or_null(COUNT),
    command=TEXT,
    types=list_of({"enum": ["M", "C", "G"]}),
    **OWNER_FIELDS,
    memory_bytes=or_null(COUNT),
    sm_ratio=or_null(RATIO),
    memory_bandwidth_ratio=or_null(RATIO),
    start_unix=or_null(UNIX),
    start_exact=described(FLAG, "False when the start is the first sighting."),
    unresolved=described(TEXT, "Why the owner is not fully known; empty when it is."),
    power_watts=or_null(described(POSITIVE, "Energy booked in the last interval, divided by its seconds.")),
    joules=or_null(described(JOULES, "Energy booked to the process since it was first seen.")),
    measured_joules=or_null(described(JOULES, "The measured part, which was not apportioned.")),
)
_SESSION: Final = object_schema(
    "A process from first to last sighting. Its energy is the booked energy, with model-free bounds.",
    id=described(TEXT, "Identifies the session in this ledger."),
    **PLACE,
    pid=COUNT,
    command=TEXT,
    **OWNER_FIELDS,
    first_seen=UNIX,
    last_seen=UNIX,
    ended=or_null(UNIX),
    exit_seen=described(FLAG, "False while the process runs, and when its exit was not observed."),
    peak_memory_bytes=or_null(COUNT),
    memory_mean_bytes=or_null(described(COUNT, "Mean over the time in which memory was reported.")),
    sm_mean_ratio=or_null(RATIO),
    sm_most_ratio=or_null(RATIO),
    held_seconds=or_null(
        described(POSITIVE, "Time on the device without any activity; null if activity is unknown.")
    ),
    active_seconds=or_null(
        described(POSITIVE, "Time in which an engine was certainly busy for it; null if that is unknown.")
    ),
    first_active=or_null(described(UNIX, "When an engine was first seen busy for it.")),
    joules=or_null(JOULES),
    measured_joules=or_null(JOULES),
    apportioned_joules=or_null(JOULES),
    low_joules=or_null(JOULES),
    high_joules=or_null(JOULES),
)
_NEXT: Final = described(or_null(TEXT), "`cursor` of the next page; null on the last page.")
_MONEY: Final = dict.fromkeys(("time_cost", "energy_cost", "cost"), or_null(POSITIVE))
_DECIMALS: Final = described(
    {"type": "object", "additionalProperties": {"type": "string", "pattern": r"^(0|[0-9]+\.[0-9]{10})$"}},
    "Costs as text with ten decimals, or 0. Those of rows and own accounts sum to the total's.",
)
_AMOUNT: Final[dict[str, Schema]] = {
    "gpu_seconds": or_null(
        described(POSITIVE, "Billed time: owners of a shared GPU share its seconds, so rows add up.")
    ),
    "gpu_microseconds": or_null(described(COUNT, "The same, exact.")),
    "estimated_microseconds": described(
        COUNT, "Billed time that rests on an allocation of which the part of the GPU is unknown."
    ),
    "unpriced_microseconds": or_null(described(COUNT, "Billed time without a price; null without prices.")),
    "joules": or_null(JOULES),
    "millijoules": or_null(described(COUNT, "The same, exact.")),
    "unpriced_millijoules": or_null(COUNT),
    **_MONEY,
    "decimals": _DECIMALS,
    "co2_grams": or_null(POSITIVE),
    "unmetered_gpus": described(
        COUNT, "GPUs that were not measured for some or all of the time: their energy is not included."
    ),
}
# What the Gpus' own accounts do not have.
_OWNER_AMOUNT: Final[dict[str, Schema]] = {
    "measured_joules": or_null(JOULES),
    "apportioned_joules": or_null(JOULES),
    "resident_gpu_seconds": or_null(
        described(POSITIVE, "With a process on the GPU. A second counts once per row: rows do not add up.")
    ),
    "held_gpu_seconds": or_null(
        described(POSITIVE, "Had the GPU, and no engine was busy. Rows do not add up.")
    ),
    "allocated_gpu_seconds": or_null(described(POSITIVE, "Had the GPU allocated. Rows do not add up.")),
    "active_gpu_seconds": or_null(described(POSITIVE, "An engine was busy. Rows do not add up.")),
    "unknown_gpu_seconds": or_null(
        described(POSITIVE, "Had the GPU, and activity is not known. Rows do not add up.")
    ),
    "sessions": or_null(COUNT),
}
_ROW_NAMES: Final[dict[str, Schema]] = {
    "key": list_of(TEXT),
    "period": or_null(described(TEXT, "Name of the period; null without `every`.")),
}
_COLLECTOR: Final = object_schema(
    "A collector: a part of the tick.",
    name=TEXT,
    success=FLAG,
    seconds=or_null(POSITIVE),
    last_success=or_null(UNIX),
    error=TEXT,
    failures=COUNT,
)
_MAP: Final = object_schema(
    "An owner index.", name=TEXT, success=FLAG, last_success=or_null(UNIX), entries=COUNT, error=TEXT
)

# The schema of one server-sent event; its data is JSON.
EVENT: Final = {
    "type": "object",
    "description": (
        "tick: {tick, unix, now, healthy, readings}, with the tick as id; session: {opened, closed} since "
        "the previous session event."
    ),
    "properties": {"id": TEXT, "event": {"enum": ["tick", "session"]}, "data": TEXT},
    "required": ["event", "data"],
}

SCHEMAS: Final[dict[str, Schema]] = {
    "Status": _STATUS,
    "DeviceOwner": DEVICE_OWNER,
    "Problem": PROBLEM,
    "Throttling": THROTTLING,
    "DeviceXid": object_schema("An Xid of a device.", **XID),
    "Device": DEVICE,
    "Process": _PROCESS,
    "Session": _SESSION,
    "Snapshot": object_schema(
        "The current state.",
        version=VERSION,
        gpuledger=described(TEXT, "Version of the program."),
        node=TEXT,
        unix=UNIX,
        tick=COUNT,
        source=_SOURCE,
        status=reference("Status"),
        invalid_values=described(COUNT, "Impossible values that were rejected since the start."),
        devices_complete=described(FLAG, "False when the list of devices is incomplete."),
        devices=list_of(reference("Device")),
        processes=list_of(reference("Process")),
    ),
    "Recent": object_schema(
        "The last hour.",
        version=VERSION,
        step_seconds={"type": "integer", "minimum": 1},
        until=UNIX,
        devices=list_of(
            object_schema(
                "One device.",
                uuid=TEXT,
                instance=TEXT,
                utilization_ratio=list_of(or_null(RATIO)),
                power_watts=list_of(or_null(POSITIVE)),
                memory_used_bytes=list_of(or_null(COUNT)),
            )
        ),
    ),
    "Sessions": object_schema(
        "A page of sessions.",
        version=VERSION,
        since=UNIX,
        until=UNIX,
        sessions=list_of(reference("Session")),
        next=_NEXT,
        from_books=described(FLAG, "False without a ledger on disk: only running sessions are known."),
    ),
    "Energy": object_schema(
        "A page of a report.",
        version=VERSION,
        schema=described(
            {"const": SCHEMA_VERSION},
            "Changes with the meaning of an amount. Since 2, `gpu_seconds` is billed time.",
        ),
        since=UNIX,
        until=described(NUMBER, "Unix seconds: the last reading, if the range ends after it."),
        by=TEXT,
        keys=described(list_of(TEXT), "Names of the elements of each row's key."),
        groupings=described(
            list_of(object_schema("A value of `by`, and its number of names.", by=TEXT, names=COUNT)),
            "By what the owners of this range can be grouped.",
        ),
        basis=described({"enum": [ALLOCATION, RESIDENCE]}, "Who pays for GPU time."),
        price_list=or_null(described(TEXT, "Fingerprint of the price list; null without prices.")),
        complete=described(FLAG, "False when the ledger begins after `since`."),
        periods=described(
            list_of(object_schema("A period of `every`.", period=TEXT, since=UNIX, until=UNIX)),
            "Empty without `every`.",
        ),
        rows=list_of(
            object_schema(
                "One owner; a key of empty strings is what has no value for the grouping.",
                **_ROW_NAMES,
                **_AMOUNT,
                **_OWNER_AMOUNT,
                low_joules=or_null(JOULES),
                high_joules=or_null(JOULES),
            )
        ),
        own=list_of(
            object_schema(
                "An account without an owner. Unobserved time is in `not_billed`.",
                account={"enum": ["idle", "unattributed", "unobserved"]},
                **_ROW_NAMES,
                **_AMOUNT,
            )
        ),
        total=object_schema(
            "The total. Times that do not add up count a shared GPU once per owner; occupied_gpu_seconds "
            "counts it once.",
            **_AMOUNT,
            **_OWNER_AMOUNT,
            occupied_gpu_seconds=or_null(POSITIVE),
        ),
        not_billed=list_of(
            object_schema(
                "Time that is not in the total, and what it would have cost: `unobserved` (it could not be "
                "read who had the GPU), `down` (the GPU failed), `unwatched` (gpuledger did not run).",
                account={"enum": ["unobserved", "down", "unwatched"]},
                **_ROW_NAMES,
                gpu_seconds=POSITIVE,
                gpu_microseconds=COUNT,
                unpriced_microseconds=or_null(COUNT),
                cost=or_null(POSITIVE),
                decimals=_DECIMALS,
            )
        ),
        gpus=list_of(
            object_schema(
                "One GPU.",
                uuid=TEXT,
                gpu=TEXT,
                name=TEXT,
                joules=or_null(JOULES),
                millijoules=or_null(COUNT),
                integrated_joules=described(
                    or_null(JOULES),
                    "Those that are power summed over time: no counter was read.",
                ),
                observed_gpu_seconds=or_null(POSITIVE),
                watched_microseconds=described(COUNT, "The sum of `microseconds_by_account`."),
                unwatched_microseconds=described(COUNT, "Between its first and last reading."),
                microseconds_by_account={"type": "object", "additionalProperties": COUNT},
            )
        ),
        currency=TEXT,
        notes=described(list_of(TEXT), "Notes about the numbers, such as a PUE in the costs."),
        from_books=FLAG,
        next=_NEXT,
    ),
    "Receipt": schema_of(ReceiptJson),
    "Output": object_schema(
        "The output of a command.",
        version=VERSION,
        text=described(TEXT, "What it prints."),
        notes=described(list_of(TEXT), "What it prints to stderr."),
        user=described(TEXT, "The user who may read these rows; an administrator may read all."),
    ),
    "Xids": object_schema(
        "Xids that the ledger keeps, the newest first.",
        version=VERSION,
        xids=list_of(object_schema("An Xid of a GPU.", uuid=TEXT, gpu=or_null(TEXT), **XID)),
    ),
    "Health": object_schema(
        "Health of the node.",
        version=VERSION,
        status=reference("Status"),
        started=UNIX,
        ticks=COUNT,
        interval_seconds=POSITIVE,
        asked_interval_seconds=POSITIVE,
        collectors=list_of(_COLLECTOR),
        maps=list_of(_MAP),
        reload=or_null(
            object_schema(
                "The last reload of the settings.",
                success=FLAG,
                last_success=UNIX,
                error=TEXT,
                pending=list_of(TEXT),
            )
        ),
        findings=list_of(
            object_schema(
                "A finding of `gpuledger doctor`.",
                check=TEXT,
                level={"enum": [verdict.value for verdict in Verdict]},
                summary=TEXT,
                remedy=TEXT,
            )
        ),
        findings_unix=or_null(UNIX),
    ),
    "Description": {"type": "object", "required": ["openapi", "info", "paths"]},
    "Error": object_schema(
        "An error.",
        version=VERSION,
        error=object_schema(
            "`message` is one line with the remedy, `parameter` the invalid parameter.",
            code=TEXT,
            message=TEXT,
            parameter=or_null(TEXT),
        ),
    ),
}
