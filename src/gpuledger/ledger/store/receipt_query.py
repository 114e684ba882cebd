"""Reads a receipt from the ledger: all that it holds about one job, pod, user or process in a range.

The amounts are those of the report's row, built by the same code; the seconds are those of which the report
counts the hours.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from gpuledger import __version__
from gpuledger.host.time_zone import machine_time_zone, time_zone_name
from gpuledger.ledger.energy.shares import device_share
from gpuledger.ledger.owners import user_of
from gpuledger.ledger.report.formats import rounded_row
from gpuledger.ledger.report.gpu_time import NONE_RUNNING
from gpuledger.ledger.report.grouping import Grouping, Key, find_grouping
from gpuledger.ledger.report.moments import format_local_time
from gpuledger.ledger.report.party import Party
from gpuledger.ledger.report.ranges import ReportRange
from gpuledger.ledger.report.receipt.advice import advise
from gpuledger.ledger.report.receipt.amounts import row_amounts, split_amounts
from gpuledger.ledger.report.receipt.content import (
    RECEIPT_VERSION,
    Amounts,
    BarScale,
    DeviceUsage,
    ReceiptGpu,
    ReceiptJson,
    ReceiptOwner,
    ReceiptProcess,
    owner_text,
)
from gpuledger.ledger.report.receipt.settings import AdviceSettings
from gpuledger.ledger.report.receipt.timeline import DeviceTimeline, ReceiptTimeline, choose_bars, empty_bars
from gpuledger.ledger.report.settings import SPREAD, Prices
from gpuledger.ledger.report.teams import Team
from gpuledger.ledger.report.usage_report import ReportLine, UsageReport, row_notes
from gpuledger.ledger.store.explain_query import process_grouping, store_found_numbers
from gpuledger.ledger.store.explain_target import (
    ACCOUNT,
    PID,
    ExplainTarget,
    ExplainTargetFinder,
    OwnerNotFound,
)
from gpuledger.ledger.store.history import History
from gpuledger.ledger.store.receipt_usage import (
    WatchedEvidence,
    device_usage,
    fitted_utilization,
    host_rows,
    memory_sizes,
    process_usage,
    usage_rows,
)
from gpuledger.ledger.store.report_query import build_reports
from gpuledger.ledger.store.rows import SESSION_COLUMNS, session_from_row
from gpuledger.ledger.watched_time import HOUR, QUARTER
from gpuledger.model.devices import Instance
from gpuledger.model.errors import UsageError
from gpuledger.model.workload import FACTS, Workload

# Owners and processes that a receipt lists, those with the most.
_MOST_OWNERS: Final = 12
_MOST_PROCESSES: Final = 12
# The key of the parties that are not of the receipt.
_OTHERS: Final[Key] = ("",)
_OWNER_NAMES: Final = ("kind", "namespace", "pod", "container", "unit", "user", "job")


@dataclass(frozen=True, slots=True)
class ReceiptScope:
    """What a receipt is read with: range, prices, teams, node, thresholds of advice, and the time now.

    `simulated`: the ledger's data are not of hardware.
    """

    within: ReportRange
    prices: Prices = field(default_factory=Prices)
    teams: Sequence[Team] = ()
    node: str = ""
    advice: AdviceSettings = field(default_factory=AdviceSettings)
    now: float = 0.0
    simulated: bool = False


def read_receipt(history: History, text: str, scope: ReceiptScope) -> ReceiptJson:
    """The receipt of KIND:NAME, a name, or the number of a job or process.

    Raises OwnerNotFound if the ledger has nothing of that name in the range, GpuledgerError if several rows
    match, and UsageError for the GPUs' own accounts, which belong to no owner.
    """
    return _ReceiptReader(history, text, scope).receipt()


def with_kind(history: History, text: str) -> str:
    """The name with the kind of a number: a job if the ledger has batch jobs, else a process id."""
    if not (text.isascii() and text.isdecimal()):
        return text
    for query in (
        "SELECT 1 FROM sessions WHERE job <> '' LIMIT 1",
        "SELECT 1 FROM handovers WHERE json_extract(owner, '$.job') <> '' LIMIT 1",
        "SELECT 1 FROM time_owners WHERE json_extract(owner, '$.job') <> '' LIMIT 1",
    ):
        if history.connection.execute(query).fetchone():
            return f"job:{text}"
    return f"pid:{text}"


class _ReceiptReader:
    """Reads one receipt."""

    def __init__(self, history: History, text: str, scope: ReceiptScope) -> None:
        self._scope = scope

        def grouping_of(kind: str) -> Grouping:
            return find_grouping(kind, history.devices, teams=scope.teams, node_of=lambda _: scope.node)

        named = with_kind(history, text)
        self._target, found = ExplainTargetFinder(
            history, named, grouping_of, has_teams=bool(scope.teams)
        ).find()
        if self._target.kind == ACCOUNT:
            raise UsageError(
                f"{self._target} is an account of the GPUs, not an owner: use `gpuledger explain {text}`"
            )
        is_process = self._target.kind == PID
        self._history = history.with_process(found.sessions) if is_process else history
        self._grouping = process_grouping(self._target) if is_process else grouping_of(self._target.kind)
        self._owner_key = grouping_of("owner").key
        self._owners: dict[Key, Workload] = {}
        self._sizes = memory_sizes(history)
        self._usage: dict[str, DeviceUsage] = {}
        store_found_numbers(history, found)

    def receipt(self) -> ReceiptJson:
        """The receipt."""
        scope, target = self._scope, self._target
        report, by_device, by_owner = self._reports()
        row = next((line for line in report.lines if line.key == target.key), None)
        if row is None:
            raise self._not_in_range()
        begins, ends = report.periods[0].begins, report.periods[-1].ends
        total = row_amounts(row, rounded_row(report, row))
        timeline = self._timeline(begins, ends)
        self._read_usage(begins, ends, timeline)
        gpus = self._gpus(_own_lines(by_device), total, timeline, WatchedEvidence(self._history, report))
        first = min((gpu["begins"] for gpu in gpus if gpu["begins"] is not None), default=None)
        last = max((gpu["ends"] for gpu in gpus if gpu["ends"] is not None), default=None)
        processes, omitted = self._processes(begins * QUARTER, ends * QUARTER)
        owners = self._owner_rows(_own_lines(by_owner), total, timeline) if len(self._owners) > 1 else []
        # Idle time that is spread is of GPUs that the row did not use.
        is_spread = report.prices.idle == SPREAD
        unpriced = {gpu["model"] for gpu in gpus if gpu["unpriced_microseconds"] and not is_spread}
        receipt = ReceiptJson(
            version=RECEIPT_VERSION,
            program=__version__,
            nodes=[scope.node],
            simulated=scope.simulated,
            made=scope.now,
            who={
                "kind": target.kind,
                "key": list(target.key),
                "name": str(target),
                "explain": _short_name(target),
            },
            owner=_owner_fields(next(iter(self._owners.values()))) if len(self._owners) == 1 else None,
            since=max(report.period.since, report.period.first),
            until=min(float(report.period.until), report.period.last),
            ledger_until=report.period.last,
            begins=first,
            ends=last,
            running=self._is_running(report),
            zone=time_zone_name(scope.within.zone or machine_time_zone()),
            basis=report.basis,
            currency=report.prices.currency,
            price_list=report.fingerprint if report.prices.any_price else None,
            total=total,
            gpus=gpus,
            processes=processes,
            processes_omitted=omitted,
            owners=owners[:_MOST_OWNERS],
            owners_omitted=max(len(owners) - _MOST_OWNERS, 0),
            hosts=host_rows(self._history, scope.node, begins, ends, self._is_own),
            bars=timeline.scale,
            advice=[],
            notes=row_notes(report, row, unpriced),
        )
        receipt["advice"] = advise(receipt, scope.advice)
        return receipt

    def _reports(self) -> list[UsageReport]:
        """The report with the target's row, and those of its parts by device and by owner.

        The ledger is read once: that takes longer than summing.
        """
        scope = self._scope
        groupings = (
            self._grouping,
            self._parts_grouping("device", lambda party: (party.device,)),
            self._parts_grouping("owner", lambda party: (self._owner_name(party),)),
        )
        return build_reports(self._history, groupings, scope.prices, scope.within, node=scope.node)

    def _is_own(self, party: Party) -> bool:
        return self._grouping.key(party) == self._target.key

    def _not_in_range(self) -> OwnerNotFound:
        within, history = self._scope.within, self._history
        times = (within.since, min(within.until, history.last))
        between = " to ".join(format_local_time(unix, within.zone) for unix in times)
        return OwnerNotFound(
            f"{self._target} is in the ledger, but has no GPU time and no energy from {between}: set "
            "another range with --since or --in"
        )

    def _parts_grouping(self, name: str, key: Callable[[Party], Key]) -> Grouping:
        """The parts of the target's row by another key, and one row of all others. Remembers the owners."""

        def part_key(party: Party) -> Key:
            if not self._is_own(party):
                return _OTHERS
            self._owners.setdefault(self._owner_key(party), party.owner)
            return key(party)

        return Grouping(name, (name,), part_key, lambda _: _OTHERS)

    def _owner_rows(
        self, lines: Sequence[ReportLine], total: Amounts, timeline: ReceiptTimeline
    ) -> list[ReceiptOwner]:
        """The rows of several owners, the most expensive first."""
        rows = []
        for line, amounts in zip(lines, split_amounts(lines, total), strict=True):
            key: Key = tuple(json.loads(line.key[0]))
            rows.append(
                ReceiptOwner(
                    **amounts,
                    name=owner_text(_owner_fields(self._owners[key])),
                    explain=_short_name(ExplainTarget("owner", key)),
                    gpus=sum(line.key[0] in one.owners for one in timeline.devices.values()),
                )
            )
        return sorted(rows, key=_by_cost)

    def _owner_name(self, party: Party) -> str:
        return json.dumps(self._owner_key(party))

    def _gpus(
        self, lines: Sequence[ReportLine], total: Amounts, timeline: ReceiptTimeline, watched: WatchedEvidence
    ) -> list[ReceiptGpu]:
        amounts = {line.key[0]: one for line, one in zip(lines, split_amounts(lines, total), strict=True)}
        found = [self._gpu(uuid, one, timeline, watched) for uuid, one in amounts.items()]
        return sorted(found, key=lambda gpu: (int(gpu["index"] or -1), gpu["instance"], gpu["uuid"]))

    def _gpu(
        self, uuid: str, amounts: Amounts, timeline: ReceiptTimeline, watched: WatchedEvidence
    ) -> ReceiptGpu:
        device = self._history.devices.get(uuid)
        usage = self._usage.get(uuid) or device_usage(None, self._sizes.get(uuid))
        line = timeline.devices.get(uuid) or DeviceTimeline(empty_bars(timeline.scale))
        gpu = uuid if device is None else device.gpu.uuid
        begun_before = watched.is_begun_before(gpu, line)
        return ReceiptGpu(
            **amounts,
            node=self._scope.node,
            uuid=uuid,
            gpu_uuid=gpu,
            index="" if device is None else str(device.gpu.index),
            model="" if device is None else device.gpu.name,
            instance="" if device is None else device.instance,
            profile=device.profile if isinstance(device, Instance) else "",
            sm_share=1.0 if device is None else round(float(device_share(device)), 6),
            begins=line.begins,
            ends=line.ends,
            first_active=line.first_active,
            last_active=line.last_active,
            # What was before the begin, or is after the end, would belong to these.
            wait_seconds=None if begun_before else line.wait,
            gap_seconds=line.gap,
            tail_seconds=None if watched.may_go_on(line) else line.tail,
            present_seconds=line.present,
            begun_before=begun_before,
            unwatched_seconds=watched.unwatched_seconds(gpu, line),
            usage_complete=watched.is_usage_complete(line),
            **usage,
            bars=line.bars,
        )

    def _timeline(self, since: int, until: int) -> ReceiptTimeline:
        """The seconds of the target in these quarters."""
        timeline = ReceiptTimeline(self._bar_scale(since, until))
        for entry in self._history.times(since, until, timeline.settle):
            party = entry.party
            if not party.command and entry.allocated and not entry.resident:
                # As the report's rows are named.
                party = replace(party, command=NONE_RUNNING)
            if self._is_own(party):
                timeline.add(entry, self._owner_name(party))
        timeline.settle()
        return timeline

    def _bar_scale(self, since: int, until: int) -> BarScale:
        """Bars from the first to the last sight in these quarters."""
        begins, ends = float(since * QUARTER), min(float(until * QUARTER), self._history.latest)
        within = {"since": begins, "until": until * QUARTER, "quarter": QUARTER, "hour": HOUR}
        first, last = self._history.connection.execute(_SIGHTS, within).fetchone()
        if first is None:
            return choose_bars(begins, ends)
        return choose_bars(max(first, begins), max(min(last, ends), begins))

    def _processes(self, since: float, until: float) -> tuple[list[ReceiptProcess], int]:
        """The processes with the most energy, in order of time, and the number of the others."""
        history = self._history
        within = {"since": since, "until": until, "limit": _MOST_PROCESSES}
        ((count,),) = history.connection.execute(f"SELECT count(*) {_OWN_SESSIONS}", within)
        found = []
        for row in history.connection.execute(f"SELECT * {_OWN_SESSIONS} {_LARGEST}", within):
            one = session_from_row(tuple(row), history.devices)
            device = one.process.device
            found.append(
                ReceiptProcess(
                    node=self._scope.node,
                    pid=one.process.pid,
                    command=one.process.command,
                    device=device.uuid,
                    gpu=str(device.gpu.index),
                    instance=device.instance,
                    begins=one.first_seen,
                    ends=one.last_seen,
                    running=row[SESSION_COLUMNS + 1] is None,
                )
            )
        found.sort(key=lambda one: (one["begins"], one["pid"], one["device"]))
        return found, count - len(found)

    def _is_running(self, report: UsageReport) -> bool:
        """Whether a process or an allocation of the target is not over at the end of the ledger and range."""
        if report.period.until < report.period.last:
            return False
        connection = self._history.connection
        for query in (
            "SELECT 1 FROM usage WHERE number IN own_sessions AND ended IS NULL LIMIT 1",
            "SELECT 1 FROM handovers WHERE number IN own_allocations AND NOT over LIMIT 1",
        ):
            if connection.execute(query).fetchone():
                return True
        return False

    def _read_usage(self, since: int, until: int, timeline: ReceiptTimeline) -> None:
        """Read the usage of each device, and add the utilization to the bars."""
        if self._target.kind == PID:
            # The ledger has usage by owner, not by process.
            self._usage = process_usage(self._history, since, self._sizes)
            return
        rows = usage_rows(self._history, since, until, self._is_own)
        self._usage = {uuid: device_usage(row, self._sizes.get(uuid)) for uuid, row in rows.items()}
        for uuid, line in timeline.devices.items():
            if uuid in rows:
                fitted = fitted_utilization(rows[uuid].bars, timeline.scale)
                present = line.bars["present"]
                line.bars["utilization"] = [
                    one if there else None for one, there in zip(fitted, present, strict=True)
                ]


def _own_lines(report: UsageReport) -> list[ReportLine]:
    return [line for line in report.lines if line.key != _OTHERS]


def _short_name(target: ExplainTarget) -> str:
    """KIND:NAME without empty parts of the name: `job:4711`, `owner:slurm/4711`."""
    return target.prefixed(next(iter(target.names), ""))


def _by_cost(row: ReceiptOwner) -> tuple[float, int, str]:
    return (-float(row["cost"] or 0), -(row["gpu_microseconds"] or 0), row["name"])


_OWN_SESSIONS: Final = """
FROM sessions JOIN usage USING (number)
    WHERE number IN own_sessions AND begun < :until AND latest >= :since
"""
_LARGEST: Final = "ORDER BY measured + apportioned DESC, last_seen - first_seen DESC, number LIMIT :limit"
# Of folded hours the first and the last second are not known here.
_SIGHTS: Final = """
SELECT min(begins), max(ends) FROM (
    SELECT begun AS begins, latest AS ends FROM usage WHERE number IN own_sessions
    UNION ALL SELECT begins, ends FROM handovers WHERE number IN own_allocations
    UNION ALL SELECT quarter * :quarter, quarter * :quarter + :hour FROM hour_times WHERE party IN own_parties
) WHERE begins < :until AND ends >= :since
"""


def _owner_fields(owner: Workload) -> dict[str, str]:
    """The names of an owner and what else is known of it."""
    found = {name: str(getattr(owner, name)) for name in (*_OWNER_NAMES, *FACTS)}
    found["user"] = user_of(owner)
    return found
