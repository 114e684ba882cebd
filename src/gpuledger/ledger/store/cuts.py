"""Finds the quarters at which all rows of a ledger are cut: a range between two cuts has whole rows only."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gpuledger.ledger.store.hour_cells import CellBounds
from gpuledger.ledger.watched_time import QUARTERS_PER_HOUR

if TYPE_CHECKING:
    from sqlite3 import Connection

_FOLDED = ("hours", "hour_times", "hour_gpu_time")
_CELL = """
SELECT begin, (SELECT min(quarter) FROM {0} WHERE quarter > begin) FROM
    (SELECT max(quarter) AS begin FROM {0} WHERE quarter <= ?)
"""


class _Cell(NamedTuple):
    """Quarters that rows cover as a whole."""

    begins: int
    ends: int


class Cuts(NamedTuple):
    """The cuts of one ledger, with its hours.

    `time_from` is the first quarter in which energy spans are cut at quarters.
    """

    connection: Connection
    time_from: int | None
    hours: CellBounds

    def around(self, quarter: int) -> tuple[int, int]:
        """The nearest cuts at or before a quarter, and at or after it. Raises sqlite3.Error."""
        before = quarter
        while (cell := self._cell_around(before)) is not None:
            before = cell.begins
        return before, self.after(quarter)

    def after(self, quarter: int) -> int:
        """The nearest cut at or after a quarter. Raises sqlite3.Error."""
        after = quarter
        while (cell := self._cell_around(after)) is not None:
            after = cell.ends
        return after

    def _cell_around(self, quarter: int) -> _Cell | None:
        """The cell that begins before a quarter and ends after it."""
        for table in _FOLDED:
            cell = self._folded_cell(table, quarter)
            if cell is not None and quarter < cell.ends:
                return cell
        cell = self._early_cell(quarter)
        return cell if cell is not None and cell.begins < quarter < cell.ends else None

    def _folded_cell(self, table: str, quarter: int) -> _Cell | None:
        """The last folded hour of a table, if it begins before a quarter; it ends before the next one."""
        begins, following = self.connection.execute(_CELL.format(table), (quarter,)).fetchone()
        if begins is None or begins == quarter:
            return None
        ends = self.hours.ends(begins)
        return _Cell(begins, ends if following is None else min(ends, following))

    def _early_cell(self, quarter: int) -> _Cell | None:
        """The unix hour of a quarter if a version without time books wrote energy spans in it."""
        begins = quarter - quarter % QUARTERS_PER_HOUR
        if self.time_from is not None and quarter > self.time_from:
            return None
        query = "SELECT 1 FROM spans WHERE quarter = ? LIMIT 1"
        if self.connection.execute(query, (begins,)).fetchone() is None:
            return None
        ends = begins + QUARTERS_PER_HOUR
        return _Cell(begins, ends if self.time_from is None else min(ends, self.time_from + 1))
