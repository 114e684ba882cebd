"""What a user sets about the Ledger."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gpuledger.model.settings import choice, duration, integer, number, setting


def _watts(value: object) -> float | None:
    return None if value in ("", None) else _WATTS(value)


_WATTS: Callable[[object], float] = number(0, 10_000)


@dataclass(frozen=True, slots=True)
class LedgerSettings:
    """How much of a crowded Device is told process by process, and how energy is booked and told."""

    max_per_device: int = setting(
        "process.max_per_device",
        integer(1, 100_000),
        256,
        "tell at most this many processes of a device one by one (largest memory first); the rest by count",
        metavar="N",
    )
    policy: str = setting(
        "energy.policy",
        choice("apportioned", "measured"),
        "apportioned",
        "apportioned splits a shared GPU's energy and says by which method; measured never splits: what is "
        "not one process's alone is unattributed",
        metavar="POLICY",
    )
    empty_watts: float | None = setting(
        "energy.empty_watts",
        _watts,
        None,
        "power of a GPU without any process; learnt from quiet times when not given",
        metavar="WATTS",
    )
    resident_watts: float | None = setting(
        "energy.resident_watts",
        _watts,
        None,
        "power of a GPU with processes that do nothing; learnt from quiet times when not given",
        metavar="WATTS",
    )
    zero_hold: float = setting(
        "energy.zero_hold",
        duration("s"),
        30.0,
        "tell a new energy series as 0 for so long, at least a scrape interval: else increase() misses it",
        metavar="DURATION",
    )
    retention: float = setting(
        "metric_retention",
        duration("s"),
        300.0,
        "tell the energy of a process for so long after it has ended",
        metavar="DURATION",
    )
