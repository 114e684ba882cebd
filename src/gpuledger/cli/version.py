"""`gpuledger version`: print the version."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from gpuledger import __version__
from gpuledger.app.flags import parse_command


def run(arguments: Sequence[str]) -> int:
    """Print the version of the program and of its Python."""
    parse_command("version", "Print the version.", "", {}, arguments)
    python = ".".join(map(str, sys.version_info[:3]))
    sys.stdout.write(f"gpuledger {__version__} (Python {python})\n")
    return 0
