"""What a user sets about the file that node_exporter's textfile collector reads."""

from __future__ import annotations

from dataclasses import dataclass
from re import fullmatch

from gpuledger.model.settings import boolean, duration, setting, text


def prom_name(value: object) -> str:
    """A bare file name that node_exporter takes for one of its own."""
    name = text(value).strip()
    # A first letter or digit keeps clear of our own lock and temporary, which begin with a dot.
    if not fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}\.prom", name):
        raise ValueError("a bare file name ending in .prom, such as gpu_processes.prom, is wanted")
    return name


@dataclass(frozen=True, slots=True)
class TextfileSettings:
    """Which file is written, and how often."""

    every: float | None = setting(
        "textfile.every",
        duration("s", lowest=0.05),
        None,
        "keep running and write anew this often (default: write once and end)",
        flags=("--every",),
        metavar="DURATION",
    )
    directory: str = setting(
        "textfile.dir",
        text,
        "/var/lib/node_exporter/textfile_collector",
        "directory to write into: the one of node_exporter's --collector.textfile.directory",
        flags=("--textfile-dir",),
        metavar="DIR",
    )
    file: str = setting(
        "textfile.file",
        prom_name,
        "gpu_processes.prom",
        "name of the file in it",
        flags=("--file",),
        metavar="NAME.prom",
    )
    stdout: bool = setting(
        "textfile.stdout",
        boolean,
        False,
        "print instead of writing a file",
        flags=("--stdout",),
    )
