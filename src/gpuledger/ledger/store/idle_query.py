"""Reads who holds Devices without use now, for how long, and prices that as the report does."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import tzinfo
from math import ceil
from typing import TYPE_CHECKING, Final

from gpuledger.host.time_zone import machine_time_zone
from gpuledger.ledger.report.grouping import Grouping, Key, find_grouping
from gpuledger.ledger.report.idle.holds import IdleHold, IdleReport
from gpuledger.ledger.report.idle.stretch import HeldSeconds, IdleStretch
from gpuledger.ledger.report.party import Party, party_of
from gpuledger.ledger.report.ranges import ReportRange
from gpuledger.ledger.report.settings import SPREAD, Prices
from gpuledger.ledger.report.teams import Team, find_team
from gpuledger.ledger.report.usage_report import ReportLine
from gpuledger.ledger.store.report_query import build_report
from gpuledger.ledger.store.rows import workload_from_text
from gpuledger.ledger.time.account import DOWN
from gpuledger.ledger.watched_time import MICRO, QUARTER
from gpuledger.ledger.zone_hours import hour_begins, hour_ends
from gpuledger.model.session import UNOBSERVED
from gpuledger.model.snapshot import LONGEST_INTERVAL
from gpuledger.model.workload import UNKNOWN, Workload

if TYPE_CHECKING:
    from gpuledger.ledger.store.history import History

# Quarters that are read at a time, on the way back: a day.
_CHUNK: Final = 96
# A graphics-only process draws: see the types of GpuProcess.
_GRAPHICS: Final = "G"

_SESSIONS = """
SELECT sessions.number, pid, command, types FROM usage JOIN sessions USING (number)
    WHERE ended IS NULL AND last_seen >= ?
"""
_ALLOCATIONS = "SELECT device, owner FROM handovers WHERE NOT over AND ends >= ?"
_WATCHED = """
SELECT begins, ends, microseconds, split FROM time_spans
    WHERE gpu = ? AND quarter >= ? AND quarter <= ? AND begins < ? AND ends > ?
"""


@dataclass(frozen=True, slots=True)
class IdleScope:
    """What is listed: holds of `least` seconds and more, priced, with teams, in a time zone, of a node.

    `is_infrastructure` returns whether an owner only serves others, such as a placeholder pod.
    """

    prices: Prices
    least: float
    teams: Sequence[Team] = ()
    node: str = ""
    zone: tzinfo | None = None
    is_infrastructure: Callable[[Workload], bool] = lambda _: False


@dataclass(slots=True)
class _Holder:
    """An owner that has a Device now."""

    key: Key
    device: str
    owner: Workload
    pids: set[int] = field(default_factory=set)
    commands: set[str] = field(default_factory=set)


def holding_grouping(history: History) -> Grouping:
    """The grouping by owner and Device: a row of it is what one owner had on one Device."""
    by_owner = find_grouping("owner", history.devices)
    return Grouping(
        "owner,device",
        (*by_owner.columns, "device"),
        lambda party: (*by_owner.key(party), party.device),
        lambda uuid: (*by_owner.own_key(uuid), uuid),
    )


def find_idle_holds(history: History, scope: IdleScope) -> IdleReport:
    """Everything that is held without use at the last posting of the ledger. Raises sqlite3.Error."""
    grouping = holding_grouping(history)
    holders = _holders(history, grouping, scope)
    stretches, unjudged = _stretches(history, grouping, holders)
    found = []
    for key, stretch in stretches.items():
        if stretch.seconds >= max(scope.least, 1) and (device := history.devices.get(holders[key].device)):
            holder = holders[key]
            found.append(
                IdleHold(
                    device,
                    holder.owner,
                    key[:-1],
                    find_team(scope.teams, holder.owner, scope.node),
                    stretch.begins,
                    stretch.seconds,
                    not stretch.is_complete,
                    tuple(sorted(holder.pids)),
                    tuple(sorted(holder.commands)),
                )
            )
    priced = _Pricing(history, grouping, scope).price(found)
    prices = scope.prices
    return IdleReport(
        scope.node,
        history.last,
        sorted(priced, key=_dearest_first),
        unjudged,
        scope.least,
        prices.basis,
        prices.currency,
        prices.any_price,
        "" if history.reader.reads_all else history.reader.name,
        (prices.note,) if prices.note and prices.any_price else (),
    )


def _dearest_first(one: IdleHold) -> tuple[object, ...]:
    return (-(one.cost or 0), -one.seconds, one.key, one.device.gpu.index, one.device.instance)


def _holders(history: History, grouping: Grouping, scope: IdleScope) -> dict[Key, _Holder]:
    """The owners that have a Device at the last posting, by owner and Device; no infrastructure."""
    found: dict[Key, _Holder] = {}
    since = history.last - LONGEST_INTERVAL
    connection = history.connection

    def holder(party: Party) -> _Holder | None:
        if scope.is_infrastructure(party.owner) or not history.is_own(party):
            return None
        key = grouping.key(party)
        return found.setdefault(key, _Holder(key, party.device, party.owner))

    for device, text in connection.execute(_ALLOCATIONS, (since,)).fetchall():
        holder(party_of(device, workload_from_text(text) or UNKNOWN))
    for number, pid, command, types in connection.execute(_SESSIONS, (since,)).fetchall():
        if types == _GRAPHICS:
            continue
        if (one := holder(history.session(number))) is not None:
            one.pids.add(pid)
            one.commands.add(command)
    return found


def _stretches(
    history: History, grouping: Grouping, holders: Mapping[Key, _Holder]
) -> tuple[dict[Key, IdleStretch], int]:
    """The time without use of each of these, and how many of them may use their Device now.

    Reads back only until the last use of all of them is found.
    """
    end = ceil(history.last)
    watched = _WatchedTime(history)
    gpus = {uuid: device.gpu.uuid for uuid, device in history.devices.items()}
    stretches = {
        key: IdleStretch(end, watched.of(gpus.get(one.device, one.device))) for key, one in holders.items()
    }
    until, first = history.end_quarter, history.first_quarter or 0
    unclear: set[Key] = set()
    while until > first and not all(one.is_complete for one in stretches.values()):
        since = max(first, until - _CHUNK)
        cells = _cells(history, grouping, since, until, stretches.keys())
        for quarter in sorted(cells, reverse=True):
            for key, (cell, unknown) in cells[quarter].items():
                stretch = stretches[key]
                if not stretch.seconds and not stretch.is_complete:
                    newest = cell.had & ((1 << max(stretch.begins - quarter * QUARTER, 0)) - 1)
                    if newest and unknown >> (newest.bit_length() - 1) & 1:
                        unclear.add(key)
                stretch.add(quarter * QUARTER, cell)
        until = since
    return stretches, len(unclear)


def _cells(
    history: History, grouping: Grouping, since: int, until: int, wanted: Collection[Key]
) -> dict[int, dict[Key, tuple[HeldSeconds, int]]]:
    """The seconds of these owners by cell, and those of them of which the use is not known.

    As the column `held idle` of reports: a second in which one process of the owner is busy is used.
    """
    sums: dict[int, dict[Key, list[int]]] = defaultdict(lambda: defaultdict(lambda: [0, 0, 0, 0]))
    keys: dict[Party, Key] = {}
    for one in history.times(since, until, lambda: None):
        key = keys.get(one.party)
        if key is None:
            key = keys[one.party] = grouping.key(one.party)
        if key not in wanted:
            continue
        seconds = sums[one.quarter][key]
        seconds[0] |= one.resident | one.allocated
        seconds[1] |= one.held
        seconds[2] |= one.busy
        seconds[3] |= one.unknown | (one.old & ~one.held)
    return {
        quarter: {
            key: (HeldSeconds(had, had & held & ~busy & ~unknown), unknown & ~busy)
            for key, (had, held, busy, unknown) in by_key.items()
        }
        for quarter, by_key in sums.items()
    }


class _WatchedTime:
    """For how many seconds a GPU was watched between two times."""

    def __init__(self, history: History) -> None:
        self._history = history
        found = history.connection.execute("SELECT min(quarter) FROM time_spans").fetchone()[0]
        self._detail = history.last if found is None else found * QUARTER

    def of(self, gpu: str) -> Callable[[int, int], int]:
        """The function for one GPU. All of a folded hour counts: how much of it was watched is not kept."""

        def watched(since: int, until: int) -> int:
            folded = max(0, min(until, self._detail) - since)
            between = (gpu, since // QUARTER, until // QUARTER, until * MICRO, since * MICRO)
            total = 0.0
            for begins, ends, microseconds, split in self._history.connection.execute(_WATCHED, between):
                if self._is_unobserved(split):
                    continue
                inside = min(ends, until * MICRO) - max(begins, since * MICRO)
                total += microseconds * inside / max(ends - begins, 1)
            return int(folded + total / MICRO)

        return watched

    def _is_unobserved(self, split: int) -> bool:
        entries = self._history.time_reader.split(split).residence.entries
        return all(one.account in (UNOBSERVED, DOWN) for one in entries)


class _Pricing:
    """Prices holds by reports of the same time: one for each begin."""

    def __init__(self, history: History, grouping: Grouping, scope: IdleScope) -> None:
        self._history = history
        self._grouping = grouping
        self._scope = scope

    def price(self, holds: Sequence[IdleHold]) -> Iterator[IdleHold]:
        """The holds with the row of the report from the first possible cut after they began."""
        rows: dict[int, Mapping[Key, ReportLine]] = {}
        for one in holds:
            cut = self._cut(one.begins)
            if cut >= self._history.end_quarter or cut * QUARTER >= self._history.last:
                yield one
                continue
            if cut not in rows:
                rows[cut] = self._rows(cut)
            line = rows[cut].get((*one.key, one.device.uuid))
            yield replace(one, priced_from=cut * QUARTER, line=line)

    def _cut(self, begins: int) -> int:
        """The first quarter at or after a time, at which a report can begin."""
        quarter = -(-begins // QUARTER)
        if self._scope.prices.idle == SPREAD:
            zone = machine_time_zone() if self._scope.zone is None else self._scope.zone
            if hour_begins(quarter, zone) != quarter:
                quarter = hour_ends(quarter, zone)
        return self._history.cuts_around(quarter)[1]

    def _rows(self, cut: int) -> Mapping[Key, ReportLine]:
        history, scope = self._history, self._scope
        within = ReportRange(cut, history.end_quarter, history.latest, scope.zone)
        report = build_report(history, self._grouping, scope.prices, within, node=scope.node)
        return {line.key: line for line in report.lines}
