"""The `doctor` check that the ledger can be stored on disk. Creates nothing."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpuledger.host.name_service import read_name_service
from gpuledger.ledger.settings import MEMORY_ONLY, StoreSettings
from gpuledger.ledger.store.schema import ZERO_HOLD, NotALedger, SchemaTooNew, meta_value, schema_version
from gpuledger.ledger.store.state_directory import SYSTEM_DIR, candidate_dirs
from gpuledger.model.checks import Check, Finding, Subject, fails, skipped, warning, works
from gpuledger.model.gpu_problems import health_findings, worst_first, xid_problems
from gpuledger.model.snapshot import LONGEST_INTERVAL

if TYPE_CHECKING:
    from sqlite3 import Connection

# The user of the systemd unit, and of the packages: only root can make a user with this name.
_SERVICE_USER: Final = "gpuledger"
LEDGER_DIRECTORY: Final = Subject("books.directory", "ledger")
LEDGER_INTERVAL: Final = Subject("books.interval", "interval of reads")
LEDGER_HOLD: Final = Subject("books.zero_hold", "hold of new counters")


def ledger_checks(
    settings: StoreSettings,
    environment: Mapping[str, str],
    *,
    made_up: bool,
    interval: float = 1.0,
    speed: float = 1.0,
    hold: float = inf,
    system: Path = SYSTEM_DIR,
) -> tuple[Check, ...]:
    """The checks of the state directory, and of an `interval` between ticks (seconds) that is too long.

    `made_up`: simulated data, stored only in a configured directory. `speed` is how many seconds of it pass
    in a second. `hold` is the configured `energy.zero_hold`, which can be too short for a client of the last
    run.
    """
    given = settings.state_dir
    directory = Check(*LEDGER_DIRECTORY, lambda: _check_directory(given, environment, made_up, system, hold))
    if interval * speed < LONGEST_INTERVAL:
        return (directory,)
    fast = f" and --speed {speed:g}" if speed != 1 else ""
    why = (
        f"with --interval {interval:g}s{fast} no GPU time is watched: reads must be less than "
        f"{LONGEST_INTERVAL:g} s apart{' in the time of the source' if fast else ''}"
    )
    fix = (
        f"set --interval to {LONGEST_INTERVAL / 2 / speed:g}s or less{' or a lower --speed' if fast else ''}"
    )
    return directory, Check(*LEDGER_INTERVAL, lambda: [warning(*LEDGER_INTERVAL, why, fix)])


def _check_directory(
    given: str, environment: Mapping[str, str], made_up: bool, system: Path, hold: float
) -> Iterator[Finding]:
    if given == MEMORY_ONLY:
        yield skipped(*LEDGER_DIRECTORY, "--state-dir none: kept in memory, lost when the program ends")
        return
    if made_up and not given:
        yield skipped(*LEDGER_DIRECTORY, "simulated data is stored only if --state-dir is set")
        return
    tried = candidate_dirs(given, environment, system)
    found = next((folder for folder in tried if _writable(folder)), None)
    if found is None:
        report_failure = fails if given else warning
        yield report_failure(
            *LEDGER_DIRECTORY,
            f"uid {os.geteuid()} cannot write {' or '.join(map(str, tried))}: sessions and energy are "
            "kept in memory and lost when the program ends",
            f"{_remedy(tried[0])}, or set another --state-dir",
        )
    else:
        yield from _check_file(found, hold)


def _check_file(folder: Path, hold: float) -> Iterator[Finding]:
    """Check that `serve` can continue the ledger, and what the last run stored in it."""
    import sqlite3

    file = folder / "gpuledger.db"
    failure: Finding | None = None
    contents: list[Finding] = []
    try:
        if file.exists():
            with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as connection:
                schema_version(connection)
                contents += _check_hold(connection, hold)
                contents += _check_xids(connection, time.time())
    except SchemaTooNew as version:
        why = (
            f"{file} was written by a newer gpuledger (schema {version}), so `gpuledger serve` does not start"
        )
        failure = fails(*LEDGER_DIRECTORY, why, "upgrade this gpuledger, or set another --state-dir")
    except sqlite3.OperationalError:
        # It is locked, older, or a file beside it cannot be written: none of these is damage.
        pass
    except (NotALedger, sqlite3.DatabaseError) as error:
        reason = str(error) or "another program wrote it"
        why = f"{file} is no ledger ({reason}): `gpuledger serve` renames it and begins a new one"
        remedy = "put a backup in its place while `gpuledger serve` is stopped"
        failure = fails(*LEDGER_DIRECTORY, why, remedy)
    yield failure or _check_permissions(folder)
    yield from contents


def _check_permissions(folder: Path) -> Finding:
    """Check that no other user can replace the ledger in this directory."""
    try:
        found = folder.stat()
    except FileNotFoundError:
        return works(*LEDGER_DIRECTORY, f"{folder} will be created, for uid {os.geteuid()} only")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        mode = stat.S_IMODE(found.st_mode)
        why = f"{folder} is writable by other users (mode {mode:04o}): they can falsify the ledger"
        return warning(*LEDGER_DIRECTORY, why, f"`chmod go-w {folder}`")
    if found.st_uid not in (0, os.geteuid()) and read_name_service(found.st_uid) != _SERVICE_USER:
        why = f"{folder} belongs to uid {found.st_uid}, which can falsify the ledger"
        return warning(*LEDGER_DIRECTORY, why, f"`chown {os.geteuid()} {folder}`")
    for file in folder.glob("gpuledger.*"):
        if (owner := file.lstat().st_uid) != found.st_uid:
            why = f"{file} belongs to uid {owner}, its directory to uid {found.st_uid}, which cannot write it"
            return warning(*LEDGER_DIRECTORY, why, f"`chown -h {found.st_uid} {folder}/gpuledger.*`")
    return works(*LEDGER_DIRECTORY, f"{folder} is writable")


def _check_hold(connection: Connection, hold: float) -> Iterator[Finding]:
    """Compare the configured hold with that of the last run, which follows the clients' scrape intervals."""
    stored = float(meta_value(connection, ZERO_HOLD) or 0.0)
    if stored > hold + 1:
        why = (
            f"energy.zero_hold is {hold:g} s, but a client has an interval and timeout of {stored:.0f} s: "
            "on a new node, it misses short jobs until its sixth scrape"
        )
        yield warning(*LEDGER_HOLD, why, f"set energy.zero_hold to {stored:.0f}s")


def _check_xids(connection: Connection, unix: float) -> Iterator[Finding]:
    """The Xids of the last day in the ledger of the last run, with NVIDIA's recommended action."""
    from gpuledger.ledger.store.tables import load_xids

    rows = [row for row, _ in load_xids(connection)]
    for uuid, index, bus in connection.execute("SELECT uuid, gpu_index, pci_bus_id FROM devices"):
        yield from health_findings(index, worst_first(xid_problems(uuid, bus, rows, unix)))


def _remedy(folder: Path) -> str:
    """How to make the directory writable."""
    if _read_only(folder):
        return (
            f"the file system is read-only: mount a directory that uid {os.geteuid()} can write at {folder} "
            f"(Docker: `--volume HOST_DIRECTORY:{folder}`, systemd: `StateDirectory=gpuledger`)"
        )
    return f"`install -d -m 700 -o {os.geteuid()} {folder}` as root"


def _read_only(folder: Path) -> bool:
    """Return whether the file system on which the directory would be is read-only, as in many containers."""
    try:
        return bool(os.statvfs(_nearest(folder)).f_flag & os.ST_RDONLY)
    except OSError:
        return False


def _writable(folder: Path) -> bool:
    """Return whether the directory exists or can be created, and is writable."""
    try:
        place = _nearest(folder)
        return stat.S_ISDIR(place.stat().st_mode) and os.access(place, os.W_OK | os.X_OK)
    except OSError:
        return False


def _nearest(folder: Path) -> Path:
    """The directory, or its nearest parent that exists. Raises OSError if that cannot be found out."""
    for place in (folder, *folder.absolute().parents):
        try:
            place.stat()
        except (FileNotFoundError, NotADirectoryError):
            continue
        return place
    return Path("/")
