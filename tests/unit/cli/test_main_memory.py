"""The effect of `serve` on malloc, measured by malloc itself."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from gpuledger.cli.main import configure_malloc

BODIES = 64
BODY = 512 << 10

# Allocates and frees bodies of scrapes, with a block that is kept after each, too large for the gaps that
# the imports left. Freeing the first body makes glibc allocate later ones on the heap. Prints the free bytes
# of the heap on stderr.
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

class MallInfo(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "abcdefghij"]

mallinfo = ctypes.CDLL(None).mallinfo2
mallinfo.restype = MallInfo
sys.stderr.write(str(mallinfo().i))
"""

pytestmark = pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="only glibc, from 2.33 on, counts this"
)


def free_in_the_heap(**env: str) -> int:
    """Bytes that were freed but not returned to the system."""
    without = {
        name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))
    }
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env={**without, **env}, capture_output=True, text=True, check=True
    )
    return int(done.stderr)


def test_freed_bodies_of_serve_do_not_fragment_the_heap() -> None:
    assert free_in_the_heap() < 4 * BODY


@pytest.mark.parametrize(
    "env",
    [
        {"MALLOC_MMAP_THRESHOLD_": str(32 << 20)},
        {"GLIBC_TUNABLES": f"glibc.malloc.mmap_threshold={32 << 20}"},
    ],
    ids=["variable", "tunable"],
)
def test_a_threshold_from_the_environment_is_kept(env: dict[str, str]) -> None:
    assert free_in_the_heap(**env) > BODIES * BODY // 2


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("OTHER", "", {-3: 128 << 10, -8: 1}),
        ("MALLOC_ARENA_MAX", "4", {-3: 128 << 10}),
        ("GLIBC_TUNABLES", "glibc.malloc.arena_max=4", {-3: 128 << 10}),
        ("MALLOC_MMAP_THRESHOLD_", "65536", {-8: 1}),
    ],
)
def test_options_of_malloc_in_the_environment_are_kept(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, expected: dict[int, int]
) -> None:
    calls: dict[int, int] = {}
    monkeypatch.setattr(ctypes, "CDLL", lambda _: SimpleNamespace(mallopt=calls.__setitem__))
    for name in ("MALLOC_ARENA_MAX", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, value)
    configure_malloc()
    assert calls == expected
