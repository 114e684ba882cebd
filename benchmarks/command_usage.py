"""What one command takes: time, CPU and memory."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

# Linux counts the memory of the program that starts a child as the child's, until it runs its own program. So
# the command is started by a small program, which has no other child.
_STARTER = """
import resource, subprocess, sys, time
began = time.perf_counter()
status = subprocess.call(sys.argv[1:])
seconds = time.perf_counter() - began
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(f"\\n{seconds} {used.ru_utime + used.ru_stime} {used.ru_maxrss}")
sys.exit(status)
"""


@dataclass(frozen=True)
class CommandUsage:
    """`seconds` of time, `work` in seconds of CPU, the peak of resident `memory` in MiB, and the output."""

    status: int
    seconds: float
    work: float
    memory: float
    output: str = field(repr=False)


def run_command(command: Sequence[str], environment: Mapping[str, str] | None = None) -> CommandUsage:
    """Run a command until it ends; its stderr is this program's."""
    done = subprocess.run(
        [sys.executable, "-S", "-c", _STARTER, *command],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **(environment or {})},
        check=False,
    )
    output, _, last = done.stdout.rstrip("\n").rpartition("\n")
    seconds, work, memory = map(float, last.split())
    return CommandUsage(done.returncode, seconds, work, memory / 1024, output)
