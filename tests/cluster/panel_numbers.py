"""What each panel of energy, time and cost must show, computed from the rows of a report of the ledger."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from cluster.control_plane import Json
from cluster.node import GPUS
from cluster.pods import NAMESPACE
from dashboards import DASHBOARDS, PanelQuery, panel_queries

WATTS = {uuid: 100 + 20 * number for number, uuid in enumerate(GPUS)}
PRICES = {"price.gpu_hour": 2.0, "price.kwh": 0.3, "pue": 1.4}
# A panel's query: dashboard, title and, of a table, heading of the column.
Place = tuple[str, str, str]
# Values of the labels of a row.
Row = tuple[str, ...]


@dataclass(frozen=True)
class Posting:
    """What the ledger has of an owner, or of an account without owner, on a GPU: energy in kWh by method, and
    time in hours.
    """

    uuid: str
    account: str
    namespace: str
    pod: str
    user: str
    energy: Mapping[str, float]
    hours: float
    held: float
    active: float
    time_cost: float

    @property
    def kwh(self) -> float:
        return sum(self.energy.values())

    @property
    def measured(self) -> float:
        return self.energy.get("measured", 0.0)

    @property
    def energy_cost(self) -> float:
        return self.kwh * PRICES["pue"] * PRICES["price.kwh"]


def postings(report: Json) -> list[Posting]:
    """The rows of a report by GPU, namespace, pod and user, with those of time that is not billed."""
    return [
        Posting(
            GPUS[int(row["gpu"])],
            *(row[key] for key in ("account", "namespace", "pod", "user")),
            {name: joules / 3.6e9 for name, joules in row.get("millijoules_by_method", {}).items()},
            row["gpu_microseconds"] / 3.6e9,
            *(row.get(key) or 0.0 for key in ("held_gpu_hours", "active_gpu_hours", "time_cost")),
        )
        for part in ("rows", "own", "not_billed")
        for row in report[part]
        if row["gpu"] and row["account"] != "unwatched"
    ]


def place_of(uid: str, query: PanelQuery) -> Place:
    shown = query.panel
    heading = ""
    if shown["type"] == "table":
        (letter,) = (one["refId"] for one in shown["targets"] if one["expr"] == query.expression)
        heading = shown["transformations"][1]["options"]["renameByName"][f"Value #{letter}"]
    return uid.removeprefix("gpuledger-"), shown["title"], heading


QUERIES = {
    place_of(uid, query): query
    for uid in DASHBOARDS
    for query in panel_queries(uid)
    if re.search("energy|increase|_seconds_total|price|cost", query.expression)
}
# No energy, time or cost of the ledger.
OTHERS = {
    ("usage", "Session duration", ""),
    ("health", "PCIe replays", "In the time range"),
    ("health", "Throttled GPUs by reason", ""),
    ("fleet", "GPUs with an energy imbalance", ""),
}
# Rates of the last seconds, of which a delayed scrape or evaluation is a large part.
GRAPHS = {
    ("energy", "Power draw by account", ""),
    ("energy", "Power draw by namespace", ""),
    ("fleet", "GPUs by state", ""),
    ("usage", "Idle but allocated GPUs by namespace", ""),
}
Value = Callable[[Posting], float]
Rows = dict[Row, float]
Expected = Callable[[Sequence[Posting]], Rows]


def by(*labels: str, of: Value, owned: bool = False) -> Expected:
    """Sums of a value; labels are attributes of a posting. `owned`: only of owners."""

    def rows(postings: Sequence[Posting]) -> Rows:
        sums: Rows = defaultdict(float)
        for one in postings:
            if one.account == "process" or not owned:
                sums[tuple(getattr(one, label) for label in labels)] += of(one)
        return sums

    return rows


def kwh(one: Posting) -> float:
    return one.kwh


def only(account: str, of: Value) -> Value:
    return lambda one: of(one) if one.account == account else 0.0


def ratio(part: Expected, whole: Expected) -> Expected:
    return lambda postings: {(): part(postings)[()] / whole(postings)[()]}


def upper_bound(*labels: str) -> Expected:
    """Measured energy, and all other energy of the same GPUs while they were not idle."""

    def rows(postings: Sequence[Posting]) -> Rows:
        used = [one for one in postings if one.account != "idle"]
        unmeasured = by("uuid", of=lambda one: one.kwh - one.measured)(used)
        found = by(*labels, of=lambda one: one.measured, owned=True)(postings)
        groups = {
            (tuple(getattr(one, label) for label in labels), one.uuid)
            for one in postings
            if one.account == "process" and one.kwh
        }
        for group, uuid in groups:
            found[group] += unmeasured[uuid,]
        return found

    return rows


def by_method(postings: Sequence[Posting]) -> Rows:
    sums: Rows = defaultdict(float)
    for one in postings:
        for method, energy in one.energy.items():
            if one.account == "process":
                sums[method,] += energy
    return sums


def hours_by_account(postings: Sequence[Posting]) -> Rows:
    """Owners are one account of time, and another one of energy. What is pending at the last scrape becomes
    unobserved.
    """
    sums = by("account", of=lambda one: one.hours if one.account != "unobserved" else 0.0)(postings)
    return {(account.replace("process", "owner"),): hours for (account,), hours in sums.items()}


def hours_by_state(postings: Sequence[Posting]) -> Rows:
    def total(value: Value) -> float:
        return by(of=value)(postings)[()]

    return {
        ("active",): total(lambda one: one.active),
        ("held",): total(lambda one: one.held),
        ("idle",): total(only("idle", lambda one: one.hours)),
    }


def energy_columns(title: str, *labels: str) -> dict[Place, tuple[Row, Expected]]:
    columns = {
        "Energy": by(*labels, of=kwh, owned=True),
        "Measured": by(*labels, of=lambda one: one.measured, owned=True),
        "Apportioned": by(*labels, of=lambda one: one.kwh - one.measured, owned=True),
        "Upper bound": upper_bound(*labels),
    }
    return {("energy", title, heading): (labels, rows) for heading, rows in columns.items()}


def bill(title: str, *labels: str) -> dict[Place, tuple[Row, Expected]]:
    columns = {
        "GPU-hours": by(*labels, of=lambda one: one.hours, owned=True),
        "Held idle": by(*labels, of=lambda one: one.held, owned=True),
        "Cost": by(*labels, of=lambda one: one.energy_cost + one.time_cost, owned=True),
    }
    both = {("energy", title, heading): (labels, rows) for heading, rows in columns.items()}
    return energy_columns(title, *labels) | both


def watts_by_account(postings: Sequence[Posting]) -> Rows:
    """At the end only `train` works."""
    (uuid,) = {one.uuid for one in postings if one.pod == "train"}
    return {("process",): WATTS[uuid], ("idle",): sum(WATTS.values()) - WATTS[uuid]}


def at_the_end(**rows: float) -> Expected:
    return lambda postings: {(name,): value for name, value in rows.items()}


def of_node(postings: Sequence[Posting]) -> Rows:
    return {("node-1",): ALL_KWH(postings)[()]}


def held_by_remaining(postings: Sequence[Posting]) -> Rows:
    return {row: held for row, held in HELD(postings).items() if "build" not in row}


def no_owner(one: Posting) -> float:
    return one.kwh if one.account in ("unattributed", "unobserved") else 0.0


OWNED_KWH, ALL_KWH = by(of=kwh, owned=True), by(of=kwh)
HELD = by("namespace", "pod", of=lambda one: one.held, owned=True)
JOULES = by("uuid", of=lambda one: 3.6e6 * one.kwh)
# For each query, the labels of its rows and their values in the ledger.
TABLE: dict[Place, tuple[Row, Expected]] = {
    ("energy", "GPU energy", ""): ((), ALL_KWH),
    ("energy", "Energy cost at $price_kwh per kWh, PUE $pue", ""): ((), by(of=lambda one: one.energy_cost)),
    ("energy", "Energy of owners", ""): ((), OWNED_KWH),
    ("energy", "Measured energy", ""): ((), ratio(by(of=lambda one: one.measured, owned=True), OWNED_KWH)),
    ("energy", "Idle energy", ""): ((), ratio(by(of=only("idle", kwh)), ALL_KWH)),
    ("energy", "Unattributed energy", ""): ((), ratio(by(of=no_owner), ALL_KWH)),
    ("energy", "GPU-hours of owners", ""): ((), by(of=lambda one: one.hours, owned=True)),
    ("energy", "Held idle GPU-hours", ""): ((), by(of=lambda one: one.held)),
    ("energy", "Idle GPU-hours", ""): ((), by(of=only("idle", lambda one: one.hours))),
    ("energy", "Cost of GPU time", ""): ((), by(of=lambda one: one.time_cost)),
    ("energy", "Cost of idle GPU time", ""): ((), by(of=only("idle", lambda one: one.time_cost))),
    ("energy", "GPU-hours by account", ""): (("account",), hours_by_account),
    ("energy", "Energy by account", ""): (("account",), by("account", of=kwh)),
    ("energy", "Energy by method", ""): (("method",), by_method),
    ("energy", "Power draw by account", ""): (("account",), watts_by_account),
    ("energy", "Power draw by namespace", ""): (
        ("namespace",),
        lambda postings: {(NAMESPACE,): watts_by_account(postings)["process",]},
    ),
    **bill("Energy by namespace", "namespace"),
    **bill("Energy by pod or job", "namespace", "pod"),
    **energy_columns("Energy by user", "user"),
    ("energy", "Energy by user", "Cost"): (("user",), by("user", of=lambda one: one.energy_cost, owned=True)),
    ("energy", "Energy without owner by GPU", "Idle"): (("uuid",), by("uuid", of=only("idle", kwh))),
    ("energy", "Energy without owner by GPU", "Unattributed"): (("uuid",), by("uuid", of=no_owner)),
    ("energy", "Ledger balance by GPU", "Counter"): (("uuid",), JOULES),
    ("energy", "Ledger balance by GPU", "Accounts"): (("uuid",), JOULES),
    ("energy", "Ledger balance by GPU", "Pending"): (("uuid",), at_the_end()),
    ("energy", "Ledger balance by GPU", "Closed"): (("uuid",), at_the_end()),
    ("energy", "Ledger balance by GPU", "Imbalance"): (("uuid",), at_the_end()),
    ("fleet", "GPUs, power and energy by node", "Energy"): (("node",), of_node),
    ("fleet", "GPU-hours by state", ""): (("state",), hours_by_state),
    ("fleet", "GPUs by state", ""): (("state",), at_the_end(active=1.0, held=1.0, idle=6.0)),
    ("usage", "Idle but allocated GPUs by namespace", ""): (("namespace",), at_the_end(**{NAMESPACE: 1.0})),
    ("usage", "GPU-hours by namespace", ""): (
        ("namespace",),
        by("namespace", of=lambda one: one.hours, owned=True),
    ),
    ("usage", "Idle GPU-hours by owner", ""): (("namespace", "pod"), HELD),
    ("usage", "Owners by GPU", "Idle but allocated, last hour"): (("namespace", "pod"), held_by_remaining),
}
