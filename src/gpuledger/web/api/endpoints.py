"""The table of endpoints. The OpenAPI description and the validation of requests are built from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gpuledger.web.api.parameters import (
    BASIS,
    BY,
    CURSOR,
    EVENTS,
    EVERY_PERIOD,
    IN,
    LIMIT,
    STATE,
    Parameter,
    moment_parameter,
    text_parameter,
)

BASE: Final = "/api/v1/"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An endpoint. `schema` is the name of its response schema in `schemas.SCHEMAS`, empty when the response
    is not JSON. A `computed` response may take a while or fail with 503; a `tagged` one has an ETag.
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
        """The path of the endpoint."""
        return BASE + self.name


ENDPOINTS: Final = (
    Endpoint(
        "snapshot",
        "The current state",
        "Devices, their owners and processes as of the newest tick; built once per tick.",
        "Snapshot",
        tagged=True,
    ),
    Endpoint(
        "recent",
        "The last hour",
        "Means over steps of `step_seconds`, oldest first, ending at `until`; null for a step without a "
        "value. Fewer points during the first hour after the start.",
        "Recent",
        tagged=True,
    ),
    Endpoint(
        "sessions",
        "Sessions of processes on GPUs",
        "Processes from first to last sighting that overlap the range, ordered by first sighting. Without a "
        "ledger on disk only running processes are known.",
        "Sessions",
        (
            moment_parameter("since", "Beginning of the range.", "24h"),
            moment_parameter("until", "End of the range.", "now"),
            text_parameter("gpu", "Index or UUID of a GPU.", "0"),
            text_parameter("namespace", "Kubernetes namespace; empty: sessions without one.", "ml"),
            text_parameter("pod", "Name of the pod; empty: sessions without one.", "train-0"),
            text_parameter("user", "User; empty: sessions without one, such as those in pods.", "alice"),
            STATE,
            LIMIT,
            CURSOR,
        ),
        computed=True,
    ),
    Endpoint(
        "energy",
        "Energy, time and cost by owner",
        "The rows of `gpuledger report` from the ledger, those with the most energy first. Each end of the "
        "range is moved to the nearest quarter of an hour (older history: full hour), an end after the last "
        "reading to that reading; `since` and `until` are the range used. Time, energy and cost of rows and "
        "own accounts sum to the total, whatever the grouping. Costs are null without prices.",
        "Energy",
        (
            moment_parameter("since", "Beginning of the range, by default midnight.", "today"),
            moment_parameter("until", "End of the range.", "now"),
            IN,
            BY,
            EVERY_PERIOD,
            BASIS,
            LIMIT,
            CURSOR,
        ),
        computed=True,
    ),
    Endpoint(
        "xids",
        "Xids of the GPUs",
        "The last Xids (errors in the kernel log of the driver) with NVIDIA's recommended action, the newest "
        "first, also those before a restart. Equal Xids in quick succession are one row, and the newest rows "
        "of each GPU and Xid are kept.",
        "Xids",
        (text_parameter("gpu", "Index or UUID of a GPU.", "0"),),
    ),
    Endpoint(
        "health",
        "Health of the node",
        "Collectors, owner indexes, reload, and the findings of `gpuledger doctor`, which runs with the "
        "first request and at most every five minutes.",
        "Health",
        computed=True,
    ),
    Endpoint(
        "events",
        "Notifications of new data",
        "Server-sent events: `tick` for each new state (then fetch the snapshot), `session` when sessions "
        "began or ended; a comment after 15 seconds without an event. A slow client skips ticks.",
        parameters=(EVENTS,),
        computed=True,
    ),
    Endpoint("openapi.json", "This description", "OpenAPI 3.1.", "Description"),
)
