"""All fields of `--query-gpu`, as the smi dialect exports them, without those that are slow to query."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from gpuledger.host.commands import CommandResult
from gpuledger.model.errors import unknown_name_error
from gpuledger.model.quantities import COLUMNS
from gpuledger.model.source import Clock
from gpuledger.sources.findings import SourceFindings
from gpuledger.sources.smi.command import Command
from gpuledger.sources.smi.csv import parse_query_gpu, rejected_field, replace_field
from gpuledger.sources.smi.failures import describe_failure, failure_reason
from gpuledger.sources.smi.fields import (
    AUTO,
    FALLBACK_FIELDS,
    IDENTITY_FIELDS,
    exclude_fields,
    parse_offered_fields,
)
from gpuledger.sources.smi.parsed_gpus import block_bus_id, block_uuid
from gpuledger.sources.smi.parsed_output import Cells, SmiOutput, decode_output
from gpuledger.sources.smi.settings import SmiSettings

log = logging.getLogger("gpuledger.smi")

# What the search times next: a query without the fields, with all of them, or with a part of them.
_DONE, _BASELINE, _ALL, _PARTS = range(4)


class SlowFieldSearch:
    """Bisection that finds the fields that each take nvidia-smi more than `limit` seconds; 0 disables it.

    `slow_fields` maps each field found to the seconds that it takes.
    """

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self.slow_fields: dict[str, float] = {}
        # Last measured seconds of a query without the fields, and of one with all but the slow fields.
        self._baseline = 0.0
        self._usual = 0.0
        self._stage = _DONE
        self._suspects: list[tuple[str, ...]] = []

    def observe_query(self, fields: Iterable[str], seconds: float) -> None:
        """Start a search if a query of these fields took over `limit` seconds longer than usual."""
        if self._limit and seconds - self._usual > self._limit and self._stage == _DONE:
            self._stage = _BASELINE
            self._suspects = [tuple(fields)]

    def next_fields(self) -> tuple[str, ...] | None:
        """Return the fields to time next, in addition to the identity fields; None when no search runs."""
        if self._stage == _DONE:
            return None
        return () if self._stage == _BASELINE else self._suspects[-1]

    def record_time(self, fields: tuple[str, ...], seconds: float) -> None:
        """Record how long a query of `next_fields` took."""
        if self._stage == _BASELINE:
            self._baseline, self._stage = seconds, _ALL
            return
        if self._stage == _ALL:
            self._usual, self._stage = seconds, _PARTS
        self._suspects.pop()
        own = seconds - self._baseline
        if own > self._limit and len(fields) == 1:
            self._add_slow_field(fields[0], own)
        elif own > self._limit:
            half = len(fields) // 2
            self._suspects += [fields[half:], fields[:half]]
        if not self._suspects:
            self._stage = _DONE

    def _add_slow_field(self, field: str, seconds: float) -> None:
        self.slow_fields[field] = seconds
        self._usual -= seconds
        log.warning(
            "nvidia-smi takes %.1f s for %s alone: the field is omitted from now on; to export it, name it "
            "in --query-field-names or raise --nvidia-smi-slow-field",
            seconds,
            field,
        )


PART = COLUMNS.key
# Seconds until `--help-query-gpu` is called again after its output listed no field.
_RETRY_SECONDS = 60.0

RunSmi = Callable[..., CommandResult]


@dataclass(slots=True)
class ColumnReader:
    """Queries all fields, and remembers which ones this nvidia-smi rejects and which ones are slow."""

    settings: SmiSettings
    command: Command
    clock: Clock
    run_smi: RunSmi
    exit_code: int = 0
    _fields: tuple[str, ...] = ()
    _driver: str = ""
    _help_retry_at: float | None = None
    _rejected: dict[str, str] = field(default_factory=dict)
    _search: SlowFieldSearch = field(init=False)

    def __post_init__(self) -> None:
        self._search = SlowFieldSearch(self.settings.slow_field)

    def add_columns(self, output: SmiOutput, findings: SourceFindings) -> None:
        """Add the columns, as printed, to each GpuBlock of the output; note why if there are none."""
        self._select_fields(output.driver)
        result, queried, seconds = self._query()
        for error in self._rejected.values():
            findings.note(PART, "FIELD_UNKNOWN", error)
        self.exit_code = result.exit_code
        table = parse_query_gpu(decode_output(result.stdout))
        if failure := describe_failure(result, self.command):
            findings.note(PART, failure_reason(result), f"--query-gpu: {failure}")
        elif not table.blocks:
            self.exit_code = -1
            findings.note(PART, "UNREADABLE", "--query-gpu: the output is not a table")
        for problem in table.problems:
            findings.note(PART, problem.reason, problem.detail)
        _copy_columns(table, output)
        if not result.not_started:
            self._search_slow_fields(queried, seconds)

    def _select_fields(self, driver: str) -> None:
        """Select the fields to query: at start, after a driver change, and when `--help-query-gpu` failed."""
        retry = self._help_retry_at is not None and self.clock.elapsed() >= self._help_retry_at
        if self._fields and driver == self._driver and not retry:
            return
        if driver != self._driver:
            self._search = SlowFieldSearch(self.settings.slow_field)
        self._driver, self._help_retry_at = driver, None
        self._rejected.clear()
        named = self.settings.query_field_names
        if named != (AUTO,):
            fields = tuple(dict.fromkeys((*named, *IDENTITY_FIELDS)))
        else:
            fields = self._query_offered_fields()
            if not fields:
                self._help_retry_at = self.clock.elapsed() + _RETRY_SECONDS
                fields = FALLBACK_FIELDS
        self._fields = exclude_fields(fields, self.settings.query_field_names_exclude)

    def _query(self) -> tuple[CommandResult, tuple[str, ...], float]:
        """Run `--query-gpu`: its result, the fields queried, and the seconds it took."""
        while True:
            slow = self._search.slow_fields if self.settings.query_field_names == (AUTO,) else ()
            queried = tuple(name for name in self._fields if name not in slow or name in IDENTITY_FIELDS)
            result, seconds = self._run_timed(queried)
            rejected = rejected_field(result)
            if rejected not in self._fields or len(queried) == 1:
                return result, queried, seconds
            self._fields = replace_field(self._fields, rejected)
            if rejected in self.settings.query_field_names:
                offered = self._query_offered_fields() or FALLBACK_FIELDS
                error = str(unknown_name_error("field of nvidia-smi", rejected, offered))
                self._rejected[rejected] = error
                log.warning("--query-field-names: %s", error)

    def _query_offered_fields(self) -> tuple[str, ...]:
        return parse_offered_fields(decode_output(self.run_smi("--help-query-gpu").stdout))

    def _run_timed(self, fields: tuple[str, ...]) -> tuple[CommandResult, float]:
        began = self.clock.elapsed()
        result = self.run_smi("--query-gpu=" + ",".join(fields), "--format=csv")
        return result, self.clock.elapsed() - began

    def _search_slow_fields(self, queried: tuple[str, ...], seconds: float) -> None:
        if self.settings.query_field_names != (AUTO,):
            return
        self._search.observe_query([name for name in queried if name not in IDENTITY_FIELDS], seconds)
        group = self._search.next_fields()
        if group is not None:
            identity = tuple(name for name in queried if name in IDENTITY_FIELDS)
            _, group_seconds = self._run_timed((*identity, *group))
            self._search.record_time(group, group_seconds)


def _copy_columns(table: SmiOutput, output: SmiOutput) -> None:
    """Copy the table's columns to the GPUs of `output`, matched by UUID, else by PCI bus id."""
    by_uuid: dict[str, Cells] = {}
    by_bus: dict[str, Cells] = {}
    for block in table.blocks:
        if uuid := block_uuid(block):
            by_uuid[uuid] = block.raw
        elif bus := block_bus_id(block):
            by_bus[bus] = block.raw
    for block in output.blocks:
        block.raw = by_uuid.get(block_uuid(block) or "") or by_bus.get(block_bus_id(block)) or {}
