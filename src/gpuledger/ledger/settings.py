"""What a user sets about the Ledger."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from gpuledger.model.settings import Reload, choice, duration, integer, number, setting, size, text


def _limit(value: object) -> int:
    found = size(value)
    if found < _LEAST:
        raise ValueError("a size of at least 1MB, such as 500MB or 1GiB, is wanted")
    return found


_LEAST = 1_000_000


def _watts(value: object) -> float | None:
    return None if value in ("", None) else _WATTS(value)


_WATTS: Callable[[object], float] = number(0, 10_000)


@dataclass(frozen=True, slots=True)
class LedgerSettings:
    """How much of a crowded Device is told process by process, and how energy is booked and told."""

    # A longer hold, or fewer told, would make counters that are told already step back.
    reload: ClassVar[Reload] = Reload(restart=("process.max_per_device", "energy.zero_hold"))

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


MEMORY_ONLY = "none"
_DECADE = 3653 * 86_400.0


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """Where the books are kept, and for how long."""

    reload: ClassVar[Reload] = Reload(restart=("state_dir",))

    state_dir: str = setting(
        "state_dir",
        text,
        "",
        "directory of the books, which outlast restarts; none keeps them in memory (default: "
        "/var/lib/gpuledger, else $XDG_STATE_HOME/gpuledger; for made-up sources none)",
        metavar="DIR",
    )
    detail: float = setting(
        "store.detail",
        duration("s", lowest=7_200.0, highest=_DECADE),
        7 * 86_400.0,
        "keep every interval and who shared it for so long; what is older is kept by hour, no total changes",
        metavar="DURATION",
    )
    hours: float = setting(
        "store.hours",
        duration("s", lowest=86_400.0, highest=_DECADE),
        400 * 86_400.0,
        "delete hours and sessions older than this",
        metavar="DURATION",
    )
    max_size: int = setting(
        "store.max_size",
        _limit,
        2**30,
        "fold, then delete, the oldest history beyond this size of the books",
        metavar="SIZE",
    )
