"""The manifest of an exported ledger: what the export is of, and hashes by which damage is found."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, get_args, get_origin, get_type_hints

from gpuledger.ledger.books.layout import LAYOUT_VERSION, TABLES
from gpuledger.ledger.books.table_files import FORMATS
from gpuledger.ledger.watched_time import QUARTER
from gpuledger.model.errors import GpuledgerError

MANIFEST_NAME: Final = "manifest.json"
_HASH = "sha256"
_LONGEST = 16 * 1024 * 1024
_BOOKS: Final = re.compile(r"[0-9a-f]{32}")
# The unix seconds of the last time that a date can have.
_LATEST: Final = 253_402_300_799
_AGAIN = "take another copy; or move its directory away, and export that time again or do without it"


@dataclass(frozen=True, slots=True)
class TableFacts:
    """A table's file. `content` is the hash of its rows, the same as CSV and as Parquet."""

    rows: int
    bytes: int
    sha256: str
    content: str


@dataclass(frozen=True, slots=True)
class GpuTotals:
    """The sums of one Gpu, by which a program that reads the tables can check its own.

    `first_seen` and `last_seen` are unix microseconds within the range, None if it was not seen there.
    """

    watched_microseconds: int = 0
    millijoules: int = 0
    first_seen: int | None = None
    last_seen: int | None = None

    def continues(self, earlier: GpuTotals) -> bool:
        """Whether these can be the sums of a range that begins with that of `earlier`."""
        return (
            self.watched_microseconds >= earlier.watched_microseconds
            and self.millijoules >= earlier.millijoules
            and self.first_seen == earlier.first_seen
        )

    def is_seen_with(self, other: GpuTotals) -> bool:
        """Whether both were seen in the same time."""
        ends = (self.first_seen, self.last_seen, other.first_seen, other.last_seen)
        if None in ends:
            return False
        first, last, other_first, other_last = (end or 0 for end in ends)
        return first < other_last and other_first < last


@dataclass(frozen=True, slots=True)
class Manifest:
    """An export of the ledger `books` on `node`: the unix seconds from `begins` to before `ends`.

    The ledger has data from `first` on; `last` is the time of the last posting in the range. It is `complete`
    if the ledger continues after it, so that another export of this range has nothing to add.
    `time_books_from` is the first time with time books, `activity_from` that from which it is known in which
    seconds activity was unknown, `begun` the ledger's first posting; all in unix seconds. `time_zone` is that
    of hours that were folded in the ledger.
    """

    books: str
    node: str
    host: str
    begins: int
    ends: int
    first: int
    last: float
    complete: bool
    time_zone: str
    time_books_from: int | None
    activity_from: float
    begun: float | None
    is_simulated: bool
    version: str
    schema: int
    format: str
    tables: Mapping[str, TableFacts] = field(default_factory=dict)
    totals: Mapping[str, GpuTotals] = field(default_factory=dict)

    @property
    def quarters(self) -> tuple[int, int]:
        """The first quarter, and the one after the last."""
        return self.begins // QUARTER, -(-self.ends // QUARTER)

    @property
    def content(self) -> tuple[object, ...]:
        """What two exports of the same range have in common if they are equal."""
        tables = tuple(sorted((name, one.rows, one.content) for name, one in self.tables.items()))
        return self.books, self.node, self.begins, self.ends, self.complete, tables

    def overlaps(self, other: Manifest) -> bool:
        """Whether both have a part of the same time of the same ledger."""
        return self.books == other.books and self.begins < other.ends and other.begins < self.ends


def file_name(table: str, form: str) -> str:
    """The name of a table's file."""
    return f"{table}.{form}"


def file_hash(file: Path) -> str:
    """The SHA-256 of a file. Raises OSError."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest, with its own hash. Raises OSError."""
    values = {"gpuledger_export": LAYOUT_VERSION, **asdict(manifest)}
    text = json.dumps({**values, _HASH: _hash_of(values)}, indent=2, ensure_ascii=False)
    (folder / MANIFEST_NAME).write_text(f"{text}\n", encoding="utf-8")


def read_manifest(file: Path) -> Manifest:
    """Read a manifest. Raises GpuledgerError if it is damaged, changed or of a later version."""
    try:
        if file.stat().st_size > _LONGEST:
            raise ValueError("too large")
        values = json.loads(file.read_text(encoding="utf-8"))
        version = values.pop("gpuledger_export")
        if version > LAYOUT_VERSION:
            raise GpuledgerError(
                f"{file} was written by a later version of gpuledger (layout {version}, this one reads "
                f"{LAYOUT_VERSION}): upgrade this one"
            )
        known = values.pop(_HASH)
        found = _from_values(values)
    except OSError as error:
        raise GpuledgerError(f"cannot read {file}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise GpuledgerError(
            f"{file} is no manifest of an exported ledger, or damaged ({type(error).__name__}: {error}): "
            f"{_AGAIN}"
        ) from None
    if known != _hash_of({"gpuledger_export": version, **values}):
        raise GpuledgerError(f"{file} was changed after the export (its hash differs): {_AGAIN}")
    return found


def verify_tables(folder: Path, manifest: Manifest) -> None:
    """Raise GpuledgerError for the first file that is missing, truncated or changed."""
    for name, facts in manifest.tables.items():
        file = folder / file_name(name, manifest.format)
        try:
            size = file.stat().st_size
            if size == facts.bytes and file_hash(file) == facts.sha256:
                continue
        except FileNotFoundError:
            raise GpuledgerError(f"{file} is missing: {_AGAIN}") from None
        except OSError as error:
            raise GpuledgerError(f"cannot read {file}: {error.strerror}") from None
        what = "not the content" if size == facts.bytes else f"{size:,} bytes, not the {facts.bytes:,}"
        raise GpuledgerError(f"{file} is damaged: it has {what} that its manifest says: {_AGAIN}")


def _from_values(values: dict[str, Any]) -> Manifest:
    tables = {name: TableFacts(**facts) for name, facts in values["tables"].items()}
    totals = {gpu: GpuTotals(**facts) for gpu, facts in values["totals"].items()}
    found = Manifest(**{**values, "tables": tables, "totals": totals})
    every: list[Manifest | TableFacts | GpuTotals] = [found, *tables.values(), *totals.values()]
    for facts in every:
        _require_types(facts)
    if not _BOOKS.fullmatch(found.books):
        raise ValueError("its id of the ledger is none")
    if set(tables) != set(TABLES):
        raise ValueError(f"it has the tables {', '.join(sorted(tables))}")
    if found.format not in FORMATS:
        raise ValueError(f"its format is {found.format}")
    if not 0 <= found.begins < found.ends <= _LATEST or found.begins % QUARTER or found.ends % QUARTER:
        raise ValueError("its range is empty, or not of quarters of an hour")
    if not all(0 <= unix <= _LATEST for unix in (found.first, found.last)):
        raise ValueError("its times are out of range")
    return found


def _require_types(facts: Manifest | TableFacts | GpuTotals) -> None:
    """Raise ValueError unless each value has its declared type."""
    for name, hint in get_type_hints(type(facts)).items():
        kinds = get_args(hint) or (hint,)
        value = getattr(facts, name)
        if get_origin(hint) is Mapping or type(value) in kinds or (type(value) is int and float in kinds):
            continue
        raise ValueError(f"its {name} is {value!r:.60}")


def _hash_of(values: Mapping[str, object]) -> str:
    text = json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    # Half a character, which no export has, must not raise: the manifest was changed.
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()
