"""What a user sets about the program itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gpuledger.model.settings import Reload, choice, setting


def _format(value: object) -> str:
    # What dcgm-exporter calls text is logfmt.
    return "logfmt" if value == "text" else choice("logfmt", "json")(value)


@dataclass(frozen=True, slots=True)
class LogSettings:
    """What goes to stderr, and how."""

    reload: ClassVar[Reload] = Reload()

    level: str = setting(
        "log.level",
        choice("debug", "info", "warn", "error"),
        "info",
        "log from this level up: debug, info, warn or error",
        flags=("--log-level", "--log.level"),
        metavar="LEVEL",
    )
    format: str = setting(
        "log.format",
        _format,
        "logfmt",
        "log lines as logfmt or json",
        flags=("--log-format", "--log.format"),
        metavar="FORM",
        variables=("DCGM_EXPORTER_LOG_FORMAT",),
    )
