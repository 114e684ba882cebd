"""The JSON Schema of receipts."""

from __future__ import annotations

from typing import Final

from gpuledger.ledger.report.receipt.content import ABOUT, AT_MOST, EXACT, RECEIPT_VERSION
from gpuledger.ledger.report.receipt.settings import RULE_NAMES
from gpuledger.model.session import ALLOCATION, RESIDENCE
from gpuledger.web.api.schema_parts import (
    COUNT,
    FLAG,
    POSITIVE,
    RATIO,
    TEXT,
    UNIX,
    Schema,
    described,
    list_of,
    object_schema,
    or_null,
)

_MONEY: Final = or_null(
    described({"type": "string", "pattern": r"^(0|-?[0-9]+\.[0-9]{10})$"}, "Money with ten decimals, or 0.")
)
_AMOUNTS: Final[dict[str, Schema]] = {
    "gpu_microseconds": or_null(described(COUNT, "Billed time, of whole GPUs.")),
    "estimated_microseconds": described(COUNT, "Billed time of which the part of the GPU is unknown."),
    "millijoules": or_null(described(COUNT, "Energy; null if it was not measured.")),
    "measured_millijoules": or_null(described(COUNT, "Lower bound, without a model.")),
    "high_millijoules": or_null(described(COUNT, "Upper bound. Those of instances of one GPU overlap.")),
    "time_cost": _MONEY,
    "energy_cost": _MONEY,
    "cost": _MONEY,
    "unpriced_microseconds": or_null(COUNT),
    "unpriced_millijoules": or_null(COUNT),
    "co2_grams": or_null(POSITIVE),
    "allocated_seconds": or_null(POSITIVE),
    "resident_seconds": or_null(described(POSITIVE, "With a process.")),
    "active_seconds": or_null(described(POSITIVE, "An engine was busy.")),
    "held_seconds": or_null(described(POSITIVE, "Had it, and no engine was busy.")),
    "unknown_seconds": or_null(described(POSITIVE, "Had it, and activity is not known.")),
    "sessions": or_null(COUNT),
}
_BYTES: Final = or_null(COUNT)
_SECONDS_PER_BAR: Final = list_of(COUNT)
_IDLE: Final = or_null(described(COUNT, "Null if some second around it is not known."))
_GPU: Final = object_schema(
    "A GPU or MIG instance. Seconds above are of whole GPUs, those below of the device.",
    **_AMOUNTS,
    node=TEXT,
    uuid=described(TEXT, "UUID of the device: of an instance its own."),
    gpu_uuid=TEXT,
    index=TEXT,
    model=TEXT,
    instance=TEXT,
    profile=TEXT,
    sm_share=described(RATIO, "Part of the GPU."),
    begins=or_null(UNIX),
    ends=or_null(UNIX),
    first_active=or_null(UNIX),
    last_active=or_null(UNIX),
    wait_seconds=described(_IDLE, "Before the first use. Null if some second before it is not known."),
    gap_seconds=described(_IDLE, "Known to be idle, between the first and the last use."),
    tail_seconds=described(_IDLE, "After the last use. Null if some second after it is not known."),
    present_seconds=described(COUNT, "Had the device: allocated, or with a process."),
    begun_before=described(FLAG, "Was there already when the range, or the ledger, begins."),
    unwatched_seconds=described(POSITIVE, "Between `begins` and `ends`, in which nobody looked."),
    usage_complete=described(FLAG, "False if memory and utilization are not known of the first part."),
    memory_bytes=described(_BYTES, "Memory of the device."),
    memory_peak_bytes=described(_BYTES, "Most memory of its processes together."),
    memory_mean_bytes=or_null(POSITIVE),
    sm_seconds=described(POSITIVE, "SM utilization (a ratio) times seconds, of the known seconds."),
    sm_known_seconds=POSITIVE,
    sm_mean=or_null(RATIO),
    sm_peak=or_null(RATIO),
    throttled=described(
        {"type": "object", "additionalProperties": POSITIVE}, "Seconds with reduced clocks by reason."
    ),
    throttle_known_seconds=POSITIVE,
    pcie_rx_bytes=_BYTES,
    pcie_tx_bytes=_BYTES,
    nvlink_rx_bytes=_BYTES,
    nvlink_tx_bytes=_BYTES,
    bars=object_schema(
        "Seconds by bar, and the mean SM utilization.",
        present=_SECONDS_PER_BAR,
        active=_SECONDS_PER_BAR,
        unknown=_SECONDS_PER_BAR,
        utilization=list_of(or_null(RATIO)),
    ),
)
_ADVICE: Final = object_schema(
    "What would have cost less. `evidence` are sentences with the numbers of `values`.",
    rule={"enum": list(RULE_NAMES)},
    text=TEXT,
    evidence=list_of(TEXT),
    gpus=list_of(TEXT),
    values={"type": "object"},
    saving=or_null(
        object_schema(
            "GPU time that need not have been billed, and its cost without energy.",
            gpu_microseconds=COUNT,
            cost=_MONEY,
            kind={"enum": [EXACT, ABOUT, AT_MOST]},
        )
    ),
)
RECEIPT: Final = object_schema(
    "What one owner used, GPU by GPU, with advice. `version` changes with the meaning of a field.",
    version={"const": RECEIPT_VERSION},
    program=TEXT,
    nodes=list_of(TEXT),
    simulated=FLAG,
    made=UNIX,
    who=object_schema(
        "What the receipt is about.",
        kind=TEXT,
        key=list_of(TEXT),
        name=TEXT,
        explain=described(TEXT, "KIND:NAME, for `gpuledger explain` and `of`."),
    ),
    owner=or_null(
        described(
            {"type": "object", "additionalProperties": TEXT}, "Names and facts; null for several owners."
        )
    ),
    since=UNIX,
    until=UNIX,
    ledger_until=described(UNIX, "Until when the ledger has data."),
    begins=or_null(described(UNIX, "First sight in the range.")),
    ends=or_null(described(UNIX, "Last sight in the range.")),
    running=FLAG,
    zone=described(TEXT, "Time zone of the node."),
    basis={"enum": [ALLOCATION, RESIDENCE]},
    currency=TEXT,
    price_list=or_null(TEXT),
    total=object_schema("The row of a report for the same range.", **_AMOUNTS),
    gpus=list_of(_GPU),
    processes=list_of(
        object_schema(
            "A process from its first to its last sight.",
            node=TEXT,
            pid=COUNT,
            command=TEXT,
            device=TEXT,
            gpu=TEXT,
            instance=TEXT,
            begins=UNIX,
            ends=UNIX,
            running=FLAG,
        )
    ),
    processes_omitted=COUNT,
    owners=list_of(object_schema("One of several owners.", **_AMOUNTS, name=TEXT, explain=TEXT, gpus=COUNT)),
    owners_omitted=COUNT,
    hosts=list_of(
        object_schema(
            "CPU and memory of the owner's cgroup on a node.",
            node=TEXT,
            job=TEXT,
            seconds=or_null(POSITIVE),
            cpu_seconds=or_null(POSITIVE),
            cores=or_null(POSITIVE),
            memory_peak_bytes=_BYTES,
            memory_limit_bytes=_BYTES,
            is_limited=described(FLAG, "False if the limit is only the size of the machine."),
        )
    ),
    bars=or_null(object_schema("The time of the bars.", begins=COUNT, step_seconds=COUNT, count=COUNT)),
    advice=list_of(_ADVICE),
    notes=list_of(TEXT),
)
