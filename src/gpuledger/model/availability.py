"""Whether a Device can be taken now, and why not."""

from __future__ import annotations

from typing import Final, NamedTuple

from gpuledger.model.devices import Device

# A Device is offered only if it is FREE. DISPLAY: a display server draws on it, and nobody computes there.
FREE: Final = "free"
RESERVED: Final = "reserved"
IN_USE: Final = "in_use"
ALLOCATED: Final = "allocated"
RECENTLY_USED: Final = "recently_used"
DISPLAY: Final = "display"
NEEDS_REPAIR: Final = "needs_repair"
DOWN: Final = "down"
UNUSABLE: Final = "unusable"
UNKNOWN: Final = "unknown"
STATES: Final = (
    FREE,
    RESERVED,
    IN_USE,
    ALLOCATED,
    RECENTLY_USED,
    DISPLAY,
    NEEDS_REPAIR,
    DOWN,
    UNUSABLE,
    UNKNOWN,
)
# Seconds for which nobody must have had a Device, unless the user requests another time.
DEFAULT_WINDOW: Final = 60.0


class Availability(NamedTuple):
    """Whether a Device can be taken.

    `state` is one of STATES; `reason` says in words why it is not FREE, without any owner's name.
    `free_seconds` is for how long nobody has had it, as far as it was watched; None if somebody has it, or if
    that is not known. `memory_free` and `memory_total` are bytes, None if unknown. `reserved_uid` is the user
    who has reserved it, None without a reservation, with `reserved_by` as the user's name; `reserved_until`
    is in unix seconds, None if the reservation ends with a command.
    """

    state: str
    reason: str = ""
    free_seconds: float | None = None
    memory_free: int | None = None
    memory_total: int | None = None
    reserved_uid: int | None = None
    reserved_by: str = ""
    reserved_until: float | None = None


class Candidate(NamedTuple):
    """A Device, and whether it can be taken."""

    device: Device
    availability: Availability


def with_reservation(
    availability: Availability, uid: int, name: str, until: float | None, reason: str
) -> Availability:
    """The availability of a Device that a user has reserved; a user who has it already counts first."""
    marked = availability._replace(reserved_uid=uid, reserved_by=name, reserved_until=until)
    if availability.free_seconds is None:
        return marked
    return marked._replace(state=RESERVED, reason=reason)
