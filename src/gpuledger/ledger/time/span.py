"""Spans of time: consecutive stretches of a Gpu with the same split, cut at each quarter of an hour.

A span's whole microseconds are split as one number, so that a closed span is its split exactly, whatever the
ticks were. A posting is the difference to the split at the posting before. A difference can be -1 for one
account while it is higher for another: an exported counter keeps its value until it is exceeded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from gpuledger.ledger.time.account import TimeAccount
from gpuledger.ledger.time.split import Split, Splits
from gpuledger.ledger.watched_time import CLOCK_STEP, MICRO, QUARTER
from gpuledger.model.devices import Gpu
from gpuledger.model.session import ALLOCATION

# All offsets of time zones are multiples of this, so that full hours of any zone are sums of spans.
QUARTER_MICROSECONDS = QUARTER * MICRO
_CLOCK_STEP = round(CLOCK_STEP * MICRO)


@dataclass(slots=True)
class TimeSpan:
    """A stretch of one Gpu's watched time with one split by each basis.

    `begins` and `ends` are unix microseconds. `microseconds` is the watched time by the source's clock,
    because unix time can be set meanwhile. `amounts` are the current shares by basis, in the order of the
    split's accounts.
    """

    number: int
    gpu: Gpu
    splits: Splits
    begins: int
    ends: int
    microseconds: int = 0
    amounts: tuple[list[int], list[int]] = field(init=False)

    def __post_init__(self) -> None:
        self.amounts = ([0] * len(self.splits.allocation.accounts), [0] * len(self.splits.residence.accounts))

    def split(self, basis: str) -> Split:
        """The split by a basis."""
        return self.splits.allocation if basis == ALLOCATION else self.splits.residence

    def shares(self, basis: str) -> Mapping[TimeAccount, int]:
        """Whole microseconds by account; they sum to `microseconds`."""
        amounts = self.amounts[basis != ALLOCATION]
        return dict(zip(self.split(basis).accounts, amounts, strict=True))

    def extend(self, ends: int, microseconds: int) -> TimePosting:
        """Add watched time; return the differences."""
        self.ends = ends
        self.microseconds += microseconds
        before, splits = self.amounts, self.splits
        by_allocation = splits.allocation.shares(self.microseconds)
        is_same = splits.residence is splits.allocation
        by_residence = by_allocation if is_same else splits.residence.shares(self.microseconds)
        self.amounts = (by_allocation, by_residence)
        allocation = [now - then for now, then in zip(by_allocation, before[0], strict=True)]
        residence = (
            allocation if is_same else [now - then for now, then in zip(by_residence, before[1], strict=True)]
        )
        return TimePosting(self, microseconds, allocation, residence)


class TimePosting(NamedTuple):
    """Watched time that one tick added to a span.

    `allocation` and `residence` are differences in whole microseconds, in the order of the split's accounts;
    each sums to `microseconds`.
    """

    span: TimeSpan
    microseconds: int
    allocation: list[int]
    residence: list[int]

    @property
    def gpu(self) -> Gpu:
        """The Gpu."""
        return self.span.gpu

    def changes(self, basis: str) -> Mapping[TimeAccount, int]:
        """The differences by account."""
        amounts = self.allocation if basis == ALLOCATION else self.residence
        return dict(zip(self.span.split(basis).accounts, amounts, strict=True))


class TimeSpanRecorder:
    """The open span of each Gpu, by uuid. A span that is no longer open is final."""

    def __init__(self, next_number: int = 1) -> None:
        self.next_number = next_number
        self._open: dict[str, TimeSpan] = {}

    def close(self, uuid: str) -> None:
        """Begin a new span for this Gpu from now on."""
        self._open.pop(uuid, None)

    def post(self, gpu: Gpu, splits: Splits, begins: int, microseconds: int) -> list[TimePosting]:
        """Add a stretch of watched time that began at `begins` (unix microseconds)."""
        posted, ends = [], begins + microseconds
        while begins < ends:
            until = min(ends, (begins // QUARTER_MICROSECONDS + 1) * QUARTER_MICROSECONDS)
            posted.append(self._span(gpu, splits, begins).extend(until, until - begins))
            begins = until
        return posted

    def _span(self, gpu: Gpu, splits: Splits, begins: int) -> TimeSpan:
        span = self._open.get(gpu.uuid)
        if span is None or not _continues(span, splits, begins):
            span = self._open[gpu.uuid] = TimeSpan(self.next_number, gpu, splits, begins, begins)
            self.next_number += 1
        return span


def _continues(span: TimeSpan, splits: Splits, begins: int) -> bool:
    if span.splits is not splits and span.splits != splits:
        return False
    return (
        span.begins // QUARTER_MICROSECONDS == begins // QUARTER_MICROSECONDS
        and abs(begins - span.ends) <= _CLOCK_STEP
    )
