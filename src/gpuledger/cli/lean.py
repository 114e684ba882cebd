"""What `serve` leaves out of memory, and what it gives back."""

from __future__ import annotations

import os
import sys


def leave_out_tls() -> None:
    """Load asyncio as in a Python built without TLS, a case that it provides for.

    asyncio loads `ssl`, and with it OpenSSL, whether or not anything is encrypted: 4.3 of the 29 MiB that
    were resident here (CPython 3.11). The module stays importable for who needs it later.
    """
    if "asyncio" not in sys.modules and "ssl" not in sys.modules:
        sys.modules["ssl"] = None  # type: ignore[assignment]  # documented: makes the import fail
        try:
            import asyncio  # noqa: F401  (loaded for its effect)
        finally:
            del sys.modules["ssl"]


# malloc.h. The size from which a block is a mapping of its own, as glibc begins with.
_M_MMAP_THRESHOLD = -3
_LARGE = 128 << 10


def give_back_large_blocks() -> None:
    """Let every large block go back to the system as soon as it is freed, for as long as the program runs.

    glibc takes blocks from 128 KiB on as mappings of their own, until one is freed: then it raises that limit
    to its size, up to 32 MiB (mallopt(3), "dynamic mmap threshold"), and later ones lie in the heap. Pages of
    changing size leave gaps there that what is made meanwhile keeps from being given back. A limit that is
    set is not raised. One that the environment sets stays; other C libraries have none.

    Not for the agent: of pages of 5,000 series it holds as much at its peaks, and a third more CPU time goes
    into mapping (docs/agent.md has the figures). The operator makes no pages of such a size.
    """
    if "MALLOC_MMAP_THRESHOLD_" in os.environ or "mmap_threshold" in os.environ.get("GLIBC_TUNABLES", ""):
        return
    from ctypes import CDLL

    set_option = getattr(CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(_M_MMAP_THRESHOLD, _LARGE)
