"""The lists of an explanation: read as streams, of which only the sums and the largest lines are kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from heapq import heappush, heappushpop
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from gpuledger.ledger.energy.booking import MEASURED
from gpuledger.ledger.report.charges import Rate
from gpuledger.ledger.report.explain_amounts import ExactAmount
from gpuledger.ledger.report.explain_intervals import Interval, SpreadLine, TimeInterval
from gpuledger.ledger.report.explain_rounding import ListColumn, RoundedPart, settle_column

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)
# Rounded amounts of a line by column.
Cells = Mapping[str, Decimal]


class Sums(Protocol[T_contra]):
    """The sums of the lines of a list."""

    def add(self, line: T_contra, /) -> int:
        """Add a line. Return the amount by which lines are compared."""


class ChargeSums:
    """Amounts by rate."""

    def __init__(self) -> None:
        # Rates are cached, so that their identity is enough; their hashes are slow.
        self._sums: dict[int, tuple[Rate, list[int]]] = {}

    def add(self, rate: Rate | None, amount: int) -> None:
        """Add an amount, unless it has no rate."""
        if rate is not None:
            self._sums.setdefault(id(rate), (rate, [0]))[1][0] += amount

    def by_rate(self) -> Counter[Rate]:
        """The sums."""
        found: Counter[Rate] = Counter()
        for rate, (amount,) in self._sums.values():
            found[rate] += amount
        return found


class EnergySums:
    """The energy of intervals, in millijoules: all, by method, by rate, and both bounds."""

    def __init__(self) -> None:
        self.millijoules = 0
        self.high = 0
        self.methods: Counter[str] = Counter()
        self.charges = ChargeSums()

    @property
    def measured(self) -> int:
        """Energy that needed no model."""
        return self.methods[MEASURED]

    def add(self, line: Interval) -> int:
        """Add an interval."""
        self.millijoules += line.millijoules
        self.high += line.high or 0
        self.methods[line.method] += line.millijoules
        self.charges.add(line.rate, line.millijoules)
        return line.millijoules


class TimeSums:
    """The GPU time of intervals, in microseconds: all, and by rate."""

    def __init__(self) -> None:
        self.microseconds = 0
        self.charges = ChargeSums()

    def add(self, line: TimeInterval) -> int:
        """Add an interval."""
        self.microseconds += line.microseconds
        self.charges.add(line.rate, line.microseconds)
        return line.microseconds


class SpreadSums:
    """Spread lines need no sums: each is a difference of sums."""

    def add(self, line: SpreadLine) -> int:
        """Return the amount."""
        return line.amount


class _Kept(NamedTuple, Generic[T]):
    """A line that is kept, in the order of `amount`, of equal ones the later first."""

    amount: int
    place: int
    line: T
    parts: Sequence[tuple[str, RoundedPart]]


class StoredList(Generic[T]):
    """Lines that the ledger selects. `count` is the number of all lines, `omitted` of those not shown."""

    def __init__(self, count: int, read: Callable[[], Iterable[T]], omitted: int = 0) -> None:
        self.count, self.omitted = count, omitted
        self._read = read

    def __iter__(self) -> Iterator[T]:
        return iter(self._read())


class StreamedList(Generic[T]):
    """A list that may be too long to keep: its largest lines in their order, or all, read a second time.

    `count` is the number of all lines. `totals` are the rounded sums of all lines, by column.
    """

    def __init__(
        self,
        read: Callable[[], Iterable[T]],
        sums: Sums[T],
        amounts: Callable[[T], Iterable[ExactAmount]],
        digits: Mapping[str, int],
        limit: int = 0,
    ) -> None:
        """Read the list once. `limit` is the number of lines to keep; 0: all are read again.

        `digits` are those of the columns; other amounts are left out.
        """
        self._read, self._amounts, self._limit = read, amounts, limit
        self._columns = {name: ListColumn(number) for name, number in digits.items()}
        self.count = 0
        self.totals: Cells = {}
        kept: list[_Kept[T]] = []
        for line in read():
            self.count += 1
            one = _Kept(sums.add(line), -self.count, line, self._parts(line))
            if not limit:
                continue
            if len(kept) < limit:
                heappush(kept, one)
            elif one > kept[0]:
                heappushpop(kept, one)
        self._kept = sorted(kept, key=lambda one: -one.place)

    def __iter__(self) -> Iterator[T]:
        """The lines that are shown."""
        return (one.line for one in self._kept) if self._limit else iter(self._read())

    def rounded(self) -> Iterator[tuple[T, Cells]]:
        """The lines that are shown with their rounded amounts. Call `settle` before; read it once."""
        shown = ((one.line, one.parts) for one in self._kept)
        for line, parts in shown if self._limit else ((one, self._parts(one)) for one in self._read()):
            columns = self._columns
            yield line, {name: columns[name].number(part) for name, part in parts if name in columns}

    def _parts(self, line: T) -> list[tuple[str, RoundedPart]]:
        columns = self._columns
        return [
            (name, columns[name].add(numerator, denominator))
            for name, numerator, denominator in self._amounts(line)
            if name in columns
        ]

    @staticmethod
    def settle(lists: Sequence[StreamedList[Any]], numbers: Mapping[str, Decimal | None]) -> None:
        """Round the amounts of the lists of one row so that each column sums to the row's number.

        Columns without a number are left out, except costs.
        """
        for name in {name for one in lists for name in one._columns}:
            if numbers.get(name) is None and not name.endswith("cost"):
                for one in lists:
                    one._columns.pop(name, None)
                continue
            having = [one for one in lists if name in one._columns and one._columns[name].remainders]
            if having:
                columns = [one._columns[name] for one in having]
                for one, total in zip(having, settle_column(columns, numbers.get(name)), strict=True):
                    one.totals = {**one.totals, name: total}


class ShownLines(Generic[T]):
    """The lines of a list that are shown, with their rounded amounts; and the sums of those read so far."""

    def __init__(self, lines: StreamedList[T], amount: Callable[[T], int]) -> None:
        self._lines, self._amount = lines, amount
        self.count = 0
        self.amount = 0
        self._read: dict[str, Decimal] = {}

    def __iter__(self) -> Iterator[tuple[T, Cells]]:
        for line, cells in self._lines.rounded():
            self.count += 1
            self.amount += self._amount(line)
            for name, number in cells.items():
                self._read[name] = self._read.get(name, Decimal(0)) + number
            yield line, cells

    @property
    def omitted(self) -> Cells:
        """The rounded sums of the lines that have not been read."""
        return {name: total - self._read.get(name, Decimal(0)) for name, total in self._lines.totals.items()}
