"""The table of all fields: what a page in nvidia-smi's own vocabulary is made of."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from gpuledger.model.errors import unknown
from gpuledger.model.quantities import COLUMNS
from gpuledger.model.source import Clock
from gpuledger.sources.findings import Findings
from gpuledger.sources.smi.answer import Answer, Cells, decoded, told
from gpuledger.sources.smi.command import Command, NotStarted, Outcome, Ran, meaning, reason
from gpuledger.sources.smi.csv import parse_query_gpu, refused_field
from gpuledger.sources.smi.fields import AUTO, IDENTITY, USUAL, offered, without
from gpuledger.sources.smi.machine import bus_of, uuid_of
from gpuledger.sources.smi.settings import SmiSettings

log = logging.getLogger("gpuledger.smi")

# What a search times next: none of the fields, all of them, parts of them.
_DONE, _BARE, _ALL, _PARTS = range(4)


class SlowFields:
    """Fields that take longer than `limit` seconds, of those that were timed; a limit of 0 times nothing.

    `known` are those found, by the seconds they took.
    """

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self.known: dict[str, float] = {}
        # What the command takes without them, and with all but the slow ones, when they were last timed.
        self._bare = 0.0
        self._usual = 0.0
        self._stage = _DONE
        self._suspects: list[tuple[str, ...]] = []

    def suspect(self, fields: Iterable[str], seconds: float) -> None:
        """Note that a query of these fields took so long; a search begins where that is too long, beside what
        it usually takes.
        """
        if self._limit and seconds - self._usual > self._limit and self._stage == _DONE:
            self._stage = _BARE
            self._suspects = [tuple(fields)]

    def next(self) -> tuple[str, ...] | None:
        """Fields to time beside those always asked for: none of them for these alone; None is no search."""
        if self._stage == _DONE:
            return None
        return () if self._stage == _BARE else self._suspects[-1]

    def took(self, fields: tuple[str, ...], seconds: float) -> None:
        """What `next` gave took so many seconds."""
        if self._stage == _BARE:
            self._bare, self._stage = seconds, _ALL
            return
        if self._stage == _ALL:
            self._usual, self._stage = seconds, _PARTS
        self._suspects.pop()
        own = seconds - self._bare
        if own > self._limit and len(fields) == 1:
            self._find(fields[0], own)
        elif own > self._limit:
            half = len(fields) // 2
            self._suspects += [fields[half:], fields[:half]]
        if not self._suspects:
            self._stage = _DONE

    def _find(self, field: str, seconds: float) -> None:
        self.known[field] = seconds
        self._usual -= seconds
        log.warning(
            "nvidia-smi takes %.1f s for %s alone: left out from now on; name it by --query-field-names, or "
            "raise --nvidia-smi-slow-field, to have it all the same",
            seconds,
            field,
        )


PART = COLUMNS.key
# How long an nvidia-smi that does not say what it offers is not asked again, in seconds.
_RETRY = 60.0

Ask = Callable[..., Outcome]


@dataclass(slots=True)
class Columns:
    """Asks for every field, and remembers what this nvidia-smi does not know and what it takes long for."""

    settings: SmiSettings
    command: Command
    clock: Clock
    ask: Ask
    exit_code: int = 0
    _fields: tuple[str, ...] = ()
    _of_driver: str = ""
    _again: float | None = None
    _refused: dict[str, str] = field(default_factory=dict)
    _slow: SlowFields = field(init=False)

    def __post_init__(self) -> None:
        self._slow = SlowFields(self.settings.slow_field)

    def read(self, answer: Answer, findings: Findings) -> None:
        """Give each Block of the answer its columns as printed; where there are none, say why."""
        self._resolve(answer.driver)
        outcome, asked, seconds = self._query()
        for complaint in self._refused.values():
            findings.note(PART, "FIELD_UNKNOWN", complaint)
        self.exit_code = outcome.code if isinstance(outcome, Ran) else -1
        if isinstance(outcome, NotStarted):
            findings.note(PART, reason(outcome), f"--query-gpu: {outcome.detail}")
            return
        table = parse_query_gpu(told(outcome))
        if how := meaning(outcome, self.command):
            findings.note(PART, reason(outcome), f"--query-gpu: {how}")
        elif not table.blocks:
            self.exit_code = -1
            findings.note(PART, "UNREADABLE", "--query-gpu: its answer is no table")
        for trouble in table.troubles:
            findings.note(PART, trouble.reason, trouble.detail)
        _join(answer, table)
        self._look_for_slow(asked, seconds)

    def _resolve(self, driver: str) -> None:
        """Work out what to ask for: at the start, after another driver was loaded, or when help failed."""
        due = self._again is not None and self.clock.elapsed() >= self._again
        if self._fields and driver == self._of_driver and not due:
            return
        if driver != self._of_driver:
            self._slow = SlowFields(self.settings.slow_field)
        self._of_driver, self._again = driver, None
        self._refused.clear()
        named = self.settings.query_field_names
        if named != (AUTO,):
            fields = tuple(dict.fromkeys((*named, *IDENTITY)))
        else:
            fields = offered(told(self.ask("--help-query-gpu")))
            if not fields:
                self._again = self.clock.elapsed() + _RETRY
                fields = USUAL
        self._fields = without(fields, self.settings.query_field_names_exclude)

    def _query(self) -> tuple[Outcome, tuple[str, ...], float]:
        """The table, the fields it was asked for, and the seconds it took."""
        while True:
            slow = self._slow.known if self.settings.query_field_names == (AUTO,) else ()
            asked = tuple(one for one in self._fields if one not in slow or one in IDENTITY)
            outcome, seconds = self._timed(asked)
            refused = _refusal(outcome)
            if refused not in self._fields or len(asked) == 1:
                return outcome, asked, seconds
            self._fields = tuple(one for one in self._fields if one != refused)
            if refused in self.settings.query_field_names:
                self._refused[refused] = str(unknown("field of nvidia-smi", refused, self._offered()))
                log.warning("--query-field-names: %s", self._refused[refused])

    def _offered(self) -> tuple[str, ...]:
        return offered(told(self.ask("--help-query-gpu"))) or USUAL

    def _timed(self, fields: tuple[str, ...]) -> tuple[Outcome, float]:
        began = self.clock.elapsed()
        outcome = self.ask("--query-gpu=" + ",".join(fields), "--format=csv")
        return outcome, self.clock.elapsed() - began

    def _look_for_slow(self, asked: tuple[str, ...], seconds: float) -> None:
        if self.settings.query_field_names != (AUTO,):
            return
        self._slow.suspect([one for one in asked if one not in IDENTITY], seconds)
        group = self._slow.next()
        if group is not None:
            always = tuple(one for one in asked if one in IDENTITY)
            _, taken = self._timed((*always, *group))
            self._slow.took(group, taken)


def _refusal(outcome: Outcome) -> str | None:
    if not isinstance(outcome, Ran) or not outcome.code:
        return None
    return refused_field(told(outcome)) or refused_field(decoded(outcome.stderr))


def _join(answer: Answer, table: Answer) -> None:
    """Columns to Blocks, by UUID, else by PCI bus id."""
    by_uuid: dict[str, Cells] = {}
    by_bus: dict[str, Cells] = {}
    for block in table.blocks:
        if uuid := uuid_of(block):
            by_uuid[uuid] = block.raw
        elif bus := bus_of(block):
            by_bus[bus] = block.raw
    for block in answer.blocks:
        block.raw = by_uuid.get(uuid_of(block) or "") or by_bus.get(bus_of(block)) or {}
