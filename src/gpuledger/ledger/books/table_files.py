"""Writes and reads one table of an exported ledger as CSV or Parquet.

In Python, a row is a tuple in the order of the columns; times are unix microseconds.
"""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple, TextIO

from gpuledger.ledger.books.layout import BOOLEAN, BYTES, INTEGER, TEXT, TIME, ExportColumn
from gpuledger.model.errors import missing_package_error

CSV, PARQUET = "csv", "parquet"
FORMATS: Final = (PARQUET, CSV)
Row = Sequence[Any]

_BATCH = 20_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class WrittenTable(NamedTuple):
    """What was written: the number of rows, and a hash of their values, the same in each format."""

    rows: int
    content: str


def write_table(file: Path, form: str, columns: Sequence[ExportColumn], rows: Iterable[Row]) -> WrittenTable:
    """Write the rows to a new file. Raises OSError, and UsageError if the package pyarrow is missing."""
    digest = hashlib.sha256()
    count = 0

    def counted() -> Iterator[Row]:
        nonlocal count
        for row in rows:
            count += 1
            digest.update(json.dumps([_plain(value) for value in row]).encode() + b"\n")
            yield row

    (_write_parquet if form == PARQUET else _write_csv)(file, columns, counted())
    return WrittenTable(count, digest.hexdigest())


def read_table(file: Path, form: str, columns: Sequence[ExportColumn]) -> Iterator[Row]:
    """The rows of a file. A column that a later version added is empty.

    Raises OSError, ValueError or KeyError for a malformed file, and UsageError if pyarrow is missing.
    """
    return (_read_parquet if form == PARQUET else _read_csv)(file, columns)


def require_format(form: str) -> None:
    """Raise UsageError if the format needs a package that is not installed."""
    if form == PARQUET:
        _parquet()


def iso_time(microseconds: int) -> str:
    """A time in UTC, as in 2026-10-01T00:00:00Z."""
    text = (_EPOCH + timedelta(microseconds=microseconds)).isoformat()
    return text.removesuffix("+00:00") + "Z"


def _time_from_iso(text: str) -> int:
    return (datetime.fromisoformat(text) - _EPOCH) // timedelta(microseconds=1)


def _plain(value: Any) -> Any:
    return value.hex() if isinstance(value, bytes) else value


_TO_CSV: dict[str, Callable[[Any], object]] = {
    TIME: iso_time,
    BOOLEAN: lambda value: "true" if value else "false",
    BYTES: bytes.hex,
}
_FROM_CSV: dict[str, Callable[[str], Any]] = {
    INTEGER: int,
    TIME: _time_from_iso,
    BOOLEAN: {"true": True, "false": False}.__getitem__,
    BYTES: bytes.fromhex,
}


class _UnixLines:
    """Ends the lines of a text file with a line feed alone."""

    def __init__(self, opened: TextIO) -> None:
        self._opened = opened

    def write(self, line: str) -> int:
        """Write one line."""
        return self._opened.write(line.removesuffix("\r\n") + "\n")


def _write_csv(file: Path, columns: Sequence[ExportColumn], rows: Iterable[Row]) -> None:
    changes = [_TO_CSV.get(column.kind) for column in columns]
    with file.open("w", encoding="utf-8", newline="") as opened:
        # With this terminator, the writer quotes texts with a carriage return as well.
        writer = csv.writer(_UnixLines(opened), lineterminator="\r\n")
        writer.writerow(column.name for column in columns)
        for row in rows:
            writer.writerow(
                value if value is None or change is None else change(value)
                for value, change in zip(row, changes, strict=True)
            )


def _read_csv(file: Path, columns: Sequence[ExportColumn]) -> Iterator[Row]:
    with file.open(encoding="utf-8", newline="") as opened:
        reader = csv.reader(opened)
        places = {name: place for place, name in enumerate(next(reader, ()))}
        found = [(places.get(column.name), _FROM_CSV.get(column.kind)) for column in columns]
        for words in reader:
            yield tuple(_from_csv("" if place is None else words[place], parse) for place, parse in found)


def _from_csv(text: str, parse: Callable[[str], Any] | None) -> Any:
    if parse is None:
        return text
    return parse(text) if text else None


def _parquet() -> tuple[Any, Any]:
    """The modules pyarrow and pyarrow.parquet."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        hint = "files of books export --format csv need no package"
        raise missing_package_error("Parquet", "pyarrow", "parquet", hint) from None
    return pyarrow, pyarrow.parquet


def _write_parquet(file: Path, columns: Sequence[ExportColumn], rows: Iterable[Row]) -> None:
    arrow, parquet = _parquet()
    kinds = {
        INTEGER: arrow.int64(),
        TEXT: arrow.string(),
        TIME: arrow.timestamp("us", tz="UTC"),
        BOOLEAN: arrow.bool_(),
        BYTES: arrow.binary(),
    }
    schema = arrow.schema([(column.name, kinds[column.kind]) for column in columns])
    source = iter(rows)
    with parquet.ParquetWriter(file, schema, compression="zstd") as writer:
        while batch := list(islice(source, _BATCH)):
            arrays = [
                arrow.array(values, type=field.type)
                for values, field in zip(zip(*batch, strict=True), schema, strict=True)
            ]
            writer.write_table(arrow.Table.from_arrays(arrays, schema=schema))


def _read_parquet(file: Path, columns: Sequence[ExportColumn]) -> Iterator[Row]:
    arrow, parquet = _parquet()
    try:
        with parquet.ParquetFile(file) as opened:
            known = set(opened.schema_arrow.names)
            wanted = [column for column in columns if column.name in known]
            for batch in opened.iter_batches(_BATCH, columns=[column.name for column in wanted]):
                values = {column.name: _values(arrow, batch, column) for column in wanted}
                missing = {TEXT: [""] * batch.num_rows}
                unknown: list[Any] = [None] * batch.num_rows
                yield from zip(
                    *(values.get(one.name, missing.get(one.kind, unknown)) for one in columns), strict=True
                )
    except arrow.ArrowException as error:
        raise ValueError(str(error)) from None


def _values(arrow: Any, batch: Any, column: ExportColumn) -> list[Any]:
    found = batch.column(column.name)
    if column.kind == TIME:
        found = found.cast(arrow.int64())
    values: list[Any] = found.to_pylist()
    return values
