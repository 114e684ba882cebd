"""Replaces a person by a pseudonym in a ledger file that no program uses; no sum changes."""

from __future__ import annotations

import json
import os
import re
import sqlite3
from collections.abc import Callable, Collection, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Final, NamedTuple

from gpuledger.ledger.books.person import PersonName
from gpuledger.ledger.books.work_folder import is_write_error
from gpuledger.ledger.store.read_only_file import require_ledger
from gpuledger.ledger.store.schema import meta_value
from gpuledger.ledger.store.state_directory import LedgerLock
from gpuledger.ledger.store.tables import restart_counters
from gpuledger.model.errors import GpuledgerError, UsageError

# Texts by table and key column. JSON is parsed: it can have escapes in place of letters.
_TEXTS: Final = {
    ("sessions", "number"): (
        "command",
        "executable",
        "comm",
        "login",
        "namespace",
        "pod",
        "container",
        "pod_uid",
        "container_id",
        "job",
        "step",
        "unit",
        "owner_user",
        "controller",
        "slurm_account",
        "partition",
    ),
    ("time_owners", "number"): ("command",),
}
_JSON: Final = {
    ("sessions", "number"): ("labels", "facts"),
    ("handovers", "number"): ("owner",),
    ("time_owners", "number"): ("owner",),
    ("gpu_times", "uuid"): ("state",),
    ("parties", "number"): ("who",),
    ("usage_periods", "number"): ("owner",),
    ("host_periods", "number"): ("owner",),
}
# Keys of `meta`: JSON of the pseudonyms that this made (of no names), and whether the file must be rebuilt.
_PSEUDONYMS, _UNFINISHED = "pseudonyms", "forgetting"
_ASCII_SAFE: Final = re.compile(r"[\w.@+-]+")


class Forgotten(NamedTuple):
    """What was done: the pseudonym, the number of changed rows, and files beside the ledger with the name."""

    pseudonym: str
    rows: int
    left: list[Path]


def forget_person(file: Path, name: str, pseudonym: str = "") -> Forgotten:
    """Replace the name, and the uids of that user's processes, everywhere in the ledger file.

    Raises GpuledgerError if a program uses the ledger, or it does not have the name, and sqlite3.Error.
    """
    _check_names(name, pseudonym)
    try:
        lock = LedgerLock(file.with_suffix(".lock"))
    except GpuledgerError:
        raise GpuledgerError(
            f"`gpuledger serve` uses {file} and would write the name again: stop it (`systemctl stop "
            "gpuledger`, or delete its pod and run this on the node before the next one starts), repeat this "
            "command, and start it again"
        ) from None
    except OSError as error:
        raise GpuledgerError(f"cannot lock {file}: {error.strerror}; run this as the user of serve") from None
    try:
        with closing(sqlite3.connect(file, isolation_level=None, timeout=5.0)) as connection:
            require_ledger(connection, file)
            connection.execute("PRAGMA secure_delete=ON").fetchall()
            # Without a write-ahead log: its file would keep the old pages.
            if connection.execute("PRAGMA journal_mode=DELETE").fetchone() != ("delete",):
                raise GpuledgerError(f"{file} is being read by another program: wait until it is done")
            person = _person_of(connection, name, pseudonym or _new_pseudonym(name))
            rows = _replace_all(connection, person)
            is_unfinished = meta_value(connection, _UNFINISHED) is not None
            if is_unfinished:
                # Of the killed command, if there is nothing left to replace.
                used = person.pseudonym if rows else _made_pseudonyms(connection)[-1]
                _rebuild(connection, file, used)
    finally:
        lock.release()
    if not is_unfinished:
        raise GpuledgerError(
            f"{file} does not have the name {name}: `gpuledger report --by user --since 400d --top 0` lists "
            "the users"
        )
    return Forgotten(used, rows, list(_files_with(file, person)))


def _rebuild(connection: sqlite3.Connection, file: Path, pseudonym: str) -> None:
    """Rebuild the file: bytes of old rows in free space are not copied."""
    try:
        connection.execute("VACUUM")
    except sqlite3.Error as error:
        raise GpuledgerError(
            f"the name is replaced in {file}, but the file could not be rebuilt ({error}), so that free "
            f"space in it may keep the name: free {file.stat().st_size:,} bytes or more on its disk and in "
            f"the directory of temporary files, and repeat this command with --as {pseudonym}"
        ) from None
    connection.execute("DELETE FROM meta WHERE key = ?", (_UNFINISHED,))


def _new_pseudonym(name: str) -> str:
    """Random digits after a word that does not have the name in it."""
    digits = "".join(str(byte % 10) for byte in os.urandom(10))
    words = (f"{word}-{digits}" for word in ("forgotten", "person"))
    return next((word for word in words if name.casefold() not in word), f"x{digits}")


def _made_pseudonyms(connection: sqlite3.Connection) -> list[str]:
    """The pseudonyms that `forget_person` made here before: a person can get the same one again."""
    return [str(one) for one in json.loads(meta_value(connection, _PSEUDONYMS) or "[]")]


def _check_names(name: str, pseudonym: str) -> None:
    if not name.strip() or name != name.strip():
        raise UsageError("books forget needs the name of a user, as in --user ann")
    if pseudonym and (name.casefold() in pseudonym.casefold() or not _ASCII_SAFE.fullmatch(pseudonym)):
        raise UsageError(
            f"--as {pseudonym}: choose a pseudonym of letters, digits, '.', '_' and '-' that does not have "
            "the name in it"
        )


def _person_of(connection: sqlite3.Connection, name: str, pseudonym: str) -> PersonName:
    """The person, with the uids of the sessions under this name. Raises UsageError for a used pseudonym."""
    users = set(_users(connection))
    alone = PersonName(name, pseudonym)
    is_known = pseudonym in _made_pseudonyms(connection)
    if not is_known and any(PersonName(pseudonym, "").is_in(user) for user in users):
        raise UsageError(f"--as {pseudonym}: the ledger has a user of this name; choose another pseudonym")
    query = "SELECT DISTINCT uid FROM sessions WHERE uid IS NOT NULL AND (login = ? OR owner_user = ?)"
    uids = {uid for form in alone.forms for (uid,) in connection.execute(query, (form, form))}
    # A uid that another name has as well is no one's: of containers, which have other users.
    shared = {uid for (uid,) in connection.execute(_OTHER_UIDS, {"name": name})}
    numbers = {uid for uid in uids - shared if uid}
    others = users - set(alone.forms) - {str(uid) for uid in numbers} - {""}
    return PersonName(name, pseudonym, others, numbers)


_OTHER_UIDS = """
SELECT DISTINCT uid FROM sessions
    WHERE login NOT IN ('', :name, CAST(uid AS TEXT)) AND uid IS NOT NULL
"""


def _users(connection: sqlite3.Connection) -> Iterator[str]:
    """All names of users in the ledger."""
    for (user,) in connection.execute("SELECT login FROM sessions UNION SELECT owner_user FROM sessions"):
        yield user
    for table in ("handovers", "time_owners", "usage_periods", "host_periods"):
        for (text,) in connection.execute(f"SELECT owner FROM {table} WHERE owner != 'null'"):
            yield str(json.loads(text).get("user", ""))
    for (text,) in connection.execute("SELECT who FROM parties"):
        yield str(json.loads(text)[2].get("user", ""))


def _replace_all(connection: sqlite3.Connection, person: PersonName) -> int:
    """Replace the name in all tables, in one transaction; return the number of changed values."""
    connection.execute("BEGIN EXCLUSIVE")
    try:
        changed = _end_open_rows(connection, person)
        for (table, key), columns in _TEXTS.items():
            for column in columns:
                changed += _change(connection, table, key, column, person.replaced)
        for (table, key), columns in _JSON.items():
            for column in columns:
                changed += _change(connection, table, key, column, _json_change(person, column))
        changed += _forget_uids(connection, person)
        if changed:
            # Exported counters have the name as a label: they begin again, as after a crash.
            restart_counters(connection)
            made = dict.fromkeys((*_made_pseudonyms(connection), person.pseudonym))
            values = {"clean": 0, "boot_id": "", _UNFINISHED: 1, _PSEUDONYMS: json.dumps(list(made))}
            connection.executemany("REPLACE INTO meta VALUES (?, ?)", values.items())
        connection.execute("COMMIT")
    except BaseException as error:
        # SQLite has rolled back already after some errors.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        if isinstance(error, sqlite3.Error) and is_write_error(error):
            raise GpuledgerError(
                f"cannot write the ledger ({error}), which is as before: check the space, the permissions "
                "and the limit of file sizes there (`df`, `ls -l`, `ulimit -f`), and repeat this command"
            ) from None
        raise
    return changed


def _json_change(person: PersonName, column: str) -> Callable[[str], str]:
    # As the ledger writes them: parties are compared as texts.
    is_party = column == "who"

    def change(text: str) -> str:
        values = json.loads(text)
        found = person.replaced_values(values, skip_first=column == "state")
        if found == values:
            return text
        return json.dumps(found, separators=(",", ":"), ensure_ascii=not is_party, sort_keys=is_party)

    return change


def _change(
    connection: sqlite3.Connection, table: str, key: str, column: str, change: Callable[[str], str]
) -> int:
    """Change the texts of a column; return how many."""
    rows = connection.execute(f"SELECT {key}, {column} FROM {table}").fetchall()
    changed = [(new, name) for name, text in rows if (new := change(text)) != text]
    for new, name in changed:
        statement = f"UPDATE {table} SET {column} = ? WHERE {key} = ?"
        try:
            connection.execute(statement, (new, name))
        except sqlite3.IntegrityError:
            # Two forms of the name in otherwise equal parties: their commands keep them apart.
            device, command, owner = json.loads(new)
            parts = [device, f"{command} ({name})", owner]
            apart = json.dumps(parts, separators=(",", ":"), ensure_ascii=False, sort_keys=True)
            connection.execute(statement, (apart, name))
    return len(changed)


def _end_open_rows(connection: sqlite3.Connection, person: PersonName) -> int:
    """End the person's open sessions and allocations: what goes on is a new one, under its real name."""
    opened = connection.execute(
        "SELECT sessions.* FROM sessions JOIN usage USING (number) WHERE ended IS NULL"
    ).fetchall()
    numbers = [row[0] for row in opened if any(isinstance(one, str) and person.is_in(one) for one in row)]
    for number in numbers:
        statement = "UPDATE usage SET ended = last_seen, exit_seen = 0 WHERE number = ?"
        connection.execute(statement, (number,))
    ended = len(numbers)
    for table in ("handovers", "usage_periods", "host_periods"):
        rows = connection.execute(f"SELECT number, owner FROM {table} WHERE NOT over").fetchall()
        for number, text in rows:
            values = json.loads(text)
            if person.replaced_values(values) != values:
                connection.execute(f"UPDATE {table} SET over = 1 WHERE number = ?", (number,))
                ended += 1
    return ended


def _forget_uids(connection: sqlite3.Connection, person: PersonName) -> int:
    """Remove the uids of the person's sessions, also where a uid stands for the name."""
    changed = 0
    for uid in person.uids:
        for column in ("login", "owner_user"):
            statement = f"UPDATE sessions SET {column} = ? WHERE {column} = ? AND uid = ?"
            changed += connection.execute(statement, (person.pseudonym, str(uid), uid)).rowcount
        changed += connection.execute("UPDATE sessions SET uid = NULL WHERE uid = ?", (uid,)).rowcount
    statement = "UPDATE sessions SET uid = NULL WHERE uid > 0 AND (login = ? OR owner_user = ?)"
    return changed + connection.execute(statement, (person.pseudonym, person.pseudonym)).rowcount


def _files_with(file: Path, person: PersonName) -> Iterator[Path]:
    """Other files in the directory of the ledger with the letters of the name: copies, backups, exports."""
    raw = {text.encode() for form in person.forms for text in (form, json.dumps(form)[1:-1])}
    for other in sorted(file.parent.rglob("*")):
        with suppress(OSError):
            if other != file and other.is_file() and _has_any(other, raw):
                yield other


_CHUNK = 1 << 20


def _has_any(file: Path, wanted: Collection[bytes]) -> bool:
    overlap = max(map(len, wanted)) - 1
    with file.open("rb") as opened:
        kept = b""
        while chunk := opened.read(_CHUNK):
            block = kept + chunk
            if any(text in block for text in wanted):
                return True
            kept = block[-overlap:] if overlap else b""
    return False
