"""Settings of the Ledger and its store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from gpuledger.model.settings import (
    ReloadPolicy,
    choice,
    duration,
    integer,
    number,
    option,
    setting,
    size,
    text,
)


def _parse_max_size(value: object) -> int:
    parsed = size(value)
    if parsed < _MIN_SIZE:
        raise ValueError("expected a size of at least 1MB, such as 500MB or 1GiB")
    return parsed


_MIN_SIZE = 1_000_000


def _parse_optional_watts(value: object) -> float | None:
    return None if value in ("", None) else _parse_watts(value)


_parse_watts: Callable[[object], float] = number(0, 10_000)


@dataclass(frozen=True)
class LedgerSettings:
    """How many processes of a Device are exported one by one, and how energy is booked and exported."""

    # A longer hold or a lower cap would make already exported counters step back.
    reload: ClassVar[ReloadPolicy] = ReloadPolicy(restart=("process.max_per_device", "energy.zero_hold"))

    max_per_device: int = setting(
        "process.max_per_device",
        integer(1, 100_000),
        256,
        "export at most this many processes of a device individually (largest memory first), the others only "
        "as a count",
    )
    policy: str = setting(
        "energy.policy",
        choice("apportioned", "measured"),
        "apportioned",
        "apportioned: split the energy of a shared GPU and label the method; measured: never split, "
        "energy that one process did not use alone is unattributed",
        metavar="POLICY",
    )
    empty_watts: float | None = setting(
        "energy.empty_watts",
        _parse_optional_watts,
        None,
        "power of a GPU without processes (default: learned while the GPU is quiet)",
        metavar="WATTS",
    )
    resident_watts: float | None = setting(
        "energy.resident_watts",
        _parse_optional_watts,
        None,
        "power of a GPU with inactive processes (default: learned while the GPU is quiet)",
        metavar="WATTS",
    )
    zero_hold: float = setting(
        "energy.zero_hold",
        duration("s"),
        30.0,
        "export new counters (energy, seconds, Xids) as 0 for at least this long; longer if a client scrapes "
        "regularly at a longer interval (with its timeout); otherwise increase() misses their first value",
    )
    retention: float = setting(
        "metric_retention",
        duration("s"),
        300.0,
        "keep exporting the energy of a process and the seconds of an owner for this long after the end",
    )


MEMORY_ONLY = "none"
_DECADE = 3653 * 86_400.0


@dataclass(frozen=True)
class StoreSettings:
    """Where the ledger is stored, and for how long."""

    reload: ClassVar[ReloadPolicy] = ReloadPolicy(restart=("state_dir",))

    state_dir: str = setting(
        "state_dir",
        text,
        "",
        "directory of the ledger, which persists across restarts; none: keep it in memory (default: "
        "/var/lib/gpuledger, else $XDG_STATE_HOME/gpuledger; none for simulated sources)",
        metavar="DIR",
    )
    detail: float = setting(
        "store.detail",
        duration("s", lowest=7_200.0, highest=_DECADE),
        7 * 86_400.0,
        "keep every interval and its shares for this long; older ones are summed by hour, totals "
        "do not change",
    )
    hours: float = setting(
        "store.hours",
        duration("s", lowest=86_400.0, highest=_DECADE),
        400 * 86_400.0,
        "delete hours and sessions older than this",
    )
    max_size: int = setting(
        "store.max_size",
        _parse_max_size,
        2**30,
        "of a larger ledger, sum the oldest history by hour, then delete it",
        metavar="SIZE",
    )


@dataclass(frozen=True)
class ExportedBooksSettings:
    """The exported ledgers that a report reads."""

    folder: str = option(
        "report.books",
        text,
        "",
        "report on the ledgers that `gpuledger books export` wrote below this directory, of any number of "
        "nodes and months, instead of this machine's",
        metavar="DIR",
    )
