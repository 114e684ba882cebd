"""What a user sets about the tick."""

from __future__ import annotations

from dataclasses import dataclass

from gpuledger.model.settings import duration, setting


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """How often the machine is read."""

    interval: float = setting(
        "interval",
        duration("s", lowest=0.05, highest=3600.0),
        1.0,
        "time between readings of the driver; doubles by itself while reading takes over a fifth of it",
        flags=("--interval", "--dcgm-update-frequency"),
        metavar="DURATION",
    )
