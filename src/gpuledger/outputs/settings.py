"""Settings of the file for node_exporter's textfile collector."""

from __future__ import annotations

from dataclasses import dataclass
from re import fullmatch

from gpuledger.model.errors import UsageError
from gpuledger.model.settings import boolean, duration, option, setting, text


def parse_prom_name(value: object) -> str:
    """Parses a file name, without directory, that node_exporter reads."""
    name = text(value).strip()
    # The lock and the temporary file begin with a dot.
    if not fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}\.prom", name):
        raise ValueError("expected a file name ending in .prom without directory, such as gpu_processes.prom")
    return name


def _parse_directory(value: object) -> str:
    # An empty path would be the working directory, which node_exporter does not read.
    if not (path := text(value)).strip():
        raise ValueError("expected a directory")
    return path


@dataclass(frozen=True)
class TextfileSettings:
    """Which textfile is written, and how often."""

    every: float | None = option(
        "textfile.every",
        duration("s", lowest=0.05),
        None,
        "keep running and write the file at this interval (default: write once and exit)",
    )
    directory: str = setting(
        "textfile.dir",
        _parse_directory,
        "/var/lib/node_exporter/textfile_collector",
        "directory of the file, the one of node_exporter's --collector.textfile.directory",
        flags=("--textfile-dir",),
        metavar="DIR",
    )
    file: str = option(
        "textfile.file",
        parse_prom_name,
        "gpu_processes.prom",
        "name of the file in the directory",
        metavar="NAME.prom",
    )
    stdout: bool = option("textfile.stdout", boolean, False, "print instead of writing a file")

    def check_interval(self, interval: float) -> None:
        """Raise UsageError if the file is written more often than every `interval` seconds of readings."""
        if self.every is not None and self.every < interval:
            raise UsageError(
                f"--every {self.every:g}s is shorter than --interval {interval:g}s: it would write the same"
                f" readings again; give --interval {self.every:g}s too"
            )
