"""The books on disk: one commit a tick; trouble with the file never stops the node."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from math import inf
from pathlib import Path
from threading import Lock as Mutex
from typing import TYPE_CHECKING

from gpuledger.ledger.journal import NOTHING, Journal, Kept
from gpuledger.ledger.store.place import Lock, is_at, set_aside
from gpuledger.ledger.store.retention import Limits, prune
from gpuledger.ledger.store.schema import Foreign, TooNew, prepare
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.snapshot import Collected
from gpuledger.model.source import Clock

if TYPE_CHECKING:
    from os import stat_result
    from sqlite3 import Connection

log = logging.getLogger("gpuledger.store")

PART = "store"
_FIRST_WAIT, _LONGEST_WAIT = 1.0, 60.0
# History is deleted by age only after the wall clock has gone on for so long without being set: one that
# stands in another year at boot must not cost the books.
_CLOCK_TRUSTED = 3600.0
_CLOCK_STEP = 60.0
_PRUNE_EVERY = 60.0
_CACHE_KIB = 1024
# How long a commit waits for another program's lock: the tick waits with it.
_BUSY_MS = 100


class _Gone(OSError):
    """Nothing stands at the place of the books any more: what is written is written for nobody."""


class Store:
    """`journal.Books` in one SQLite file `<name>.db` of `folder`. `boot_id` is this machine's.

    What was exported goes on only where it is sure to be in the file: the last run closed it, or it ended
    within this boot of the machine and was not ahead of the file. Else exported counters begin at 0 again.
    A file that cannot be opened leaves the books in memory until the next start. One that is taken away is
    begun anew.
    """

    def __init__(self, folder: Path, name: str, boot_id: str, clock: Clock, limits: Limits) -> None:
        """Raises GpuledgerError when another program has the books, or a newer version made them."""
        self.file = folder / f"{name}.db"
        self._boot_id = boot_id
        self._clock = clock
        self._limits = limits
        self._connection: Connection | None = None
        self._opened: stat_result | None = None
        self._kept = NOTHING
        self._anew = False
        self._first = True
        self._goes_on = False
        self._error = ""
        self._wait = _FIRST_WAIT
        self._retry_at = 0.0
        self._prune_at = clock.elapsed()
        # Wall time less elapsed, and since when it has been that: a clock that was just set is not trusted
        # yet.
        self._wall: tuple[float, float] | None = None
        self._too_large = False
        self._unsaved: Journal | None = None
        # A tick that hung in the driver may come back while the books are being closed.
        self._mutex = Mutex()
        self._lock: Lock | None = None
        try:
            self._lock = Lock(self.file.with_suffix(".lock"))
        except OSError as error:
            self._give_up(error)
        else:
            self._open_or_replace()

    @property
    def kept(self) -> Kept:
        """What an earlier run left; nothing where the file could not be read."""
        return self._kept

    @property
    def began_anew(self) -> bool:
        """True once the file was replaced, until everything in memory was written to the new one."""
        return self._anew

    @property
    def on_disk(self) -> bool:
        """False while they are in memory alone."""
        return self._connection is not None

    def limit(self, limits: Limits) -> None:
        """Delete what is beyond these from here on."""
        self._limits = limits

    def save(self, journal: Journal) -> tuple[Collected, bool]:
        """See `Books.save`."""
        began = self._clock.elapsed()
        with self._mutex:
            shown = self._save(journal, began)
        return Collected(PART, self._clock.elapsed() - began, self._error), shown

    def close(self) -> None:
        """Write what is left, say that the books are whole, and let go of them. Idempotent."""
        with self._mutex:
            if self._connection is not None:
                self._close_cleanly(self._connection)
                self._connection = None
            if self._lock is not None:
                self._lock.release()

    def _open_or_replace(self) -> None:
        from sqlite3 import Error

        try:
            self._open()
        except TooNew as version:
            self._release()
            raise GpuledgerError(
                f"{self.file} was written by a newer gpuledger (schema {version}): upgrade this one, or give "
                "it another --state-dir"
            ) from None
        except (Foreign, ValueError, KeyError, TypeError, IndexError) as error:
            self._replace(f"not readable as books ({type(error).__name__})")
        except Error as error:
            if _is_damage(error):
                self._replace(str(error))
            else:
                self._give_up(error)

    def _open(self) -> None:
        from gpuledger.ledger.store.tables import load

        connection = self._connect()
        try:
            prepare(connection)
            kept = load(connection)
            meta: Mapping[str, object] = dict(connection.execute("SELECT key, value FROM meta"))
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        self._opened = self.file.stat()
        self._first = True
        same_boot = bool(self._boot_id) and meta.get("boot_id") == self._boot_id
        ahead = self._lock is not None and self._lock.was_ahead
        self._goes_on = not ahead and (bool(meta.get("clean")) or same_boot)
        if not self._goes_on and kept.gpus:
            log.warning("the last run ended uncleanly: exported energy counters begin at 0 again")
            kept = _from_zero(kept)
        self._kept = kept

    def _connect(self) -> Connection:
        import os
        import sqlite3

        # SQLite would make it readable for all that the umask lets.
        os.close(os.open(self.file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        connection = sqlite3.connect(
            self.file, timeout=_BUSY_MS / 1000, isolation_level=None, check_same_thread=False
        )
        try:
            connection.execute(f"PRAGMA cache_size=-{_CACHE_KIB}")
            connection.execute("PRAGMA synchronous=NORMAL")
        except BaseException:
            connection.close()
            raise
        return connection

    def _replace(self, why: str) -> None:
        """Damaged: keep the file aside and begin a new one."""
        from sqlite3 import Error

        if self._connection is not None:
            self._connection.close()
            self._connection = None
        try:
            aside = set_aside(self.file, self._clock.unix())
            log.error("%s is damaged (%s): kept as %s, new books begin", self.file, why, aside.name)
            self._open()
        except (Error, OSError) as error:
            self._give_up(error)
        self._anew = True

    def _give_up(self, error: Exception) -> None:
        self._error = f"{self.file}: {error}; the books are in memory alone until gpuledger is started again"
        log.error("%s", self._error)

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()

    def _save(self, journal: Journal, now: float) -> bool:
        from sqlite3 import Error

        if self._connection is None:
            journal.stored()
            self._anew = False
            if self._lock is not None:
                self._lock.say(ahead=True)
            # Counters began at 0 with this run, and nothing is stored that they could step back to.
            return True
        if now < self._retry_at:
            return self._may_show_unsaved()
        try:
            self._check_place()
            self._write(self._connection, journal)
        except (Error, OSError, UnicodeEncodeError, OverflowError) as error:
            self._unsaved = journal
            self._fail(error, now)
            return self._may_show_unsaved()
        if journal.lost:
            log.error(
                "%s: %d sessions ended while it could not be written, and are lost", self.file, journal.lost
            )
            journal.lost = 0
        self._succeed()
        self._prune(self._connection, now, journal.unix)
        return True

    def _check_place(self) -> None:
        """Raise OSError unless the file that is written is the one that others read."""
        if self._opened is None or is_at(self.file, self._opened):
            return
        if not self.file.exists():
            raise _Gone("it was taken away")
        raise OSError(
            "another file stands in its place; take that one away, or start gpuledger again to go on with it"
        )

    def _begin_anew(self) -> None:
        """In the place of a file that was taken away. Raises OSError where that cannot be."""
        self.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._lock is not None and not self._lock.stands:
            held, self._lock = self._lock, Lock(self.file.with_suffix(".lock"))
            held.release()
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        log.error("%s was taken away: new books begin with what is in memory", self.file)
        self._open_or_replace()
        self._anew = True

    def _may_show_unsaved(self) -> bool:
        return self._lock is not None and self._lock.say(ahead=True)

    def _write(self, connection: Connection, journal: Journal) -> None:
        from gpuledger.ledger.store.tables import write

        if self._first:
            # From here on the file does not say that it is whole: that must outlast a power cut.
            connection.execute("PRAGMA synchronous=FULL")
        connection.execute("BEGIN IMMEDIATE")
        try:
            if self._first:
                self._begin_run(connection)
            write(connection, journal)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        if self._first:
            connection.execute("PRAGMA synchronous=NORMAL")
            self._first = False
        journal.stored()
        self._anew = False

    def _begin_run(self, connection: Connection) -> None:
        meta = [("clean", 0), ("boot_id", self._boot_id)]
        connection.executemany("REPLACE INTO meta VALUES (?, ?)", meta)
        if not self._goes_on:
            connection.execute("DELETE FROM series")
            connection.execute("DELETE FROM told")
            connection.execute("DELETE FROM owners")
            connection.execute("UPDATE gpus SET base = total, closed = 0")

    def _fail(self, error: Exception, now: float) -> None:
        if _is_damage(error):
            self._replace(str(error))
            self._error = f"{self.file} was damaged and has been replaced"
            return
        if isinstance(error, _Gone):
            try:
                self._begin_anew()
            except (GpuledgerError, OSError) as trouble:
                error = trouble
            else:
                self._error = self._error or f"{self.file} was taken away and has been begun anew"
                return
        if not self._error:
            log.error(
                "%s: %s; the books go on in memory, and are stored when it can be written", self.file, error
            )
        self._error = f"{self.file}: {error}"
        self._retry_at = now + self._wait
        self._wait = min(2 * self._wait, _LONGEST_WAIT)

    def _succeed(self) -> None:
        if self._error:
            log.info("%s: the books are stored again", self.file)
        self._error, self._wait, self._retry_at, self._unsaved = "", _FIRST_WAIT, 0.0, None
        if self._lock is not None:
            self._lock.say(ahead=False)

    def _prune(self, connection: Connection, now: float, unix: float) -> None:
        from sqlite3 import Error

        if self._wall is None or abs(unix - now - self._wall[0]) > _CLOCK_STEP:
            self._wall = (unix - now, now)
        if now < self._prune_at:
            return
        limits = self._limits
        if now - self._wall[1] < _CLOCK_TRUSTED:
            limits = replace(limits, detail=inf, hours=inf)
        try:
            pruned = prune(connection, unix, limits)
        except Error as error:
            self._fail(error, now)
            return
        if pruned.for_size and not self._too_large:
            log.warning(
                "%s is larger than store.max_size: its oldest history is folded and deleted (%d rows so far)",
                self.file,
                pruned.deleted,
            )
        # Said once until it fits again.
        self._too_large = pruned.for_size or (self._too_large and pruned.more)
        self._prune_at = now if pruned.more else now + _PRUNE_EVERY

    def _close_cleanly(self, connection: Connection) -> None:
        from sqlite3 import Error

        try:
            if self._unsaved is not None:
                self._write(connection, self._unsaved)
                self._succeed()
            if not self._first:
                connection.execute("PRAGMA synchronous=FULL")
                connection.execute("REPLACE INTO meta VALUES ('clean', 1)")
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        except (Error, OSError, UnicodeEncodeError, OverflowError) as error:
            log.error("%s: %s; the last of the books could not be stored", self.file, error)
        finally:
            connection.close()


def _from_zero(kept: Kept) -> Kept:
    """Exported counters begin at 0; the books themselves go on."""
    gpus = {
        uuid: replace(gpu, base=gpu.total, closed=0, series=(), owners=()) for uuid, gpu in kept.gpus.items()
    }
    return replace(kept, gpus=gpus)


def _is_damage(error: Exception) -> bool:
    from sqlite3 import SQLITE_CORRUPT, SQLITE_NOTADB, DatabaseError, OperationalError

    if not isinstance(error, DatabaseError):
        return False
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    # A table or column that is not there: somebody else's file, or half of ours.
    lacking = isinstance(error, OperationalError) and str(error).startswith(("no such", "table "))
    return code in (SQLITE_CORRUPT, SQLITE_NOTADB) or lacking
