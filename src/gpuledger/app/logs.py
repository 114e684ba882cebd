"""Log lines on stderr: logfmt for people and grep, JSON for collectors."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TextIO

from gpuledger.config.settings import LogSettings
from gpuledger.model.snapshot import SourceInfo

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warn": logging.WARNING, "error": logging.ERROR}
_NAMES = {logging.WARNING: "warn", logging.CRITICAL: "error"}


def fields(record: logging.LogRecord, formatter: logging.Formatter) -> dict[str, str]:
    """The parts of one line, in order."""
    parts = {
        "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
        "level": _NAMES.get(record.levelno, record.levelname.lower()),
        "logger": record.name,
        "msg": record.getMessage(),
    }
    if record.exc_info:
        parts["error"] = formatter.formatException(record.exc_info)
    return parts


class Logfmt(logging.Formatter):
    """`ts=... level=info logger=gpuledger.node msg="..."`; always one line."""

    def format(self, record: logging.LogRecord) -> str:
        """One record as one line."""
        return " ".join(f"{key}={_quoted(value)}" for key, value in fields(record, self).items())


class Json(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """One record as one line."""
        return _json(fields(record, self))


def _quoted(value: str) -> str:
    if value and value.isprintable() and not any(char in value for char in ' ="\\'):
        return value
    return _json(value)


def _json(value: object) -> str:
    """On one line, in which whoever names a process or a path cannot steer the terminal that shows it."""
    written = json.dumps(value, ensure_ascii=False)
    return written if written.isprintable() else json.dumps(value)


def set_up(settings: LogSettings, stream: TextIO | None = None) -> None:
    """Send the program's log to `stream`, stderr by default."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(Json() if settings.format == "json" else Logfmt())
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(_LEVELS[settings.level])


@contextmanager
def quiet_node() -> Iterator[None]:
    """Leave to the command's own words what a node says while it runs on."""
    node = logging.getLogger("gpuledger.node")
    level = node.level
    node.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        node.setLevel(level)


def warn_if_simulated(source: SourceInfo) -> None:
    """Say so where people look, when nothing of what follows comes from hardware."""
    if source.simulated:
        logging.getLogger("gpuledger").warning(
            "simulated data (%s): nothing here was measured", source.detail
        )
