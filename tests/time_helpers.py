"""A simulated node for tests of the time ledger: what was true at each second, and ticks that look at it."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property

from builders import process, reading
from gpuledger.ledger.time.account import UNCUT, TimeAccount
from gpuledger.ledger.time.span import TimePosting, TimeSpan
from gpuledger.ledger.time.stored import time_fields, time_from_fields
from gpuledger.ledger.time.time_ledger import TimeLedger
from gpuledger.model import quantities as q
from gpuledger.model.devices import Device, Gpu, Instance
from gpuledger.model.process import AccountingRecord, GpuProcess
from gpuledger.model.session import ALLOCATION, BASES
from gpuledger.model.snapshot import Snapshot, SourceInfo
from gpuledger.model.workload import Allocation, Workload

# A full hour of unix time, so that quarters of an hour begin at multiples of 900 seconds.
UNIX = 1_700_002_800.0
FOREVER = 1e9
Period = tuple[float, float]


def pod(name: str, container: str = "main") -> Workload:
    return Workload(kind="pod", namespace="ml", pod=name, container=container, pod_uid=f"uid-{name}")


def job(number: str) -> Workload:
    return Workload(kind="slurm", job=number, user="mira")


def user(name: str) -> Workload:
    return Workload(kind="user", user=name)


@dataclass(frozen=True)
class Runs:
    """A process of an owner, from its start until before its end."""

    owner: Workload
    begins: float = 0.0
    ends: float = FOREVER
    device: Device | None = None
    name: str = "python3"
    types: str = "C"
    sm: float | None = 0.5


@dataclass(frozen=True)
class Has:
    """An Allocation of an owner: of the Gpu, or of an Instance."""

    owner: Workload
    fraction: Fraction | None = None
    begins: float = 0.0
    ends: float = FOREVER
    device: Device | None = None
    resource: str = "nvidia.com/gpu"


@dataclass(frozen=True)
class Truth:
    """What happens to one Gpu, in seconds from the beginning.

    In `unlisted` its process lists cannot be read, in `lost` it is down, in `silent` a source of Allocations
    does not answer, in `stopped` the program does not run, in `paused` it does not read.
    """

    gpu: Gpu
    has: Sequence[Has] = ()
    runs: Sequence[Runs] = ()
    instances: Sequence[Instance] = ()
    unlisted: Sequence[Period] = ()
    lost: Sequence[Period] = ()
    silent: Sequence[Period] = ()
    stopped: Sequence[Period] = ()
    paused: Sequence[Period] = ()
    busy: bool = False

    @cached_property
    def processes(self) -> list[tuple[Runs, GpuProcess]]:
        return [
            (
                one,
                process(
                    one.device or self.gpu,
                    100 + number,
                    name=one.name,
                    types=one.types,
                    sm=one.sm,
                    ticks=number,
                    started=UNIX - 1_700_000_000.0 + one.begins,
                    workload=one.owner,
                ),
            )
            for number, one in enumerate(self.runs)
        ]

    def snapshot(self, at: float, since: float) -> Snapshot:
        """What a tick at a second reads; `since` is the tick before."""
        listed = [made for one, made in self.processes if one.begins <= at < one.ends]
        ended = [
            AccountingRecord(made.pid, began=one.begins, ended=one.ends)
            for one, made in self.processes
            if since < one.ends <= at
        ]
        failed, up = _is_within(self.unlisted, at), not _is_lost(self.lost, at)
        values = {q.UTILIZATION: 0.9 if self.busy else 0.0}
        cut = bool(self.instances)
        whole = reading(
            self.gpu,
            *([] if cut else listed),
            failed=(failed and not cut) or not up,
            up=up,
            values=values,
            mig_enabled=cut,
            accounting=() if cut else tuple(ended),
        )
        parts = [
            reading(part, *[one for one in listed if one.device == part], failed=failed or not up, up=up)
            for part in self.instances
        ]
        allocations = tuple(
            Allocation(one.device or self.gpu, one.owner, "test", one.resource, one.fraction)
            for one in self.has
            if one.begins <= at < one.ends
        )
        return Snapshot(
            UNIX + at,
            at,
            SourceInfo("test"),
            (whole, *parts),
            allocations,
            boot_id="boot",
            allocations_complete=not _is_within(self.silent, at),
        )


def _is_within(periods: Iterable[Period], at: float) -> bool:
    return any(begins < at < ends for begins, ends in periods)


def _is_lost(periods: Iterable[Period], at: float) -> bool:
    return any(begins <= at < ends for begins, ends in periods)


class _RaisingHandler(logging.Handler):
    """Makes a test fail where the program would log an internal error and go on."""

    def emit(self, record: logging.LogRecord) -> None:
        raise AssertionError(record.getMessage()) from (record.exc_info or (None, None))[1]


_RAISING = _RaisingHandler(logging.ERROR)


@dataclass
class Books:
    """The time ledger of a node, and what it posted; `restart` keeps only the stored state."""

    ledger: TimeLedger = field(default_factory=TimeLedger)
    posted: list[TimePosting] = field(default_factory=list)
    spans: dict[int, TimeSpan] = field(default_factory=dict)

    def post(
        self, snapshot: Snapshot, suspended: float | None = None, interval: float | None = None
    ) -> list[TimePosting]:
        log = logging.getLogger("gpuledger.ledger")
        log.addHandler(_RAISING)
        try:
            posted = self.ledger.post(replace(snapshot, suspended=suspended, interval=interval))
        finally:
            log.removeHandler(_RAISING)
        self.posted += posted
        self.spans |= {one.span.number: one.span for one in posted}
        return posted

    def restart(self) -> None:
        number = self.ledger.recorder.next_number
        stored = [(one.gpu, one.posted, json.dumps(time_fields(one))) for one in self.ledger.state()]
        self.ledger = TimeLedger()
        self.ledger.resume(
            [time_from_fields(card, posted, json.loads(text)) for card, posted, text in stored], number
        )

    def accounts(self, basis: str) -> Counter[TimeAccount]:
        """Microseconds by account, from the postings."""
        total: Counter[TimeAccount] = Counter()
        for one in self.posted:
            total.update(one.changes(basis))
        return total

    def seconds(self, basis: str, uuid: str | None = None) -> dict[str, int]:
        """Microseconds by the last name of an owner, or by own account; `idle` with what is uncut."""
        total: Counter[str] = Counter()
        for one in self.posted:
            if uuid in (None, one.gpu.uuid):
                for account, amount in one.changes(basis).items():
                    own = "idle" if account.account == UNCUT else account.account
                    total[account.owner[-1] if account.owner else own] += amount
        return {name: amount for name, amount in total.items() if amount}


def play(truth: Truth, ticks: Iterable[float]) -> Books:
    """Run the program over a truth with ticks at these seconds, and check the law."""
    books, since = Books(), -1.0
    times = list(ticks)
    for at in times:
        if _is_within(truth.stopped, at) or _is_within(truth.paused, at):
            continue
        if any(since <= begins < at for begins, _ in truth.stopped if since >= 0):
            books.restart()
        if any(since <= begins < at for begins, _ in truth.paused if since >= 0):
            books.ledger.interrupt()
        books.post(truth.snapshot(at, since))
        since = at
    assert_time_balances(books)
    return books


def assert_time_balances(books: Books) -> None:
    """Assert that watched = sum of accounts by both bases, in the postings and in each span."""
    ledger = books.ledger
    for basis in BASES:
        by_gpu: Counter[str] = Counter()
        for one in books.posted:
            amounts = one.allocation if basis == ALLOCATION else one.residence
            assert sum(amounts) == one.microseconds
            by_gpu[one.gpu.uuid] += sum(amounts)
        for uuid, watched in ledger.watched.items():
            assert by_gpu[uuid] + ledger.pending.get(uuid, 0) == watched
        for span in books.spans.values():
            assert sum(span.shares(basis).values()) == span.microseconds
            assert list(span.shares(basis).values()) == span.split(basis).shares(span.microseconds)


def in_seconds(text: str) -> Mapping[str, int]:
    """Microseconds by name, of `A 27.272727, idle 32.727273`."""
    return {
        name: round(Fraction(number) * 1_000_000)
        for name, number in (part.split(" ") for part in text.split(", "))
    }
