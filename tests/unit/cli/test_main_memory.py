"""What `serve` does to the allocator, counted by the allocator itself."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import pytest

BODIES = 64
BODY = 512 << 10

# Bodies of a scrape made and freed, with something that stays made after each, too large for the gaps
# that the imports left. The first one freed is what makes glibc put the later ones in the heap. On
# stderr: the bytes that the heap holds free.
SCRIPT = f"""
import ctypes, sys
from gpuledger.cli.main import main

assert main(["serve", "--help"]) == 0
first = bytes({BODY} * 2)
del first
bodies, kept = [], []
for _ in range({BODIES}):
    bodies.append(bytes({BODY}))
    kept.append(bytes(60_000))
del bodies

class Told(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "abcdefghij"]

told = ctypes.CDLL(None).mallinfo2
told.restype = Told
sys.stderr.write(str(told().i))
"""

pytestmark = pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="only glibc, from 2.33 on, counts this"
)


def free_in_the_heap(**env: str) -> int:
    """Bytes that were freed and not given back."""
    without = {
        name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))
    }
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env={**without, **env}, capture_output=True, text=True, check=True
    )
    return int(done.stderr)


def test_freed_bodies_leave_no_gaps_in_the_heap_of_serve() -> None:
    assert free_in_the_heap() < 4 * BODY


@pytest.mark.parametrize(
    "env",
    [
        {"MALLOC_MMAP_THRESHOLD_": str(32 << 20)},
        {"GLIBC_TUNABLES": f"glibc.malloc.mmap_threshold={32 << 20}"},
    ],
    ids=["variable", "tunable"],
)
def test_a_limit_that_the_environment_sets_stays(env: dict[str, str]) -> None:
    assert free_in_the_heap(**env) > BODIES * BODY // 2
