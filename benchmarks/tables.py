"""Command line of the benchmarks, and output of their tables."""

from __future__ import annotations

import argparse
import os
import platform
import re
import sqlite3
from collections.abc import Iterable
from pathlib import Path


def create_parser(document: str | None) -> argparse.ArgumentParser:
    """Return a parser with `--write`; the module's docstring is its help."""
    flags = argparse.ArgumentParser(
        description=document, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    flags.add_argument("--write", type=Path, help="write the table between the marks of this file")
    return flags


def describe_machine() -> str:
    """Return the versions and the hardware that absolute figures depend on."""
    versions = f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}"
    return f"{versions}, {os.cpu_count()} cores, {platform.machine()}"


def print_table(lines: Iterable[str], write: Path | None, marks: tuple[str, str]) -> None:
    """Print each line as it comes; with `write`, put all lines between the marks of that file."""
    printed = []
    for line in lines:
        print(line, flush=True)
        printed.append(line)
    if write is None:
        return
    begin, end = marks
    inside = "\n".join((begin, *printed, end))
    text = write.read_text(encoding="utf-8")
    write.write_text(re.sub(f"{begin}.*{end}", lambda _: inside, text, flags=re.DOTALL), "utf-8")
