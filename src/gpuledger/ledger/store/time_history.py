"""Reads the time books: spans with the split of their microseconds, and the parts of Gpus."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

from gpuledger.ledger.report.gpu_time import GpuPart
from gpuledger.ledger.report.party import Party, party_of
from gpuledger.ledger.store.presence import UNKNOWN_PARTY
from gpuledger.ledger.store.rows import workload_from_text
from gpuledger.ledger.time.split import largest_remainder
from gpuledger.model.workload import UNKNOWN

if TYPE_CHECKING:
    from sqlite3 import Connection

# Splits, their entries and owners. Spans are read in the order of time: more would only remember those of
# long ago. Splits that follow one another have most entries in common.
_CACHED = 256
_SPANS = """
SELECT quarter, gpu, begins, ends, microseconds, split FROM time_spans
    WHERE quarter >= ? AND quarter < ? ORDER BY quarter, gpu, begins, number
"""


class SplitEntry(NamedTuple):
    """One account of a split: `part` is a number of `gpu_parts`.

    `session` is the Session of a process. `owner` is a number of `time_owners`, for an owner without one.
    Both are None for the Gpu's own accounts.
    """

    account: str
    part: int
    session: int | None
    owner: int | None
    is_estimate: bool


class StoredSplit:
    """The parts of a Gpu's time by account, for one basis, as stored."""

    __slots__ = ("_denominator", "_numerators", "entries")

    def __init__(self, entries: Sequence[Sequence[Any]], entry_of: Callable[..., SplitEntry]) -> None:
        """`entry_of` creates an entry, or returns an equal one."""
        self.entries = [
            entry_of(account, part, session, owner, bool(is_estimate))
            for _, account, part, session, owner, is_estimate in entries
        ]
        self._numerators = [one[0] for one in entries]
        self._denominator = sum(self._numerators)

    def shares(self, microseconds: int) -> Iterator[tuple[SplitEntry, int]]:
        """Whole microseconds by account; they sum to the total."""
        found = largest_remainder(self._numerators, self._denominator, microseconds)
        return zip(self.entries, found, strict=True)


class StoredSplits(NamedTuple):
    """The splits of the same second by each basis."""

    allocation: StoredSplit
    residence: StoredSplit

    def amounts(self, microseconds: int) -> dict[SplitEntry, list[int]]:
        """Microseconds by allocation and by residence, by account."""
        found: dict[SplitEntry, list[int]] = {}
        for basis, split in enumerate(self):
            for entry, amount in split.shares(microseconds):
                found.setdefault(entry, [0, 0])[basis] += amount
        return found


class TimeSpanEntry(NamedTuple):
    """Watched time of one Gpu with one split; times are unix microseconds.

    `amounts` are microseconds by allocation and by residence. They sum to `microseconds` by each basis.
    """

    quarter: int
    gpu: str
    begins: int
    ends: int
    microseconds: int
    amounts: dict[SplitEntry, list[int]]


class TimeReader:
    """Reads the time books of one connection. Raises sqlite3.Error."""

    def __init__(
        self, connection: Connection, session: Callable[[int], Party], missing: Party = UNKNOWN_PARTY
    ) -> None:
        """`session` returns the party of a Session's number; `missing` is that of owners without a row."""
        self._connection = connection
        self._session = session
        # The caches do not refer to the reader, so that it is freed when its user is done.
        self.split = lru_cache(_CACHED)(partial(_read_split, connection, lru_cache(_CACHED)(SplitEntry)))
        self.part = lru_cache(None)(partial(_read_part, connection))
        self._owner = lru_cache(_CACHED)(partial(_read_owner, connection, missing))

    def spans(self, since: int, until: int) -> Iterator[TimeSpanEntry]:
        """The spans of the quarters from `since` to before `until`, in order."""
        for quarter, gpu, begins, ends, microseconds, number in self._connection.execute(
            _SPANS, (since, until)
        ):
            amounts = self.split(number).amounts(microseconds)
            yield TimeSpanEntry(quarter, gpu, begins, ends, microseconds, amounts)

    def entry_party(self, session: int | None, owner: int | None) -> Party | None:
        """The party of a split's entry; None for the Gpu's own accounts."""
        if session is not None:
            return self._session(session)
        return None if owner is None else self._owner(owner)


def _read_split(connection: Connection, entry_of: Callable[..., SplitEntry], number: int) -> StoredSplits:
    query = "SELECT split FROM time_splits WHERE number = ?"
    ((text,),) = connection.execute(query, (number,)).fetchall()
    allocation, residence = json.loads(text)
    by_allocation = StoredSplit(allocation, entry_of)
    by_residence = by_allocation if residence is None else StoredSplit(residence, entry_of)
    return StoredSplits(by_allocation, by_residence)


def _read_part(connection: Connection, number: int) -> GpuPart:
    query = "SELECT part FROM gpu_parts WHERE number = ?"
    ((text,),) = connection.execute(query, (number,)).fetchall()
    gpu, model, instance, profile, numerator, denominator = json.loads(text)
    return GpuPart(gpu, model, instance, profile, Fraction(numerator, denominator))


def _read_owner(connection: Connection, missing: Party, number: int) -> Party:
    """The party of a row of `time_owners`."""
    query = "SELECT device, owner, command FROM time_owners WHERE number = ?"
    row = connection.execute(query, (number,)).fetchone()
    if row is None:
        return missing
    device, text, command = row
    return party_of(device, workload_from_text(text) or UNKNOWN, command)
