"""The JSON of whether a device can be taken: in snapshots, and in answers to `gpuledger free`."""

from __future__ import annotations

from gpuledger.model.availability import Availability
from gpuledger.web.api.json_values import JsonObject, finite


def availability_fields(found: Availability | None) -> JsonObject:
    """The keys that describe an availability, without the name of a user; null if it is not judged."""
    seconds = None if found is None else finite(found.free_seconds)
    return {
        "availability": None if found is None else found.state,
        "availability_reason": "" if found is None else found.reason,
        "free_seconds": None if seconds is None else round(seconds, 3),
        "memory_free_bytes": None if found is None else found.memory_free,
        "reserved_until": None if found is None else found.reserved_until,
    }
