"""What a user sets about the Ledger."""

from __future__ import annotations

from dataclasses import dataclass

from gpuledger.model.settings import integer, setting


@dataclass(frozen=True, slots=True)
class LedgerSettings:
    """How much of a crowded Device is told process by process."""

    max_per_device: int = setting(
        "process.max_per_device",
        integer(1, 100_000),
        256,
        "tell at most this many processes of a device one by one (largest memory first); the rest by count",
        metavar="N",
    )
