"""A running `gpuledger collect`, and the file that it writes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from running import Program

NAME = "gpu_processes.prom"
# Long intervals: on a busy machine a tick must not be late by three intervals, which removes the file.
QUICK = ("--every", "300ms", "--interval", "300ms")
OLD = 'gpu_total_processes 1\ngpu_process_count{gpu="0"} 1\n'


@contextmanager
def collecting(*arguments: str, env: dict[str, str] | None = None) -> Iterator[Program]:
    program = Program([sys.executable, "-m", "gpuledger", "collect", *arguments], env, prepared=True)
    try:
        yield program
    finally:
        program.stop()


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}
