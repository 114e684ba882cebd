"""The SQLite ledger file: one commit per tick; file errors never stop the node."""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from datetime import tzinfo
from pathlib import Path
from threading import Lock as Mutex

from gpuledger.host.time_zone import time_zone_name
from gpuledger.ledger.journal import Journal, StoredLedger
from gpuledger.ledger.store.hour_cells import update_zone
from gpuledger.ledger.store.retention import HistoryPruner, RetentionLimits
from gpuledger.ledger.store.schema import (
    APPLICATION_ID,
    BEGUN,
    BOOKS_ID,
    CREATED,
    LEDGER_NAME,
    MIGRATIONS,
    NODE_NAME,
    ZERO_HOLD,
    NotALedger,
    SchemaTooNew,
    migrate_schema,
)
from gpuledger.ledger.store.state_directory import (
    LedgerLock,
    describe_failure,
    file_version,
    is_damage,
    is_same_file,
    lacks_space,
    set_aside,
)
from gpuledger.ledger.store.tables import load_ledger, restart_counters, write_journal
from gpuledger.ledger.watched_time import QUARTER
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.snapshot import CollectorRun
from gpuledger.model.source import Clock

log = logging.getLogger("gpuledger.store")

PART = "store"
_FIRST_WAIT, _LONGEST_WAIT = 1.0, 60.0
_CACHE_KIB = 1024
# Maximum wait of a commit for another program's lock; the tick waits as well.
_BUSY_MS = 100
_WRITE_ERRORS = (sqlite3.Error, OSError, UnicodeEncodeError, OverflowError)


_REPLACED = "another file has replaced it; remove that file, or restart gpuledger to continue with it"


class _FileRemoved(OSError):
    """The ledger file was removed: nothing written to it would be found again."""


class Store:
    """A `LedgerStore` in the SQLite file `<name>.db` of `folder`. `boot_id` is this machine's.

    Exported counters continue only if their last values are certainly in the file: the last run closed it, or
    ended within this boot of the machine and was not ahead of the file. Otherwise they begin at 0 again. If
    the file cannot be opened, the ledger is kept in memory until the next start, or on a full disk until
    there is space. A removed file is created again.
    """

    def __init__(
        self, folder: Path, name: str, boot_id: str, clock: Clock, limits: RetentionLimits, node: str = ""
    ) -> None:
        """Raises GpuledgerError if another program has the ledger, or a newer version wrote it."""
        self.file = folder / f"{name}.db"
        self._boot_id = boot_id
        self._clock = clock
        self.limits = limits
        # The name of the node, and the one that the file has.
        self.node, self._written_node = node, ""
        self._written_hold = 0.0
        self._connection: sqlite3.Connection | None = None
        # The stored ledger was read, but there was no space to open the file for writing.
        self._needs_space = False
        self._opened: os.stat_result | None = None
        # That of the ledger which was read on a full disk; None without one.
        self._version: tuple[int, ...] | None = None
        # The time zone of which the file has the name; None before the first write.
        self._zone: tzinfo | None = None
        # See `LedgerStore`.
        self.stored_ledger = StoredLedger()
        self.was_replaced = False
        self._is_first_write = True
        self._continues_counters = False
        self._error = ""
        self._retry_wait = _FIRST_WAIT
        self._retry_at = 0.0
        self._pruner = HistoryPruner(self.file, clock.elapsed())
        self._unsaved: Journal | None = None
        # The journal of the last commit: what it has left is written when the file is closed.
        self._journal: Journal | None = None
        # A tick that hung in the driver may return while the ledger is being closed.
        self._mutex = Mutex()
        self._lock: LedgerLock | None = None
        try:
            self._lock = LedgerLock(self.file.with_suffix(".lock"))
        except OSError as error:
            self._wait_or_give_up(error)
        else:
            self._open_or_replace()

    @property
    def on_disk(self) -> bool:
        """False while the ledger is kept only in memory, and will not be stored before the next start."""
        return self._connection is not None or self._needs_space

    def save(self, journal: Journal) -> tuple[CollectorRun, bool]:
        """See `LedgerStore.save`."""
        began = self._clock.elapsed()
        with self._mutex:
            shown = self._save(journal, began)
        return CollectorRun(PART, self._clock.elapsed() - began, self._error or self._pruner.error), shown

    def close(self) -> None:
        """Write pending changes, mark the file as clean and close it. Idempotent."""
        with self._mutex:
            if self._connection is None and self._needs_space:
                try:
                    self._open_later()
                except (*_WRITE_ERRORS, GpuledgerError) as error:
                    log.error("%s: %s; what this run has read could not be stored", self.file, error)
            if self._connection is not None:
                self._close_cleanly(self._connection)
                self._connection = None
            self._release_lock()

    def _open_or_replace(self) -> None:
        try:
            self._open()
        except SchemaTooNew as version:
            self._release_lock()
            raise GpuledgerError(
                f"{self.file} was written by a newer gpuledger (schema {version}): upgrade this one, or set "
                "another --state-dir"
            ) from None
        except (NotALedger, ValueError, KeyError, TypeError, IndexError) as error:
            self._replace(f"not readable as a ledger ({type(error).__name__})")
        except (sqlite3.Error, OSError) as error:
            if is_damage(error):
                self._replace(str(error))
            else:
                self._wait_or_give_up(error)

    def _wait_or_give_up(self, error: Exception) -> None:
        """Open the file later if it lacks only space, or an inode for itself or a file beside it."""
        if not (lacks_space(error, self.file) and self._read_on_full_disk()):
            self._give_up(error)
            return
        self._needs_space = True
        self._fail(error, self._clock.elapsed())

    def _open_later(self) -> sqlite3.Connection:
        """Open the file for writing, for which there was no space at the start.

        Raises GpuledgerError if another program has it, OSError if one had it meanwhile.
        """
        if self._lock is None:
            lock = LedgerLock(self.file.with_suffix(".lock"))
            try:
                if file_version(self.file) != self._version:
                    raise OSError(_REPLACED)
            except OSError:
                lock.release()
                raise
            self._lock = lock
        return self._open_for_writing()

    def _open(self) -> None:
        connection = self._open_for_writing()
        try:
            self._read(connection)
        except BaseException:
            self._connection = None
            connection.close()
            raise

    def _open_for_writing(self) -> sqlite3.Connection:
        connection = self._connect()
        try:
            connection.execute(f"PRAGMA cache_size=-{_CACHE_KIB}")
            connection.execute("PRAGMA synchronous=NORMAL")
            migrate_schema(connection)
            meta = {key for (key,) in connection.execute("SELECT key FROM meta")}
            if not meta:
                connection.execute("INSERT INTO meta VALUES (?, ?)", (CREATED, self._clock.unix()))
            if BOOKS_ID not in meta:
                connection.execute("INSERT INTO meta VALUES (?, ?)", (BOOKS_ID, os.urandom(16).hex()))
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        self._needs_space = False
        self._opened = self.file.stat()
        self._zone, self._written_node, self._written_hold = None, "", 0.0
        self._is_first_write = True
        return connection

    def _read_on_full_disk(self) -> bool:
        """Read the stored ledger without writing a byte; return whether that is possible."""
        try:
            self._version = file_version(self.file)
            if self._version is None:
                return True
            self._opened = self.file.stat()
            with closing(self._connect_to_read()) as connection:
                # SQLite then needs no file that it shares with readers.
                connection.execute("PRAGMA locking_mode=EXCLUSIVE").fetchall()
                (identity,) = connection.execute("PRAGMA application_id").fetchone()
                (version,) = connection.execute("PRAGMA user_version").fetchone()
                # An older version must be migrated first.
                if (identity, version) != (APPLICATION_ID, len(MIGRATIONS)):
                    return False
                self._read(connection)
                return True
        except (sqlite3.Error, OSError, ValueError, KeyError, TypeError, IndexError):
            return False

    def _read(self, connection: sqlite3.Connection) -> None:
        """Read what an earlier run stored."""
        stored = load_ledger(connection)
        meta: Mapping[str, object] = dict(connection.execute("SELECT key, value FROM meta"))
        same_boot = bool(self._boot_id) and meta.get("boot_id") == self._boot_id
        ahead = self._lock is not None and self._lock.was_ahead
        self._continues_counters = not ahead and (bool(meta.get("clean")) or same_boot)
        if not self._continues_counters and stored.gpus:
            log.warning(
                "the last run did not stop cleanly: exported counters of energy and time begin at 0 again"
            )
            stored = _from_zero(stored)
        self.stored_ledger = stored

    def _connect_to_read(self) -> sqlite3.Connection:
        """Without a WAL, everything is in the file; SQLite would create one."""
        if self.file.with_name(f"{self.file.name}-wal").exists():
            return self._connect()
        return sqlite3.connect(f"{self.file.absolute().as_uri()}?immutable=1", uri=True, isolation_level=None)

    def _connect(self) -> sqlite3.Connection:
        # Created here with mode 0600: SQLite would use the umask.
        os.close(os.open(self.file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        return sqlite3.connect(
            self.file, timeout=_BUSY_MS / 1000, isolation_level=None, check_same_thread=False
        )

    def _replace(self, why: str) -> None:
        """Set the damaged file aside and create a new one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        try:
            aside = set_aside(self.file, self._clock.unix())
            log.error("%s is damaged (%s): renamed to %s; a new ledger begins", self.file, why, aside.name)
            self._open()
        except (sqlite3.Error, OSError) as error:
            self._wait_or_give_up(error)
        self.was_replaced = True

    def _give_up(self, error: Exception) -> None:
        remedy = ""
        if isinstance(error, PermissionError):
            # Such as files of a run as root before the service was installed.
            remedy = f": as root, `chown -h {os.geteuid()} {self.file.with_suffix('.*')}`"
        why = describe_failure(error, self.file)
        self._error = f"{why}{remedy}; the ledger is kept in memory until the next start"
        log.error("%s", self._error)

    def _release_lock(self) -> None:
        if self._lock is not None:
            self._lock.release()

    def _save(self, journal: Journal, now: float) -> bool:
        if self._connection is None and not self._needs_space:
            journal.mark_stored()
            self.was_replaced = False
            if self._lock is not None:
                self._lock.set_ahead(ahead=True)
            # Counters began at 0 with this run, and no stored value exists that they could step back to.
            return True
        self._journal = journal
        if now < self._retry_at:
            return self._may_show_unsaved()
        try:
            self._check_place()
            connection = self._connection or self._open_later()
            self._write(connection, journal)
        except (*_WRITE_ERRORS, GpuledgerError) as error:
            self._unsaved = journal
            self._fail(error, now)
            return self._may_show_unsaved()
        if journal.lost:
            log.error(
                "%s: lost %d sessions that ended while the file could not be written", self.file, journal.lost
            )
            journal.lost = 0
        self._succeed()
        try:
            self._pruner.run(connection, now, journal.unix, self.limits)
        except sqlite3.Error as error:
            self._fail(error, now)
        return True

    def _check_place(self) -> None:
        """Raise OSError if the path no longer has the open file."""
        if self._opened is None or is_same_file(self.file, self._opened):
            return
        if not self.file.exists():
            raise _FileRemoved("the file was removed")
        raise OSError(_REPLACED)

    def _recreate(self) -> None:
        """Create the removed file again. Raises OSError if that fails."""
        if self._lock is not None and not self._lock.is_in_place:
            old_lock, self._lock = self._lock, LedgerLock(self.file.with_suffix(".lock"))
            old_lock.release()
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        log.error("%s was removed: a new ledger begins with the data in memory", self.file)
        self._open_or_replace()
        self.was_replaced = True

    def _may_show_unsaved(self) -> bool:
        if self._lock is None:
            # Without a stored ledger, there are no values that a later run could step back to.
            return self._version is None
        return self._lock.set_ahead(ahead=True)

    def _write(self, connection: sqlite3.Connection, journal: Journal) -> None:
        if self._is_first_write:
            # The removal of the "clean" mark must survive a power cut.
            connection.execute("PRAGMA synchronous=FULL")
        with connection:
            connection.execute("BEGIN IMMEDIATE")
            if self._is_first_write:
                self._begin_run(connection, journal.unix)
            if self._zone is not self.limits.zone:
                name = time_zone_name(self.limits.zone)
                update_zone(connection, name, int(journal.unix // QUARTER))
            if self._written_node != self.node:
                connection.execute("REPLACE INTO meta VALUES (?, ?)", (NODE_NAME, self.node))
            if self._written_hold != journal.hold:
                connection.execute("REPLACE INTO meta VALUES (?, ?)", (ZERO_HOLD, journal.hold))
            write_journal(connection, journal)
        if self._is_first_write:
            connection.execute("PRAGMA synchronous=NORMAL")
            self._is_first_write = False
        self._zone, self._written_node, self._written_hold = self.limits.zone, self.node, journal.hold
        journal.mark_stored()
        self.was_replaced = False

    def _begin_run(self, connection: sqlite3.Connection, unix: float) -> None:
        meta = [("clean", 0), ("boot_id", self._boot_id), (LEDGER_NAME, self.file.stem)]
        connection.executemany("REPLACE INTO meta VALUES (?, ?)", meta)
        connection.execute("INSERT OR IGNORE INTO meta VALUES (?, ?)", (BEGUN, unix))
        if not self._continues_counters:
            restart_counters(connection)

    def _fail(self, error: Exception, now: float) -> None:
        if is_damage(error):
            self._replace(str(error))
            self._error = f"{self.file} was damaged and has been replaced"
            return
        if isinstance(error, _FileRemoved):
            try:
                self._recreate()
            except (GpuledgerError, OSError) as recreate_error:
                error = recreate_error
            else:
                self._error = self._error or f"{self.file} was removed and has been created again"
                return
        why = describe_failure(error, self.file)
        if not self._error:
            log.error("%s; the ledger continues in memory and is stored when the file is writable", why)
        self._error = why
        self._retry_at = now + self._retry_wait
        self._retry_wait = min(2 * self._retry_wait, _LONGEST_WAIT)

    def _succeed(self) -> None:
        if self._error:
            log.info("%s: the ledger is stored again", self.file)
        self._error, self._retry_wait, self._retry_at, self._unsaved = "", _FIRST_WAIT, 0.0, None
        if self._lock is not None:
            self._lock.set_ahead(ahead=False)

    def _close_cleanly(self, connection: sqlite3.Connection) -> None:
        try:
            journal = self._journal
            if journal is not None and (self._unsaved is not None or journal.has_left):
                journal.is_usage_due = True
                self._check_place()
                self._write(connection, journal)
                self._succeed()
            if not self._is_first_write:
                connection.execute("PRAGMA synchronous=FULL")
                connection.execute("REPLACE INTO meta VALUES ('clean', 1)")
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        except _WRITE_ERRORS as error:
            log.error("%s: %s; the last changes of the ledger could not be stored", self.file, error)
        finally:
            connection.close()


def _from_zero(stored: StoredLedger) -> StoredLedger:
    """The stored ledger with exported counters that begin at 0; the accounts continue."""
    gpus = {uuid: gpu.from_zero() for uuid, gpu in stored.gpus.items()}
    time = stored.times
    entries = {uuid: entry._replace(base=entry.time.posted, closed=0) for uuid, entry in time.gpus.items()}
    return replace(stored, gpus=gpus, times=replace(time, gpus=entries, series={}))
