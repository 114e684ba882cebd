"""`gpuledger version`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from gpuledger import __version__


def run(_arguments: Sequence[str]) -> int:
    """Print the version of the program and of the Python under it."""
    python = ".".join(map(str, sys.version_info[:3]))
    sys.stdout.write(f"gpuledger {__version__} (Python {python})\n")
    return 0
