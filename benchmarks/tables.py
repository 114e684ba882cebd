"""How a benchmark is called, and where what it found is told."""

from __future__ import annotations

import argparse
import os
import platform
import re
import sqlite3
from collections.abc import Iterable
from pathlib import Path


def parser(document: str | None) -> argparse.ArgumentParser:
    """With `--write`, and the module's own words as help."""
    asked = argparse.ArgumentParser(
        description=document, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    asked.add_argument("--write", type=Path, help="put the table between the marks of this file")
    return asked


def machine() -> str:
    """What absolute figures depend on."""
    versions = f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}"
    return f"{versions}, {os.cpu_count()} cores, {platform.machine()}"


def tell(lines: Iterable[str], write: Path | None, marks: tuple[str, str]) -> None:
    """Print each line as it comes, and then put all between the marks of a document, where asked."""
    found = []
    for line in lines:
        print(line, flush=True)
        found.append(line)
    if write is None:
        return
    begin, end = marks
    inside = "\n".join((begin, *found, end))
    text = write.read_text(encoding="utf-8")
    write.write_text(re.sub(f"{begin}.*{end}", lambda _: inside, text, flags=re.DOTALL), "utf-8")
