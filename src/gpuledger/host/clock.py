"""The machine's clock."""

from __future__ import annotations

import time

# CLOCK_BOOTTIME includes suspend. Only Linux has it; with remote sources gpuledger may run elsewhere.
_BOOT = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemClock:
    """`model.source.Clock` of this machine."""

    def unix(self) -> float:
        """Wall time in unix seconds; it can step."""
        return time.time()

    def elapsed(self) -> float:
        """Seconds since boot, suspend included; never steps."""
        return time.clock_gettime(_BOOT)


def seconds_suspended() -> float:
    """Seconds that this machine was suspended since its boot; 0 where the clock does not say."""
    return time.clock_gettime(_BOOT) - time.clock_gettime(time.CLOCK_MONOTONIC)
