"""Answers commands that cannot read the ledger themselves: with the rows that their caller may read."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from socket import gethostname
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, TypeVar

from gpuledger.app.readers import Peer, Readers
from gpuledger.app.user_requests import RequestHandler
from gpuledger.config.node import configured_node_name
from gpuledger.model.access import Reader
from gpuledger.model.errors import GpuledgerError, UsageError
from gpuledger.model.node_state import NodeState
from gpuledger.web.api.ledger_access import LedgerAccess
from gpuledger.web.api.responses import ApiError

if TYPE_CHECKING:
    from gpuledger.ledger.store.history import History

T = TypeVar("T")

# The names of parameters by command, with the settings that they are. All others are those of `serve`.
REPORT_PARAMETERS: Final = {
    **{name: f"report.{name}" for name in ("by", "in", "since", "until", "every", "top", "format")},
    "account": "report.account",
    "basis": "price.basis",
}
EXPLAIN_PARAMETERS: Final = {
    **{name: f"explain.{name}" for name in ("in", "since", "until", "limit", "all", "format")},
    "basis": "price.basis",
}
_COMMANDS: Final = ("report", "explain", "receipt", "idle", "snapshot")
# Characters of an answer.
_LONGEST: Final = 32 << 20
# Seconds that a request waits for those before it: one report is computed at a time.
_PATIENCE: Final = 20.0


@dataclass(slots=True)
class LedgerRequests:
    """Computes the output of report, explain, receipt and top for callers. Used in several threads.

    `values` returns the settings in force, by which prices, teams and time zone are those of `serve`.
    """

    values: Callable[[], Mapping[str, Any]]
    state: Callable[[], NodeState]
    ledger_access: LedgerAccess
    readers: Callable[[], Readers]
    environment: Mapping[str, str]
    _lock: Lock = field(default_factory=Lock, init=False)
    # By reader: of each one only one request waits for the ledger, so that many of them delay no others.
    _own_locks: dict[str, Lock] = field(default_factory=dict, init=False)

    @property
    def handlers(self) -> dict[str, RequestHandler]:
        """The requests of the control socket; their parameters are an object of texts."""

        def handler(command: str) -> RequestHandler:
            def answer(request: Mapping[str, Any], peer: Peer) -> Mapping[str, Any]:
                parameters = request.get("parameters", {})
                texts = {str(name): str(value) for name, value in dict(parameters).items()}
                try:
                    return self.answer(command, texts, self.readers().reader_of_peer(peer))
                except ApiError as refusal:
                    raise GpuledgerError(refusal.message) from None

            return answer

        return {command: handler(command) for command in _COMMANDS}

    def answer(self, command: str, parameters: Mapping[str, str], reader: Reader) -> Mapping[str, Any]:
        """The output of a command for this reader: `text` and `notes`, or the object of its name.

        Raises GpuledgerError, with the same message for what is not there and what is not the reader's, and
        ApiError if the ledger cannot be read.
        """
        # Imported lazily, as the modules of the other commands: most nodes never need them.
        if command == "snapshot":
            from gpuledger.web.api.own_snapshot import snapshot_for

            node = configured_node_name(self.values(), self.environment)
            return {"snapshot": snapshot_for(self.state(), node, reader), "user": reader.name}
        if command == "idle":
            from gpuledger.app.idle_source import answer_idle

            return self._read(reader, lambda history: answer_idle(history, parameters, self.values()))
        if command == "receipt":
            from gpuledger.app.receipt_source import receipt_of

            receipt = self._read(reader, lambda history: receipt_of(history, parameters, self.values()))
            return {"receipt": receipt, "user": reader.name}
        output = self._report if command == "report" else self._explain
        return self._read(reader, lambda history: output(history, parameters))

    def _read(self, reader: Reader, read: Callable[[History], T]) -> T:
        """What `read` returns for the rows of a reader."""
        own, until = self._own_locks.setdefault(reader.name, Lock()), time.monotonic() + _PATIENCE
        with _holding(own, until), _holding(self._lock, until):
            with self.ledger_access.open(reader) as history:
                try:
                    return read(history)
                except GpuledgerError as error:
                    # Within, an error would mean that the ledger cannot be read.
                    failure = error
            raise failure

    def _report(self, history: History, parameters: Mapping[str, str]) -> Mapping[str, Any]:
        from gpuledger.app.flag_checks import choose_period
        from gpuledger.app.ledger_commands import format_report, make_report, with_focus_rows
        from gpuledger.config.report import ReportSettings
        from gpuledger.model.settings import build_settings

        plain, given = _take_plain(parameters)
        flags = _flags_of(given, REPORT_PARAMETERS)
        values = self._values_with(flags, ReportSettings)
        settings = build_settings(ReportSettings, values)
        if settings.format == "html":
            raise UsageError("--format html needs the ledger itself: use table, csv, json or focus")
        settings = replace(settings, period=choose_period(values, flags))
        made = make_report(history, with_focus_rows(settings, values, flags), values)
        try:
            text = format_report(made.report, settings, gethostname(), plain=plain)
        except GpuledgerError as error:
            # The prices of this node do not suffice for the format.
            raise ApiError(404, "no_price", str(error)) from None
        notes = () if settings.format == "table" else made.report.notes
        return {"text": text, "notes": [*made.notes, *notes], "user": history.reader.name}

    def _explain(self, history: History, parameters: Mapping[str, str]) -> Mapping[str, Any]:
        from gpuledger.app.flag_checks import choose_period
        from gpuledger.app.ledger_commands import make_explanation, write_explanation
        from gpuledger.config.report import ExplainSettings
        from gpuledger.model.settings import build_settings

        who = parameters.get("of", "")
        if not who.strip():
            raise UsageError("of: expected KIND:NAME of a row, a name, or a process id")
        given = {name: text for name, text in parameters.items() if name != "of"}
        flags = _flags_of(given, EXPLAIN_PARAMETERS)
        values = self._values_with(flags, ExplainSettings)
        settings = build_settings(ExplainSettings, values)
        period = choose_period(values, flags, "explain")
        found = make_explanation(history, who, settings, values, period)
        out = _LimitedText()
        write_explanation(found, settings.format, out)
        notes = found.notes if settings.format != "text" else ()
        return {"text": out.getvalue(), "notes": list(notes), "user": history.reader.name}

    def _values_with(self, flags: Mapping[str, list[str]], group: type) -> dict[str, Any]:
        """The settings of `serve`, with those of the request."""
        from gpuledger.config.load import load_values
        from gpuledger.ledger.report.settings import Prices

        return {**self.values(), **load_values((group, Prices), flags, {}, None)}


@contextmanager
def _holding(lock: Lock, until: float) -> Iterator[None]:
    """Hold a lock. Raises ApiError if it is not free until this time of the monotonic clock."""
    if not lock.acquire(timeout=max(until - time.monotonic(), 0.0)):
        raise ApiError(503, "busy", "gpuledger serve still computes earlier reports: try again", retry=10)
    try:
        yield
    finally:
        lock.release()


def _take_plain(parameters: Mapping[str, str]) -> tuple[bool, dict[str, str]]:
    given = dict(parameters)
    return given.pop("plain", "") == "true", given


def _flags_of(parameters: Mapping[str, str], names: Mapping[str, str]) -> dict[str, list[str]]:
    """The texts by key of a setting. Raises UsageError for a parameter that the command does not have."""
    for name in parameters:
        if name not in names:
            raise UsageError(f"unknown parameter '{name[:80]}'; valid: {', '.join(names)}")
    return {names[name]: [text] for name, text in parameters.items()}


class _LimitedText(io.StringIO):
    """A text that refuses to grow beyond what a program on a node may use for one answer."""

    length = 0

    def write(self, text: str) -> int:
        """Append a text. Raises GpuledgerError if it becomes too long."""
        self.length += len(text)
        if self.length > _LONGEST:
            raise GpuledgerError("the answer is too long: use --since and --until, or --limit")
        return super().write(text)
