"""Logging to stderr: as logfmt for people and grep, as JSON for log collectors."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, TextIO

from gpuledger.config.settings import LogSettings
from gpuledger.model.settings import SecondsWithoutUnit, build_settings
from gpuledger.model.snapshot import SourceInfo
from gpuledger.model.text import warn_of_unit

log = logging.getLogger("gpuledger.settings")

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warn": logging.WARNING, "error": logging.ERROR}
_NAMES = {logging.WARNING: "warn", logging.CRITICAL: "error"}


class _LineFormatter(logging.Formatter):
    """Formats a record as one line: a JSON object, or `ts=... level=info logger=gpuledger.node msg="..."`."""

    def __init__(self, *, as_json: bool) -> None:
        super().__init__()
        self._as_json = as_json

    def format(self, record: logging.LogRecord) -> str:
        """Format one record as one line."""
        fields = {
            "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": _NAMES.get(record.levelno, record.levelname.lower()),
            "logger": record.name,
            "msg": record.getMessage(),
        }
        if record.exc_info:
            fields["error"] = self.formatException(record.exc_info)
        if self._as_json:
            return _json(fields)
        return " ".join(f"{key}={_quoted(value)}" for key, value in fields.items())


def _quoted(value: str) -> str:
    if value and value.isprintable() and not any(char in value for char in ' ="\\'):
        return value
    return _json(value)


def _json(value: object) -> str:
    """JSON on one line, without control characters: names of processes and paths are untrusted input."""
    written = json.dumps(value, ensure_ascii=False)
    return written if written.isprintable() else json.dumps(value)


def configure_logging(values: Mapping[str, Any], stream: TextIO | None = None) -> None:
    """Send the program's log to `stream`, stderr by default, as the settings in `values` say.

    Logs which of the values are long durations without a unit.
    """
    settings = build_settings(LogSettings, values)
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_LineFormatter(as_json=settings.format == "json"))
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(_LEVELS[settings.level])
    for key, value in values.items():
        if isinstance(value, SecondsWithoutUnit):
            log.warning("%s", warn_of_unit(key, value))


@contextmanager
def silence_node_log() -> Iterator[None]:
    """Suppress the node's log lines: the command itself reports its errors."""
    with limit_log("gpuledger.node", logging.CRITICAL):
        yield


@contextmanager
def limit_log(name: str, level: int) -> Iterator[None]:
    """Suppress the lines below this level of a logger."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(level)
    try:
        yield
    finally:
        logger.setLevel(before)


def warn_if_simulated(source: SourceInfo) -> None:
    """Log a warning when the data do not come from hardware."""
    if source.simulated:
        logging.getLogger("gpuledger").warning(
            "simulated data (%s): no value is a measurement", source.detail
        )
