"""Hidden command: read the driver once, as the child of `doctor`, in an executable without an interpreter."""

from __future__ import annotations

from collections.abc import Sequence

from gpuledger.sources.nvml.probe import main


def run(_: Sequence[str]) -> int:
    """Run the command. Its argument, the number of the pipe to the parent, is read from the command line."""
    main()
    return 0
