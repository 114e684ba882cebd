"""Restricts a connection to the rows of one reader: the tables that name owners are hidden behind views.

SQLite finds a temporary view before a table of the same name. So each query on this connection, also one
written later, sees only permitted rows; a table that this module does not know is empty. Tables with amounts
remain whole: they have numbers of sessions and parties, and the rows with the names are gone.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Final

from gpuledger.ledger.report.party import Party, party_from_text
from gpuledger.ledger.store.rows import workload_from_text
from gpuledger.model.access import OTHERS, PERSONAL_KINDS, Reader
from gpuledger.model.workload import UNKNOWN, Workload

# The party of everybody else.
HIDDEN_PARTY: Final = Party("", OTHERS, "others")

# Tables without names: amounts by number, hardware, and the state of the ledger.
_AMOUNTS: Final = frozenset(
    {
        *("meta", "devices", "device_memory", "gpus", "gpu_parts", "epochs", "forgotten", "floors"),
        *("spans", "shares", "hours", "hour_shares", "hour_times"),
        *("time_spans", "time_splits", "hour_gpu_time"),
        *("held", "unknown", "unused", "unread"),
    }
)
# Columns with JSON or text that names owners, in tables that are otherwise needed.
_EMPTIED: Final = {"gpu_times": "state"}
_KINDS: Final = ", ".join(f"'{kind}'" for kind in sorted(PERSONAL_KINDS))
# A row of main.sessions; `uid` is added if the name was another account's before.
_OWN_SESSION: Final = f"owner_kind IN ({_KINDS}) AND owner_user IN (SELECT name FROM temp.reader_users)"
_SESSION_OF: Final = "EXISTS (SELECT 1 FROM main.sessions AS known WHERE known.number = {column} AND {own})"
# Numbered tables with the JSON of an owner, or of a party, in this column.
_OWNERS: Final = {
    "handovers": "owner",
    "time_owners": "owner",
    "parties": "who",
    "usage_periods": "owner",
    "host_periods": "owner",
}
# Columns of other tables that refer to them.
_REFERENCES: Final = {"handover": "handovers", "party": "parties", "period": "usage_periods"}


def restrict_rows(connection: sqlite3.Connection, reader: Reader) -> None:
    """Hide all rows with names that the reader may not read. Raises sqlite3.Error."""
    connection.execute("CREATE TEMP TABLE reader_users (name TEXT PRIMARY KEY)")
    connection.executemany("INSERT INTO reader_users VALUES (?)", ((name,) for name in sorted(reader.users)))
    own = _OWN_SESSION
    is_shared = _had_another_account(connection, reader)
    if is_shared:
        own += f" AND uid = {int(reader.uid or 0)}"
    tables = _hidden_tables(connection)
    for table in tables:
        if table in _OWNERS:
            _list_numbers(connection, table, Reader() if is_shared else reader)
    for table in tables:
        columns = [str(row[1]) for row in connection.execute(f"PRAGMA main.table_info({table})")]
        shown = ", ".join(f"'' AS {name}" if _EMPTIED.get(table) == name else name for name in columns)
        condition = _condition(table, columns, own)
        connection.execute(f"CREATE TEMP VIEW {table} AS SELECT {shown} FROM main.{table} WHERE {condition}")
    hidden = frozenset(tables)
    connection.set_authorizer(lambda *action: _authorize(hidden, *action))


def _hidden_tables(connection: sqlite3.Connection) -> list[str]:
    query = "SELECT name FROM main.sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'"
    return [name for (name,) in connection.execute(query) if name not in _AMOUNTS]


def _had_another_account(connection: sqlite3.Connection, reader: Reader) -> bool:
    """Whether processes of another uid ran under the reader's name: the account was made again, or renamed.

    Rows that are known by name only can then be the other person's, and are not shown.
    """
    if reader.uid is None:
        return False
    query = """
        SELECT 1 FROM main.sessions WHERE login IN (SELECT name FROM temp.reader_users)
            AND uid IS NOT NULL AND uid != ? LIMIT 1
    """
    return connection.execute(query, (reader.uid,)).fetchone() is not None


def _list_numbers(connection: sqlite3.Connection, table: str, reader: Reader) -> None:
    """Write the numbers of the rows that the reader may read to a temporary table."""
    connection.execute(f"CREATE TEMP TABLE reader_{table} (number INTEGER PRIMARY KEY)")
    # Row by row: there can be many, with long texts.
    rows = connection.execute(f"SELECT number, {_OWNERS[table]} FROM main.{table}")
    permitted = ((number,) for number, text in rows if reader.permits(_owner(text)))
    connection.executemany(f"INSERT INTO reader_{table} VALUES (?)", permitted)


def _owner(text: str) -> Workload:
    """The owner in the text of a party, or of an allocation."""
    if text.startswith("["):
        return party_from_text(text).owner
    return workload_from_text(text) or UNKNOWN


def _condition(table: str, columns: list[str], own: str) -> str:
    if table == "sessions":
        return own
    if table == "usage":
        return _SESSION_OF.format(column="usage.number", own=own)
    if table in _OWNERS:
        return f"number IN (SELECT number FROM temp.reader_{table})"
    if table in _EMPTIED:
        return "1"
    return " AND ".join(_references(table, columns, own)) or "0"


def _references(table: str, columns: list[str], own: str) -> Iterator[str]:
    """Conditions on the columns that refer to owners: at least one is set, and all that are set are own."""
    known = [name for name in columns if name == "session" or name in _REFERENCES]
    if known:
        yield f"coalesce({', '.join(known)}, NULL) IS NOT NULL"
    for name in known:
        column = f"{table}.{name}"
        found = (
            _SESSION_OF.format(column=column, own=own)
            if name == "session"
            else f"{column} IN (SELECT number FROM temp.reader_{_REFERENCES[name]})"
        )
        yield f"({column} IS NULL OR {found})"


def _authorize(
    hidden: frozenset[str],
    action: int,
    table: str | None,
    column: str | None,
    database: str | None,
    source: str | None,
) -> int:
    """Deny reading a hidden table other than through its view: a query that names `main` is a mistake.

    A query that only counts the rows of a view reads no column, and looks like one of the table.
    """
    is_main = action == sqlite3.SQLITE_READ and database == "main" and table in hidden
    if is_main and column and source is None:
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK
