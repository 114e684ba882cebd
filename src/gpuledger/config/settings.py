"""The settings of the log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gpuledger.model.settings import ReloadPolicy, choice, setting


def _format(value: object) -> str:
    # dcgm-exporter's `text` is logfmt.
    return "logfmt" if str(value).strip() == "text" else choice("logfmt", "json")(value)


@dataclass(frozen=True)
class LogSettings:
    """Level and format of the log on stderr."""

    reload: ClassVar[ReloadPolicy] = ReloadPolicy()

    level: str = setting(
        "log.level",
        choice("debug", "info", "warn", "error"),
        "info",
        "lowest level that is logged: debug, info, warn or error",
        flags=("--log-level", "--log.level"),
        metavar="LEVEL",
    )
    format: str = setting(
        "log.format",
        _format,
        "logfmt",
        "format of log lines: logfmt or json",
        flags=("--log-format", "--log.format"),
        metavar="FORM",
        variables=("DCGM_EXPORTER_LOG_FORMAT",),
    )
