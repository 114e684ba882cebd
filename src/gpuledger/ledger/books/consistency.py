"""Checks a ledger file: its structure, references between its rows, and the laws of time and energy.

Read-only, also while `gpuledger serve` writes: all queries see one snapshot.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from gpuledger.host.time_zone import named_time_zone
from gpuledger.ledger.store.read_only_file import open_read_only
from gpuledger.ledger.store.schema import APPLICATION_ID, BOOKS_ID, EARLIER_ZONES, MIGRATIONS, ZONE
from gpuledger.ledger.watched_time import MICRO, QUARTER, unpack_seconds
from gpuledger.model.errors import GpuledgerError

# Lines about rows of one kind; the others are counted.
_MOST = 5
_RESTORE: Final = "restore the last backup (`gpuledger books backup`), or keep the file and start a new one"
_RECOVER: Final = (
    "stop `gpuledger serve`, save the file, and restore the last backup; without one, `sqlite3 FILE "
    ".recover` on a copy saves what is readable"
)
_LOST: Final = (
    "its time and energy count without a name; if the log has no 'lost sessions' (a full disk), restore the "
    "last backup"
)
_OVERLAP: Final = "harmless if the clock was set back then, or the file could not be written for long"
_REPORTED: Final = (
    "amounts of other rows are not affected; keep the file for a bug report, and restore a backup from before"
)


class LedgerProblem(NamedTuple):
    """What is wrong, and the remedy. `is_note`: it can have a harmless cause, and is no failure."""

    text: str
    remedy: str
    is_note: bool = False

    def __str__(self) -> str:
        return f"{self.text}: {self.remedy}"


class _Reference(NamedTuple):
    """Rows of a table that must exist in another: a query for those missing, with what to call them."""

    what: str
    query: str
    remedy: str = _RESTORE


_REFERENCES = (
    _Reference(
        "an energy span without the session {} that has a share of it",
        "SELECT DISTINCT session FROM shares JOIN spans ON number = span"
        " WHERE session NOT IN (SELECT number FROM sessions)",
        _LOST,
    ),
    _Reference(
        "shares of the energy span {}, which is missing",
        "SELECT DISTINCT span FROM shares WHERE span NOT IN (SELECT number FROM spans)",
    ),
    _Reference(
        "the session {} without its usage", "SELECT number FROM sessions EXCEPT SELECT number FROM usage"
    ),
    _Reference(
        "the usage of the session {}, which is missing",
        "SELECT number FROM usage EXCEPT SELECT number FROM sessions",
    ),
    _Reference(
        "a folded hour of energy ({}) of a party that is missing",
        "SELECT DISTINCT hours.number FROM hour_shares JOIN hours USING (number)"
        " WHERE party NOT IN (SELECT number FROM parties)",
    ),
    _Reference(
        "shares of the folded hour {}, which is missing",
        "SELECT DISTINCT number FROM hour_shares WHERE number NOT IN (SELECT number FROM hours)",
    ),
    _Reference(
        "folded presence of the party {}, which is missing",
        "SELECT DISTINCT party FROM hour_times WHERE party NOT IN (SELECT number FROM parties)",
    ),
    _Reference(
        "folded GPU time of the party {}, which is missing",
        "SELECT DISTINCT party FROM hour_gpu_time WHERE party > 0"
        " AND party NOT IN (SELECT number FROM parties)",
    ),
    _Reference(
        "folded GPU time of the part {} of a GPU, which is missing",
        "SELECT DISTINCT part FROM hour_gpu_time WHERE part NOT IN (SELECT number FROM gpu_parts)",
    ),
    _Reference(
        "a time span with the split {}, which is missing",
        "SELECT DISTINCT split FROM time_spans WHERE split NOT IN (SELECT number FROM time_splits)",
    ),
    _Reference(
        "usage of the presence {}, which is missing",
        "SELECT DISTINCT period FROM usage_quarters WHERE period NOT IN (SELECT number FROM usage_periods)"
        " UNION SELECT DISTINCT period FROM usage_hours"
        " WHERE period NOT IN (SELECT number FROM usage_periods)",
        _LOST,
    ),
    _Reference(
        "the GPU {} in the accounts, which is not in the list of devices",
        "SELECT uuid FROM gpus UNION SELECT uuid FROM gpu_times UNION SELECT gpu FROM time_spans"
        " UNION SELECT uuid FROM spans EXCEPT SELECT uuid FROM devices",
    ),
)
_COLUMNS_WITH_JSON = (
    ("time_splits", "split", "number"),
    ("time_owners", "owner", "number"),
    ("gpu_parts", "part", "number"),
    ("gpu_times", "state", "uuid"),
    ("parties", "who", "number"),
    ("handovers", "owner", "number"),
    ("usage_periods", "owner", "number"),
    ("host_periods", "owner", "number"),
    ("sessions", "labels", "number"),
)
_ENERGY = """
SELECT uuid, life, idle + unattributed + unobserved
    + coalesce((SELECT sum(millijoules) FROM shares WHERE span = number), 0) FROM spans
UNION ALL SELECT uuid, life, idle + unattributed + unobserved
    + coalesce((SELECT sum(millijoules) FROM hour_shares WHERE number = hours.number), 0) FROM hours
UNION ALL SELECT uuid, life, millijoules FROM forgotten
"""
_EPOCHS = "SELECT uuid, life, booked - opening FROM {} WHERE opening IS NOT NULL"
_POSTED = """
SELECT uuid, posted + coalesce(microseconds, 0) - forgotten, span IS NOT NULL AND number IS NULL
    FROM gpu_times LEFT JOIN time_spans ON number = span
"""
_FOLDED = """
SELECT quarter, gpu_parts.part, sum(allocation), sum(residence) FROM hour_gpu_time
    JOIN gpu_parts ON gpu_parts.number = hour_gpu_time.part GROUP BY quarter, gpu_parts.part
"""
_DETAIL = "SELECT gpu, quarter, sum(microseconds) FROM time_spans GROUP BY gpu, quarter"
_TIME_SPANS = "SELECT number, gpu, quarter, begins, ends, microseconds FROM time_spans ORDER BY gpu, number"
# Microseconds by which a span can be watched for longer than its ends are apart: the clock is slewed or set.
# It can be watched for less: spans that could not be stored for long are summed.
_SLEWED = 5 * MICRO


def check_ledger(file: Path) -> Iterator[LedgerProblem]:
    """All problems of a ledger file. Raises GpuledgerError if it cannot be opened, or is no ledger."""
    with closing(open_read_only(file)) as connection:
        try:
            yield from _check(connection)
        except (sqlite3.Error, ValueError, TypeError, OverflowError) as error:
            yield LedgerProblem(f"{file.name} cannot be read further ({error})", _RECOVER)


def _check(connection: sqlite3.Connection) -> Iterator[LedgerProblem]:
    found = list(_structure(connection))
    yield from found
    if any(not one.is_note for one in found):
        # Queries on damaged pages or missing tables find nothing certain.
        return
    found = [*_references(connection), *_texts(connection)]
    yield from found
    if any("JSON" in one.text or "split" in one.text for one in found):
        return
    yield from _bases(connection)
    yield from _time_law(connection)
    yield from _energy_law(connection)
    yield from _order(connection)


def _structure(connection: sqlite3.Connection) -> Iterator[LedgerProblem]:
    (identity,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if identity != APPLICATION_ID:
        raise GpuledgerError("the file is an SQLite database, but not a gpuledger ledger")
    damage = [text for (text,) in connection.execute(f"PRAGMA integrity_check({_MOST})")]
    if damage != ["ok"]:
        yield from (LedgerProblem(f"SQLite: {' '.join(text.split())}", _RECOVER) for text in damage)
        return
    if version != len(MIGRATIONS):
        older = "start `gpuledger serve` of this version once to upgrade it"
        newer = "check it with the gpuledger version that wrote it"
        yield LedgerProblem(
            f"the schema is {version}, and this version has {len(MIGRATIONS)}",
            older if version < len(MIGRATIONS) else newer,
        )
        return
    meta: dict[str, Any] = dict(connection.execute("SELECT key, value FROM meta"))
    if BOOKS_ID not in meta:
        text = "the ledger has no id, which exports and backups need"
        yield LedgerProblem(text, "start `gpuledger serve` of this version once", is_note=True)
    earlier = [name for _, name in json.loads(str(meta.get(EARLIER_ZONES, "[]")))]
    for name in dict.fromkeys((str(meta.get(ZONE, "UTC")), *earlier)):
        if not _is_zone(name):
            text = f"the time zone {name} of folded hours is not known on this machine"
            yield LedgerProblem(
                text, "install tzdata: reports cut these hours by the machine's zone", is_note=True
            )


def _is_zone(name: str) -> bool:
    try:
        named_time_zone(name)
    except ValueError:
        # Zones without a name of the database are those of the machine.
        return name.startswith("/") or not name[:1].isalpha()
    return True


def _listed(what: str, rows: list[Any], remedy: str) -> Iterator[LedgerProblem]:
    for row in rows[:_MOST]:
        yield LedgerProblem(what.format(row), remedy)
    if len(rows) > _MOST:
        yield LedgerProblem(f"{len(rows) - _MOST:,} more like the last line", remedy)


def _references(connection: sqlite3.Connection) -> Iterator[LedgerProblem]:
    for what, query, remedy in _REFERENCES:
        yield from _listed(what, [row[0] for row in connection.execute(query)], remedy)
    sessions = {number for (number,) in connection.execute("SELECT number FROM sessions")}
    owners = {number for (number,) in connection.execute("SELECT number FROM time_owners")}
    parts = {number for (number,) in connection.execute("SELECT number FROM gpu_parts")}
    missing: dict[str, set[int]] = defaultdict(set)
    query = "SELECT number FROM time_splits WHERE number IN (SELECT split FROM time_spans)"
    for (number,) in connection.execute(query):
        text = connection.execute("SELECT split FROM time_splits WHERE number = ?", (number,)).fetchone()[0]
        for basis in _json_or(text, []):
            for _, _, part, session, owner, _ in basis or ():
                if part not in parts:
                    missing["a split of time with the part {} of a GPU, which is missing"].add(part)
                if session is not None and session not in sessions:
                    missing["a split of time with the session {}, which is missing"].add(session)
                if owner is not None and owner not in owners:
                    missing["a split of time with the owner {}, which is missing"].add(owner)
    for what, numbers in missing.items():
        yield from _listed(what, sorted(numbers), _LOST if "session" in what else _RESTORE)


def _texts(connection: sqlite3.Connection) -> Iterator[LedgerProblem]:
    """Values that no program can read."""
    for table, column, key in _COLUMNS_WITH_JSON:
        rows = connection.execute(f"SELECT {key}, {column} FROM {table}")
        broken = [name for name, text in rows if _json_or(text, _BROKEN) is _BROKEN]
        yield from _listed(f"{table} {{}} has a {column} that is not JSON", broken, _RESTORE)
    query = "SELECT quarter, party, resident, held, unknown, allocated FROM hour_times"
    packed = [
        f"{_time_of(quarter)} of the party {party}"
        for quarter, party, *blobs in connection.execute(query)
        if not all(map(_is_packed, blobs))
    ]
    yield from _listed("folded presence from {} is not readable", packed, _RESTORE)


# No JSON value.
_BROKEN: Final = object()


def _json_or(text: object, other: Any) -> Any:
    try:
        return json.loads(str(text))
    except ValueError:
        return other


def _is_packed(blob: object) -> bool:
    if blob is None:
        return True
    try:
        return isinstance(blob, bytes) and unpack_seconds(blob) >= 0
    except (ValueError, ArithmeticError, MemoryError):
        return False
    except Exception as error:  # noqa: BLE001  (struct.error has no common base)
        return not error


def _bases(connection: sqlite3.Connection) -> Iterator[LedgerProblem]:
    """Folded hours in which the two bases have different sums, or time below zero."""
    sums: dict[tuple[int, str], list[int]] = defaultdict(lambda: [0, 0])
    for quarter, text, allocation, residence in connection.execute(_FOLDED):
        both = sums[quarter, json.loads(text)[0]]
        both[0] += allocation
        both[1] += residence
    differing = [
        f"{gpu}, {_time_of(quarter)}: {one:,} us by allocation and {other:,} us by residence"
        for (quarter, gpu), (one, other) in sorted(sums.items())
        if one != other
    ]
    yield from _listed("the two bases of a folded hour differ ({})", differing, _REPORTED)
    query = "SELECT quarter FROM hour_gpu_time WHERE allocation < 0 OR residence < 0"
    negative = sorted({_time_of(quarter) for (quarter,) in connection.execute(query)})
    yield from _listed("GPU time below zero in the hour from {}", negative, _REPORTED)


def _time_law(connection: sqlite3.Connection) -> Iterator[LedgerProblem]:
    """The time in the accounts of each Gpu is the time that was posted."""
    booked: Counter[str] = Counter()
    by_quarter: dict[str, Counter[int]] = defaultdict(Counter)
    for quarter, text, allocation, _ in connection.execute(_FOLDED):
        gpu = json.loads(text)[0]
        booked[gpu] += allocation
        by_quarter[gpu][quarter] += allocation
    folded = {gpu: frozenset(quarters) for gpu, quarters in by_quarter.items()}
    for gpu, quarter, microseconds in connection.execute(_DETAIL):
        booked[gpu] += microseconds
        by_quarter[gpu][quarter] += microseconds
    known = set()
    for gpu, posted, is_lost in connection.execute(_POSTED):
        known.add(gpu)
        if is_lost:
            yield LedgerProblem(f"the newest time span of {gpu} is missing", _RESTORE)
        if booked[gpu] != posted:
            hint = _twice(by_quarter[gpu], folded.get(gpu, frozenset()))
            yield LedgerProblem(
                f"the time accounts of {gpu} have {booked[gpu] - posted:+,} us against what was posted{hint}",
                _REPORTED,
            )
    for gpu in sorted(booked.keys() - known):
        yield LedgerProblem(f"time of {gpu}, of which no time state is stored", _RESTORE)


def _twice(quarters: Counter[int], folded: frozenset[int]) -> str:
    """The first hour that is folded and also has details, if there is one."""
    for quarter in sorted(folded):
        if any(quarters[one] for one in range(quarter + 1, quarter + 4) if one not in folded):
            return f"; the hour from {_time_of(quarter)} is folded and has details as well"
    return ""


def _energy_law(connection: sqlite3.Connection) -> Iterator[LedgerProblem]:
    """The energy in the accounts of each epoch is what the counter rose; the total is that of all rows."""
    booked: Counter[tuple[str, int | None]] = Counter()
    totals: Counter[str] = Counter()
    for gpu, epoch, millijoules in connection.execute(_ENERGY):
        booked[gpu, epoch] += millijoules
        totals[gpu] += millijoules
    for table in ("gpus", "epochs"):
        for gpu, epoch, rise in connection.execute(_EPOCHS.format(table)):
            difference = booked[gpu, epoch] - rise
            if difference:
                yield LedgerProblem(
                    f"the energy accounts of {gpu} have {difference:+,} mJ against its counter "
                    f"(epoch {epoch})",
                    _REPORTED,
                )
    # Deleted power readings without a counter are in the total, and in no list of what was deleted.
    gone = {gpu for (gpu,) in connection.execute("SELECT DISTINCT uuid FROM forgotten")}
    for gpu, total in connection.execute("SELECT uuid, total FROM gpus"):
        if gpu not in gone and totals[gpu] != total:
            yield LedgerProblem(
                f"the energy accounts of {gpu} have {totals[gpu] - total:+,} mJ against its total", _REPORTED
            )


def _order(connection: sqlite3.Connection) -> Iterator[LedgerProblem]:
    """Time spans in the quarter of their begin, as long as they say, and each after the one before."""
    wrong, overlaps = [], []
    before: tuple[Any, ...] | None = None
    for number, gpu, quarter, begins, ends, microseconds in connection.execute(_TIME_SPANS):
        if quarter != begins // (QUARTER * MICRO):
            wrong.append(f"{number} of {gpu} is not in the quarter of its begin")
        elif not 0 <= microseconds <= max(ends - begins, 0) + _SLEWED:
            wrong.append(f"{number} of {gpu} is {ends - begins:,} us long and has {microseconds:,} us")
        if before is not None and before[0] == gpu and before[1] < ends and begins < before[2] - _SLEWED:
            overlaps.append(f"{gpu}, {_time_of(quarter)}")
        before = (gpu, begins, ends)
    yield from _listed("time span {}", wrong, _REPORTED)
    for one in _listed("time spans overlap ({})", overlaps, _OVERLAP):
        yield one._replace(is_note=True)
    query = "SELECT quarter, begins, ends FROM spans"
    far = sorted(
        {_time_of(quarter) for quarter, *ends in connection.execute(query) if _is_far(quarter, ends)}
    )
    yield from _listed("an energy span from {} is not in the quarter of its time", far, _REPORTED)


def _is_far(quarter: int, ends: list[float]) -> bool:
    """Whether a span is more than the hour of an earlier version away from its quarter."""
    begins = quarter * QUARTER
    return max(ends) < begins - 4 * QUARTER or min(ends) > begins + 8 * QUARTER


def _time_of(quarter: int) -> str:
    try:
        return f"{datetime.fromtimestamp(quarter * QUARTER, UTC):%Y-%m-%d %H:%M} UTC"
    except (ValueError, OverflowError, OSError):
        return f"quarter {quarter}"
