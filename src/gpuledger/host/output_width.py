"""The width of the terminal to which a command prints."""

from __future__ import annotations

import shutil
import sys
from os import environ


def output_width() -> int | None:
    """The columns of the terminal, or of COLUMNS; None in a pipe, where scripts search for whole names."""
    if sys.stdout.isatty() or environ.get("COLUMNS"):
        return shutil.get_terminal_size().columns
    return None
