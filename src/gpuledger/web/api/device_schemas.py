"""The JSON Schemas of a device of a snapshot, with its health."""

from __future__ import annotations

from typing import Final

from gpuledger.model.availability import STATES
from gpuledger.model.devices import VENDORS
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
    Schema,
    described,
    list_of,
    object_schema,
    or_null,
    reference,
)
from gpuledger.web.api.shown_quantities import HEALTH_COUNTS

DEVICE_OWNER: Final = object_schema(
    "A current or recent owner of the device; seconds are counted since the program started.",
    **OWNER_FIELDS,
    present=FLAG,
    processes=or_null(COUNT),
    held_seconds=POSITIVE,
    allocated_seconds=POSITIVE,
)
_LEVEL: Final = {"enum": ["failure", "warning", "info"]}
PROBLEM: Final = object_schema(
    "Something that is wrong with a GPU.",
    kind=described(TEXT, "`down`, `recovery_action`, `pcie_width`, `thermal_throttling`, `xid`, ..."),
    level=described(_LEVEL, "`failure`: act now; `warning`: slower, or will fail; `info`: can stay."),
    label=TEXT,
    summary=described(TEXT, "The end of a sentence about the GPU."),
    remedy=TEXT,
    since=or_null(UNIX),
    count=COUNT,
    ratio=or_null(described(RATIO, "The share of `observed_seconds`.")),
    observed_seconds=or_null(described(POSITIVE, "What is known of the last hour.")),
)
THROTTLING: Final = object_schema(
    "Time in the last hour for which the clocks were reduced.",
    reason=TEXT,
    active=FLAG,
    since=or_null(described(NUMBER, "Unix seconds; null if the clocks are not reduced now.")),
    seconds=POSITIVE,
    observed_seconds=described(POSITIVE, "What is known of the last hour."),
    ratio=RATIO,
    estimated=described(FLAG, "The driver does not count this time: reasons at each tick were added up."),
)
XID: Final[dict[str, Schema]] = {
    "xid": COUNT,
    "meaning": TEXT,
    "action": described(TEXT, "NVIDIA's recommended action (RESET_GPU); empty for an unknown Xid."),
    "advice": TEXT,
    "instance": described(TEXT, "`GI_CI` if the driver names a MIG instance, else empty."),
    "unix": described(NUMBER, "Unix seconds of the last of `count` equal Xids in quick succession."),
    "first_unix": UNIX,
    "count": COUNT,
    "pid": or_null(
        described(COUNT, "The only process on the device then; null if there was none or several.")
    ),
    "command": TEXT,
}
_AVAILABILITY: Final[dict[str, Schema]] = {
    "device_uuid": described(TEXT, "What CUDA_VISIBLE_DEVICES takes: of an instance its own UUID."),
    "availability": or_null(
        described(
            {"enum": list(STATES)},
            "`free` if nobody has had it for a minute; null if that is not judged, and for a GPU with "
            "instances.",
        )
    ),
    "availability_reason": described(TEXT, "Why it is not free, without any owner's name; else empty."),
    "free_seconds": or_null(described(POSITIVE, "For how long nobody has had it, as far as it was watched.")),
    "memory_free_bytes": or_null(COUNT),
    "reserved_by": described(TEXT, "The user with a reservation (`gpuledger free`); else empty."),
    "reserved_until": or_null(
        described(NUMBER, "Unix seconds; null without a reservation, and for one that a command holds.")
    ),
}
_LINKS: Final = or_null(list_of(COUNT))


def _counts(section: str) -> dict[str, Schema]:
    return dict.fromkeys(HEALTH_COUNTS[section], or_null(COUNT))


DEVICE: Final = object_schema(
    "A GPU or a MIG instance.",
    **PLACE,
    name=TEXT,
    vendor={"enum": list(VENDORS)},
    profile=TEXT,
    pci_bus_id=TEXT,
    up=FLAG,
    down_reason=described(TEXT, "What is wrong with a GPU that is not up (`requires a reset`); else empty."),
    holds_processes=described(FLAG, "False for a GPU that is partitioned into MIG instances."),
    state=or_null({"enum": ["active", "held", "idle", "unknown"]}),
    utilization_ratio=or_null(RATIO),
    memory_used_bytes=or_null(COUNT),
    memory_total_bytes=or_null(COUNT),
    memory_shared_with=described(
        TEXT, "The compute instance that has the memory of this one's GPU instance; empty for all others."
    ),
    **_AVAILABILITY,
    power_watts=or_null(POSITIVE),
    power_limit_watts=or_null(POSITIVE),
    temperature_celsius=or_null(NUMBER),
    processes=or_null(COUNT),
    sessions=or_null(COUNT),
    energy_joules=or_null(described(JOULES, "Energy of the GPU since the ledger was opened.")),
    energy_of_module=described(
        FLAG, "Whether the energy is that of the whole module of a superchip, with its CPU and memory."
    ),
    owners=list_of(reference("DeviceOwner")),
    problems=described(
        list_of(reference("Problem")), "The worst first. Empty for a MIG instance: see its GPU."
    ),
    throttling=list_of(reference("Throttling")),
    xids=described(list_of(reference("DeviceXid")), "The newest five; `/api/v1/xids` has all."),
    ecc=object_schema(
        "ECC errors over the life of the card, and since the driver was loaded.",
        **_counts("ecc"),
    ),
    memory_repair=object_schema(
        "Memory that was taken out of use.",
        **_counts("memory_repair"),
        pending=or_null(described(FLAG, "A repair takes effect at the next reset.")),
        failed=or_null(FLAG),
    ),
    pcie=object_schema(
        "The PCIe link; the maxima are those of card and slot together, `generation_gpu_max` of the card.",
        **_counts("pcie"),
    ),
    nvlink=object_schema(
        "NVLinks by number; null if the driver does not report their state.",
        up=_LINKS,
        down=_LINKS,
        **_counts("nvlink"),
    ),
)
