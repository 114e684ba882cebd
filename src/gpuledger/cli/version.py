"""`gpuledger version`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from gpuledger import __version__
from gpuledger.app.flags import no_words, parse, parser


def run(arguments: Sequence[str]) -> int:
    """Print the version of the program and of the Python under it."""
    given = parse(parser("version", "Print the version.", "", {}), (), arguments, {})
    no_words("version", given.words)
    python = ".".join(map(str, sys.version_info[:3]))
    sys.stdout.write(f"gpuledger {__version__} (Python {python})\n")
    return 0
