"""What `serve` leaves out of memory."""

from __future__ import annotations

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
