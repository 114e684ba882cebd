"""Reads everything that the ledger holds about one owner or process, for `gpuledger explain`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from gpuledger.ledger.energy.booking import MEASURED
from gpuledger.ledger.report.explain import (
    AllocationLine,
    Explanation,
    Interval,
    LostDetail,
    OtherShare,
    SessionLine,
)
from gpuledger.ledger.report.grouping import Party, kubernetes_job, party_from_text, party_of
from gpuledger.ledger.store.history import History
from gpuledger.ledger.store.presence import session_party
from gpuledger.ledger.store.rows import SESSION_COLUMNS, session_from_row, workload_from_text
from gpuledger.ledger.watched_time import HOUR
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.workload import UNKNOWN

# Maximum length of an interval in seconds: energy can be booked this long after a Session has ended.
_LATE = 60.0
_HOURS = """
SELECT hours.number, uuid, method, hour, idle, unattributed, party, millijoules
    FROM hours JOIN hour_shares USING (number) WHERE hour >= ? AND hour < ?
    AND hours.number IN (SELECT number FROM hour_shares WHERE party IN wanted)
    ORDER BY hour, uuid, life, method, residents
"""


@dataclass(frozen=True, slots=True)
class ExplainTarget:
    """The owner or process to explain. `kind` is pod, pid or job; an empty `namespace` matches any."""

    kind: str
    name: str
    namespace: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace + '/' if self.namespace else ''}{self.name}"

    def matches(self, party: Party) -> bool:
        """Return whether a party belongs to the target. A party has no process id, so a pid matches none."""
        owner = party.owner
        if self.kind == "pid" or self.namespace not in ("", owner.namespace):
            return False
        return self.name in ((owner.pod,) if self.kind == "pod" else (owner.job, kubernetes_job(owner)))

    @property
    def condition(self) -> tuple[str, tuple[object, ...]]:
        """The SQL condition on `sessions`, and its values."""
        within = " AND namespace = ?" if self.namespace else ""
        values = (self.namespace,) if self.namespace else ()
        if self.kind == "pid":
            return "pid = ?", (int(self.name),)
        if self.kind == "pod":
            return "pod = ?" + within, (self.name, *values)
        either = "(job = ? OR controller_kind = 'Job' AND controller = ?)"
        return either + within, (self.name, self.name, *values)


def parse_targets(text: str) -> Sequence[ExplainTarget]:
    """The possible meanings of a text, in lookup order; the prefix `pod:`, `pid:` or `job:` selects one."""
    kind, colon, rest = text.partition(":")
    if not colon or kind not in ("pod", "pid", "job"):
        kinds = ("pid", "job", "pod") if _is_pid(text) else ("pod", "job")
        return [one for kind in kinds for one in parse_targets(f"{kind}:{text}")]
    if kind == "pid":
        return [ExplainTarget("pid", rest)] if _is_pid(rest) else []
    namespace, _, name = rest.rpartition("/")
    return [ExplainTarget(kind, name, namespace)] if name else []


def _is_pid(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 10


def explain_energy(history: History, text: str, since: int, until: int) -> Explanation:
    """Everything known about the named owner or process between two unix hours.

    Raises GpuledgerError if the ledger has nothing of that name, or several kinds match.
    """
    found = [
        (one, _sessions(history, one), _parties(history, one), _allocations(history, one))
        for one in parse_targets(text)
    ]
    found = [one for one in found if any(one[1:])]
    if not found:
        raise GpuledgerError(
            f"'{text}' is not in {history.file}: expected a pod, a process id or a job; "
            "`gpuledger report --by pod` lists them"
        )
    if len(found) > 1:
        forms = " or ".join(f"{target.kind}:{text}" for target, *_ in found)
        raise GpuledgerError(f"'{text}' matches several kinds: use {forms}")
    ((target, sessions, parties, allocations),) = found
    parties_found = [*map(session_party, sessions), *parties.values(), *(party for party, _ in allocations)]
    spaces = {party.owner.namespace for party in parties_found}
    if target.kind != "pid" and len(spaces) > 1:
        forms = " or ".join(f"{target.kind}:{space}/{target.name}" for space in sorted(spaces))
        raise GpuledgerError(f"'{text}' is in several namespaces: use {forms}")
    reader = _IntervalReader(history, {row[0] for row in sessions}, parties)
    hours = (max(since, history.first_hour or since), min(until, history.end_hour))
    intervals = [*reader.folded(*hours), *reader.detailed(*hours)]
    lines = [_line(row, history) for row in sessions]
    lost = LostDetail()
    detail = history.first_detail
    if target.kind == "pid" and (detail is None or since < detail):
        # Up to the last hour: everything without detail is older than everything with detail.
        lost = _lost(lines, list(reader.detailed(0, history.end_hour)))
    begins, ends = since * HOUR, until * HOUR
    shown = [one for one in lines if one.first_seen < ends and one.last_seen + _LATE >= begins]
    held = [one for _, one in allocations if one.begins < ends and one.ends >= begins]
    return Explanation(str(target), intervals, shown, lost, held)


def _lost(sessions: Sequence[SessionLine], intervals: Sequence[Interval]) -> LostDetail:
    measured = sum(one.millijoules for one in intervals if one.method == MEASURED)
    return LostDetail(
        sum(one.measured + one.apportioned for one in sessions) - sum(one.millijoules for one in intervals),
        sum(one.measured for one in sessions) - measured,
        sum(one.high for one in sessions) - sum(one.high for one in intervals),
    )


def _sessions(history: History, target: ExplainTarget) -> list[Sequence[Any]]:
    condition, values = target.condition
    query = f"SELECT * FROM sessions JOIN usage USING (number) WHERE {condition} ORDER BY first_seen"
    return history.connection.execute(query, values).fetchall()


def _parties(history: History, target: ExplainTarget) -> dict[int, Party]:
    if target.kind == "pid":
        return {}
    # The text holds the name as JSON writes it; other matches are filtered below.
    rows = history.connection.execute("SELECT number, who FROM parties WHERE instr(who, ?)", (target.name,))
    every = {number: party_from_text(text) for number, text in rows}
    return {number: party for number, party in every.items() if target.matches(party)}


def _allocations(history: History, target: ExplainTarget) -> list[tuple[Party, AllocationLine]]:
    rows = history.connection.execute("SELECT number, device, owner, begins, ends FROM handovers")
    found = []
    for number, device, owner, begins, ends in rows:
        party = party_of(device, workload_from_text(owner) or UNKNOWN)
        if target.matches(party):
            bits = history.connection.execute("SELECT bits FROM unused WHERE handover = ?", (number,))
            unused = sum(minute.bit_count() for (minute,) in bits)
            gpu, instance = _place(history, device)
            found.append((party, AllocationLine(gpu, instance, begins, ends, unused)))
    return found


def _place(history: History, uuid: str) -> tuple[str, str]:
    """Index and uuid of a Device's Gpu as one text, and `GI_CI` of an Instance."""
    device = history.devices.get(uuid)
    if device is None:
        return uuid, ""
    return f"{device.gpu.index} {device.gpu.uuid}", device.instance


class _IntervalReader:
    """Reads the intervals in which some of these sessions or parties had a share."""

    def __init__(self, history: History, sessions: set[int], parties: dict[int, Party]) -> None:
        self._history = history
        self._sessions = sessions
        self._parties = parties

    def detailed(self, since: int, until: int) -> Iterator[Interval]:
        for uuid, method, begins, ends, idle, unattributed, _, numbers in self._history.spans(since, until):
            if self._sessions.isdisjoint(numbers):
                continue
            shares = [
                (self._history.session(number), number in self._sessions, millijoules)
                for number, millijoules in numbers.items()
            ]
            yield self._interval(uuid, method, (begins, ends), (idle, unattributed), shares)

    def folded(self, since: int, until: int) -> Iterator[Interval]:
        if not self._parties:
            return
        connection = self._history.connection
        connection.execute("CREATE TEMP TABLE IF NOT EXISTS wanted (party INTEGER PRIMARY KEY)")
        connection.execute("DELETE FROM wanted")
        connection.executemany("INSERT OR IGNORE INTO wanted VALUES (?)", [(one,) for one in self._parties])
        found = connection.execute(_HOURS, (since, until))
        for folded, rows in groupby(found, key=lambda row: row[:6]):
            _, uuid, method, hour, idle, unattributed = folded
            shares = [(self._history.party(row[6]), row[6] in self._parties, row[7]) for row in rows]
            times = (float(hour * HOUR), float((hour + 1) * HOUR))
            yield self._interval(uuid, method, times, (idle, unattributed), shares, exact=False)

    def _interval(
        self,
        uuid: str,
        method: str,
        times: tuple[float, float],
        gpu_accounts: tuple[int, int],
        shares: Iterable[tuple[Party, bool, int]],
        *,
        exact: bool = True,
    ) -> Interval:
        own, everything = 0, sum(gpu_accounts)
        others: dict[str, int] = defaultdict(int)
        instances = set()
        for party, is_own, millijoules in shares:
            everything += millijoules
            if is_own:
                own += millijoules
                instances.add(_place(self._history, party.device)[1])
            else:
                others[party_name(party)] += millijoules
        named = tuple(OtherShare(*other) for other in sorted(others.items()))
        place = (_place(self._history, uuid)[0], ", ".join(sorted(instances - {""})))
        return Interval(*times, *place, method, own, everything, *gpu_accounts, named, exact)


def party_name(party: Party) -> str:
    """A short display name: the owner, else the command."""
    owner = party.owner
    if owner.pod:
        return f"{owner.namespace}/{owner.pod}"
    name = owner.job or owner.container or owner.unit or owner.user
    return f"{owner.kind} {name}" if name else party.command or "unknown"


def _line(row: Sequence[Any], history: History) -> SessionLine:
    one = session_from_row(tuple(row), history.devices)
    ended, exit_seen = row[SESSION_COLUMNS + 1 : SESSION_COLUMNS + 3]
    return SessionLine(
        one.process.pid,
        one.process.command,
        *_place(history, one.process.device.uuid),
        one.first_seen,
        one.last_seen,
        ended is not None,
        bool(exit_seen),
        one.held_seconds,
        one.measured,
        one.apportioned,
        one.high,
    )
