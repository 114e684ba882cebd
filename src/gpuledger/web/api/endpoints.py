"""The endpoints: where they are, what they take and what they answer. The description is made of this table,
and so is what is accepted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gpuledger.web.api.parameters import (
    BY,
    CURSOR,
    EVENTS,
    STATE,
    Parameter,
    limit_parameter,
    moment_parameter,
    text_parameter,
)

BASE: Final = "/api/v1/"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """`schema` names what it answers (`schemas.SCHEMAS`), empty for another thing than JSON. `computed` says
    that the answer may take a while, or is refused with 503 when too many want it; `tagged` that it has an
    ETag.
    """

    name: str
    summary: str
    about: str
    schema: str = ""
    parameters: tuple[Parameter, ...] = ()
    computed: bool = False
    tagged: bool = False

    @property
    def path(self) -> str:
        """Where it is."""
        return BASE + self.name


ENDPOINTS: Final = (
    Endpoint(
        "snapshot",
        "What is now",
        "Devices, their owners and processes, as the newest tick has them; made once a tick.",
        "Snapshot",
        tagged=True,
    ),
    Endpoint(
        "recent",
        "The last hour",
        "Means over steps of some seconds, oldest first, ending at `until`; null is a step in which it was "
        "not told. Fewer points while the program is younger.",
        "Recent",
        tagged=True,
    ),
    Endpoint(
        "sessions",
        "Who was on which GPU when",
        "Processes from first to last sight, those that were there at some time of the range, ordered by "
        "first sight. Without books only what runs now is known.",
        "Sessions",
        (
            moment_parameter("since", "Beginning of the range.", "24h"),
            moment_parameter("until", "End of the range.", "now"),
            text_parameter("gpu", "Index or UUID of a GPU.", "0"),
            text_parameter("namespace", "Of this Kubernetes namespace; empty: of none.", "ml"),
            text_parameter("pod", "Of the pod with this name; empty: of none.", "train-0"),
            text_parameter("user", "Of this user; empty: of none, as those in pods.", "alice"),
            STATE,
            limit_parameter(200),
            CURSOR,
        ),
        computed=True,
    ),
    Endpoint(
        "energy",
        "Energy, time and cost by owner",
        "Rows by energy, most first, out of the books between two full hours: `since` is rounded down, "
        "`until` up. Rows and own accounts sum to the total. What is not set has no cost.",
        "Energy",
        (
            moment_parameter("since", "Beginning, local midnight by default.", "today"),
            moment_parameter("until", "End.", "now"),
            BY,
            limit_parameter(200),
            CURSOR,
        ),
        computed=True,
    ),
    Endpoint(
        "health",
        "How the node is",
        "Collectors, maps of owners, reload, and the findings of `gpuledger doctor`, which are made at "
        "the first ask and at most every five minutes.",
        "Health",
        computed=True,
    ),
    Endpoint(
        "events",
        "That something is new",
        "Server-sent events: `tick` once for each new state (fetch the snapshot then), `session` when "
        "sessions began or ended; a comment when nothing is sent for 15 seconds. Who is slow skips ticks.",
        parameters=(EVENTS,),
        computed=True,
    ),
    Endpoint("openapi.json", "This description", "OpenAPI 3.1.", "Description"),
)
