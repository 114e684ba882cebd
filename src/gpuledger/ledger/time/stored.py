"""The time state of a Gpu that a restart needs, as a value and as JSON values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from gpuledger.ledger.energy.counter import Epoch
from gpuledger.ledger.ownership import owner_fields, owner_from_fields
from gpuledger.ledger.time.account import TimeAccount
from gpuledger.ledger.time.decision import Stretch
from gpuledger.ledger.time.split import DevicePart, Split, Splits
from gpuledger.model.devices import Gpu


@dataclass(frozen=True, slots=True)
class StoredGpuTime:
    """The stored time state of a Gpu.

    `posted` are all microseconds in its spans. `is_down` says that a loss began and has not ended under
    `epoch`. `pending` is watched time that was not decided yet; it is posted after a restart.
    """

    gpu: Gpu
    posted: int = 0
    epoch: Epoch = field(default_factory=Epoch)
    is_down: bool = False
    pending: tuple[Stretch, ...] = ()


def time_fields(stored: StoredGpuTime) -> dict[str, object]:
    """The state without its Gpu and what is posted, as JSON values."""
    return {
        "epoch": [stored.epoch.boot_id, stored.epoch.driver_load],
        "is_down": stored.is_down,
        "pending": [
            [
                one.begins,
                one.microseconds,
                _split_fields(one.splits.allocation),
                _split_fields(one.splits.residence),
                [[*part[:3], *part.share.as_integer_ratio()] for part in one.splits.parts],
            ]
            for one in stored.pending
        ],
    }


def time_from_fields(gpu: Gpu, posted: int, values: Mapping[str, Any]) -> StoredGpuTime:
    """The inverse of `time_fields`."""
    pending = tuple(
        Stretch(Splits(_split(allocation), _split(residence), _parts(parts)), begins, microseconds)
        for begins, microseconds, allocation, residence, parts in values["pending"]
    )
    return StoredGpuTime(gpu, posted, Epoch(*values["epoch"]), values["is_down"], pending)


def _split_fields(split: Split) -> list[object]:
    owners = [None if owner is None else owner_fields(owner) for owner in split.owners]
    accounts = [list(account) for account in split.accounts]
    return [accounts, list(split.numerators), split.denominator, owners]


def _split(values: Sequence[Any]) -> Split:
    accounts, numerators, denominator, owners = values
    return Split(
        tuple(_account(*one) for one in accounts),
        tuple(numerators),
        denominator,
        tuple(None if owner is None else owner_from_fields(owner) for owner in owners),
    )


def _parts(values: Sequence[Sequence[Any]]) -> tuple[DevicePart, ...]:
    return tuple(
        DevicePart(device, instance, profile, Fraction(numerator, denominator))
        for device, instance, profile, numerator, denominator in values
    )


def _account(
    account: str,
    instance: str,
    owner: Sequence[str],
    container: str,
    process: Sequence[Any] | None,
    is_estimate: bool,
) -> TimeAccount:
    key: Any = None if process is None else tuple(process)
    return TimeAccount(account, instance, tuple(owner), container, key, is_estimate)
