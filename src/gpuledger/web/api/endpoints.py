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
    EXPLAIN_FLAGS,
    IDLE_FLAGS,
    IN,
    LIMIT,
    MINE,
    OF,
    RECEIPT_RANGE,
    REPORT_FLAGS,
    STATE,
    Parameter,
    moment_parameter,
    text_parameter,
)

BASE: Final = "/api/v1/"
ARCHIVE_TYPE: Final = "application/gzip"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An endpoint. `schema` is the name of its response schema in `schemas.SCHEMAS`, empty when the response
    is not JSON but of the type `content`. A `computed` response may take a while or fail with 503; a
    `tagged` one has an ETag. An `own` one has only the rows that its reader may read; others are for readers
    of everything.
    """

    name: str
    summary: str
    about: str
    schema: str = ""
    parameters: tuple[Parameter, ...] = ()
    computed: bool = False
    tagged: bool = False
    content: str = "application/json"
    own: bool = False

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
        own=True,
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
        own=True,
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
        own=True,
    ),
    Endpoint(
        "receipt",
        "What one owner used",
        "The receipt of `gpuledger receipt`: the row of a report, GPU by GPU, with utilization over time and "
        "advice. `/receipt/KIND:NAME` is the same as a page. The range is moved as in `energy`.",
        "Receipt",
        (OF, MINE, *RECEIPT_RANGE),
        computed=True,
        own=True,
    ),
    Endpoint(
        "report",
        "The output of a report",
        "What `gpuledger report --url` prints. The parameters are its flags; prices, teams and the time zone "
        "are those of this node.",
        "Output",
        REPORT_FLAGS,
        computed=True,
        own=True,
    ),
    Endpoint(
        "explain",
        "The output of an explanation",
        "What `gpuledger explain --url` prints. The parameters are its flags, and `of` is KIND:NAME.",
        "Output",
        EXPLAIN_FLAGS,
        computed=True,
        own=True,
    ),
    Endpoint(
        "idle",
        "GPUs that are held without use",
        "What `gpuledger idle --url` prints. The parameters are its flags; prices, teams and the time zone "
        "are those of this node.",
        "Output",
        IDLE_FLAGS,
        computed=True,
        own=True,
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
        content="text/event-stream",
        own=True,
    ),
    Endpoint(
        "books",
        "The ledger's rows of a range",
        "The tables of `gpuledger books export` as CSV, with their manifest, in a tar archive with gzip: for "
        "`gpuledger report --fleet`, which adds up the rows of many nodes. The ends of the range move as in "
        "`energy`.",
        parameters=(
            moment_parameter("since", "Beginning of the range, by default midnight.", "today"),
            moment_parameter("until", "End of the range.", "now"),
        ),
        computed=True,
        content=ARCHIVE_TYPE,
    ),
    Endpoint("openapi.json", "This description", "OpenAPI 3.1.", "Description", own=True),
)
