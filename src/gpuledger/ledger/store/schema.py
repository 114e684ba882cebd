"""The tables of the ledger file, and the migrations from older versions.

`PRAGMA user_version` is the number of applied migrations. Energy is integer millijoules, wall times are unix
seconds, `*_at` are seconds on the source's clock, `age` counts back from the last commit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sqlite3 import Connection

# "gpul" in ASCII: identifies gpuledger's files.
APPLICATION_ID = 0x6770756C
# Keys of `meta`: unix seconds at which the file was created, and of its first posting.
CREATED, BEGUN = "created", "begun"
# The first quarter with time spans; the name of the time zone of folded hours, and JSON of earlier ones:
# [first quarter of the next zone, name].
TIME_FROM, ZONE, EARLIER_ZONES = "time_from", "zone", "earlier_zones"
# The unix seconds until which a file does not say in which seconds activity was unknown; missing if it always
# does.
ACTIVITY_FROM = "activity_from"
# The first quarter with usage by owner and Device.
USAGE_FROM = "usage_from"
# Identifies the ledger, whatever its file and its node are called.
BOOKS_ID = "books_id"
# The name that `serve` gave the ledger, which says whether its data are measured: a backup has another one.
LEDGER_NAME = "ledger"
# The node's name when `serve` last opened the ledger.
NODE_NAME = "node"
# Seconds for which new series are exported as 0.
ZERO_HOLD = "zero_hold"

_FIRST = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;

-- Devices as last seen; gi, ci, position and profile are those of an Instance.
CREATE TABLE devices (
    uuid TEXT PRIMARY KEY, gpu TEXT NOT NULL, gpu_index INTEGER NOT NULL, name TEXT NOT NULL,
    pci_bus_id TEXT NOT NULL, sm_count INTEGER, gi INTEGER, ci INTEGER, position INTEGER, profile TEXT
) WITHOUT ROWID;

-- The counter of each Gpu in its current epoch: booked - opening is the sum of all its accounts.
-- total counts since the ledger was created; base is its value when exported counters last began at 0.
CREATE TABLE gpus (
    uuid TEXT PRIMARY KEY, life INTEGER NOT NULL, boot_id TEXT NOT NULL, driver_load TEXT NOT NULL,
    opening INTEGER, booked INTEGER NOT NULL, last INTEGER, last_at REAL NOT NULL, refresh REAL,
    last_unix REAL, total INTEGER NOT NULL, base INTEGER NOT NULL, closed INTEGER NOT NULL
) WITHOUT ROWID;

-- Ended epochs.
CREATE TABLE epochs (
    uuid TEXT NOT NULL, life INTEGER NOT NULL, boot_id TEXT NOT NULL, driver_load TEXT NOT NULL,
    opening INTEGER, booked INTEGER NOT NULL, ended REAL NOT NULL, PRIMARY KEY (uuid, life)
) WITHOUT ROWID;

-- Energy of an epoch's spans that were deleted for age or size, or lost with a damaged file.
CREATE TABLE forgotten (
    uuid TEXT NOT NULL, life INTEGER NOT NULL, millijoules INTEGER NOT NULL, PRIMARY KEY (uuid, life)
) WITHOUT ROWID;

-- Quiet seconds by day and power step, from which floors are learned.
CREATE TABLE floors (
    uuid TEXT NOT NULL, resident INTEGER NOT NULL, day INTEGER NOT NULL, step INTEGER NOT NULL,
    seconds REAL NOT NULL, PRIMARY KEY (uuid, resident, day, step)
) WITHOUT ROWID;

-- One process on one Device, identified by device, pid and start (boot id and ticks, or first sight).
CREATE TABLE sessions (
    number INTEGER PRIMARY KEY,
    device TEXT NOT NULL, gpu TEXT NOT NULL, gpu_index INTEGER NOT NULL, instance TEXT NOT NULL,
    pid INTEGER NOT NULL, boot_id TEXT NOT NULL, ticks INTEGER, seen REAL, started REAL NOT NULL,
    command TEXT NOT NULL, executable TEXT NOT NULL, comm TEXT NOT NULL, types TEXT NOT NULL,
    uid INTEGER, login TEXT NOT NULL, host_missing TEXT NOT NULL,
    owner_kind TEXT NOT NULL, namespace TEXT NOT NULL, pod TEXT NOT NULL, container TEXT NOT NULL,
    pod_uid TEXT NOT NULL, container_id TEXT NOT NULL, runtime TEXT NOT NULL, job TEXT NOT NULL,
    step TEXT NOT NULL, unit TEXT NOT NULL, owner_user TEXT NOT NULL, found_by TEXT NOT NULL,
    missing TEXT NOT NULL,
    first_seen REAL NOT NULL
);
-- The usage of a session: a separate table, because it changes at every tick.
CREATE TABLE usage (
    number INTEGER PRIMARY KEY, last_seen REAL NOT NULL, ended REAL, exit_seen INTEGER NOT NULL,
    peak_memory INTEGER, sm_seconds REAL NOT NULL, sm_known REAL NOT NULL, sm_most REAL,
    held_seconds REAL NOT NULL, measured INTEGER NOT NULL, apportioned INTEGER NOT NULL, high INTEGER NOT NULL
);
CREATE INDEX usage_ended ON usage (ended) WHERE ended IS NOT NULL;

-- Consecutive intervals with the same residents and method, cut at full hours. life is NULL for integrated
-- power. Floors are milliwatts.
CREATE TABLE spans (
    number INTEGER PRIMARY KEY, uuid TEXT NOT NULL, life INTEGER, method TEXT NOT NULL,
    begins REAL NOT NULL, ends REAL NOT NULL, idle INTEGER NOT NULL, unattributed INTEGER NOT NULL,
    unobserved INTEGER NOT NULL, empty_floor INTEGER, resident_floor INTEGER
);
CREATE INDEX spans_begins ON spans (begins);
CREATE TABLE shares (
    span INTEGER NOT NULL, session INTEGER NOT NULL, millijoules INTEGER NOT NULL,
    resident INTEGER NOT NULL, work INTEGER NOT NULL, PRIMARY KEY (span, session)
) WITHOUT ROWID;

-- Exported counters of a book: energy of owners or of rows, or time (then in microseconds; `measured` is the
-- highest amount so far).
CREATE TABLE series (
    number INTEGER PRIMARY KEY, book TEXT NOT NULL, labels TEXT NOT NULL, process TEXT,
    born_at REAL NOT NULL, lasting INTEGER NOT NULL
);
-- Their values: a separate table, because they change at every tick.
CREATE TABLE told (number INTEGER PRIMARY KEY, millijoules INTEGER NOT NULL, measured INTEGER NOT NULL);
-- Owners of running processes, as far as known.
CREATE TABLE owners (
    device TEXT NOT NULL, pid INTEGER NOT NULL, start TEXT NOT NULL, process TEXT NOT NULL,
    owner TEXT, since_at REAL NOT NULL, resolved INTEGER NOT NULL,
    waiting TEXT NOT NULL, methods TEXT NOT NULL, PRIMARY KEY (device, pid, start)
) WITHOUT ROWID;
"""

_FLOORS_BY_DRIVER = """
-- The driver of earlier data is unknown: learn the floors again.
DROP TABLE floors;
CREATE TABLE floors (
    uuid TEXT NOT NULL, driver TEXT NOT NULL, resident INTEGER NOT NULL, day INTEGER NOT NULL,
    step INTEGER NOT NULL, seconds REAL NOT NULL, PRIMARY KEY (uuid, driver, resident, day, step)
) WITHOUT ROWID;
"""

_REPORTS = """
-- labels is a JSON list of [name, value].
ALTER TABLE sessions ADD COLUMN labels TEXT NOT NULL DEFAULT '[]';
ALTER TABLE sessions ADD COLUMN controller_kind TEXT NOT NULL DEFAULT '';
ALTER TABLE sessions ADD COLUMN controller TEXT NOT NULL DEFAULT '';
CREATE INDEX usage_open ON usage (number) WHERE ended IS NULL;
-- begun and latest bound everything seen of the session, even if the clock was set; indexes on them find the
-- sessions alive at a time (most end within a day). stay is the beginning of the current watched stretch (it
-- ends with last_seen), stays the number of earlier stretches.
ALTER TABLE usage ADD COLUMN begun REAL NOT NULL DEFAULT 0;
ALTER TABLE usage ADD COLUMN latest REAL NOT NULL DEFAULT 0;
ALTER TABLE usage ADD COLUMN stay REAL NOT NULL DEFAULT 0;
ALTER TABLE usage ADD COLUMN stays INTEGER NOT NULL DEFAULT 0;
UPDATE usage SET begun = (SELECT first_seen FROM sessions WHERE sessions.number = usage.number);
UPDATE usage SET stay = begun, latest = last_seen;
CREATE INDEX usage_begun ON usage (begun, latest) WHERE ended IS NOT NULL;
CREATE INDEX usage_long ON usage (latest) WHERE ended IS NOT NULL AND latest - begun > 86400;
CREATE TABLE stays (
    session INTEGER NOT NULL, begins REAL NOT NULL, ends REAL NOT NULL, PRIMARY KEY (session, begins)
) WITHOUT ROWID;
-- Minutes (unix) in which a session certainly used no engine: bit n is second n.
CREATE TABLE held (
    minute INTEGER NOT NULL, session INTEGER NOT NULL, bits INTEGER NOT NULL, PRIMARY KEY (minute, session)
) WITHOUT ROWID;

-- An allocation of a Device, and the seconds in which none of the owner's processes was on it. owner is JSON.
CREATE TABLE handovers (
    number INTEGER PRIMARY KEY, device TEXT NOT NULL, owner TEXT NOT NULL, begins REAL NOT NULL,
    ends REAL NOT NULL, over INTEGER NOT NULL
);
CREATE INDEX handovers_ends ON handovers (ends);
CREATE TABLE unused (
    minute INTEGER NOT NULL, handover INTEGER NOT NULL, bits INTEGER NOT NULL, PRIMARY KEY (minute, handover)
) WITHOUT ROWID;

-- The unix hour to which a span belongs: that of its beginning. A span longer than an hour belongs to the
-- hour of its end, so that an hour already reported does not change.
ALTER TABLE spans ADD COLUMN hour INTEGER NOT NULL DEFAULT 0;
UPDATE spans SET hour = CAST(CASE WHEN ends - begins > 3600 THEN ends ELSE begins END / 3600 AS INTEGER);
DROP INDEX spans_begins;
CREATE INDEX spans_hour ON spans (hour);

-- Spans and sessions older than store.detail, by hour and party. A party is what reports can distinguish: a
-- Device, an owner and a command, as JSON.
CREATE TABLE parties (number INTEGER PRIMARY KEY, who TEXT NOT NULL UNIQUE, last_hour INTEGER NOT NULL);
CREATE INDEX parties_last_hour ON parties (last_hour);
-- The spans of an hour with the same residents (sorted numbers of parties) and method; life is -1 for
-- integrated power.
CREATE TABLE hours (
    number INTEGER PRIMARY KEY, hour INTEGER NOT NULL, uuid TEXT NOT NULL, life INTEGER NOT NULL,
    method TEXT NOT NULL, residents TEXT NOT NULL, microseconds INTEGER NOT NULL, idle INTEGER NOT NULL,
    unattributed INTEGER NOT NULL, unobserved INTEGER NOT NULL,
    UNIQUE (hour, uuid, life, method, residents)
);
CREATE TABLE hour_shares (
    number INTEGER NOT NULL, party INTEGER NOT NULL, millijoules INTEGER NOT NULL,
    PRIMARY KEY (number, party)
) WITHOUT ROWID;
-- Seconds of an hour (see ledger/watched_time.py) in which a party was resident, was present but inactive,
-- and had the Device allocated; running counts sessions in the hour, begun those that began in it.
CREATE TABLE hour_times (
    hour INTEGER NOT NULL, party INTEGER NOT NULL, resident BLOB, held BLOB, allocated BLOB,
    running INTEGER NOT NULL, begun INTEGER NOT NULL, PRIMARY KEY (hour, party)
) WITHOUT ROWID;
"""

_TIME = """
-- A quarter is unix seconds // 900: spans are cut at quarters of an hour. The row of a folded hour has the
-- quarter of its beginning: a full hour of the ledger's time zone, of unix time before this version.
DROP INDEX spans_hour;
ALTER TABLE spans RENAME COLUMN hour TO quarter;
UPDATE spans SET quarter = 4 * quarter;
CREATE INDEX spans_quarter ON spans (quarter);
DROP INDEX parties_last_hour;
ALTER TABLE parties RENAME COLUMN last_hour TO last_quarter;
UPDATE parties SET last_quarter = 4 * last_quarter;
CREATE INDEX parties_last_quarter ON parties (last_quarter);
UPDATE meta SET value = 4 * value WHERE key = 'times_from';
ALTER TABLE sessions ADD COLUMN slurm_account TEXT NOT NULL DEFAULT '';
ALTER TABLE sessions ADD COLUMN partition TEXT NOT NULL DEFAULT '';
-- Copied: an update in place would meet rows of the same key if the clock began in 1970.
CREATE TABLE new_hours (
    number INTEGER PRIMARY KEY, quarter INTEGER NOT NULL, uuid TEXT NOT NULL, life INTEGER NOT NULL,
    method TEXT NOT NULL, residents TEXT NOT NULL, microseconds INTEGER NOT NULL, idle INTEGER NOT NULL,
    unattributed INTEGER NOT NULL, unobserved INTEGER NOT NULL,
    UNIQUE (quarter, uuid, life, method, residents)
);
INSERT INTO new_hours SELECT number, 4 * hour, uuid, life, method, residents, microseconds, idle,
    unattributed, unobserved FROM hours ORDER BY number;
DROP TABLE hours;
ALTER TABLE new_hours RENAME TO hours;
CREATE TABLE new_times (
    quarter INTEGER NOT NULL, party INTEGER NOT NULL, resident BLOB, held BLOB, unknown BLOB, allocated BLOB,
    running INTEGER NOT NULL, begun INTEGER NOT NULL, PRIMARY KEY (quarter, party)
) WITHOUT ROWID;
INSERT INTO new_times SELECT 4 * hour, party, resident, held, NULL, allocated, running, begun FROM hour_times
    ORDER BY hour, party;
DROP TABLE hour_times;
ALTER TABLE new_times RENAME TO hour_times;
-- As `held` and `unused`: the seconds in which it is not known whether an engine was busy for a session, or
-- whether a process of the owner was on the allocated Device. Earlier versions did not keep them.
CREATE TABLE unknown (
    minute INTEGER NOT NULL, session INTEGER NOT NULL, bits INTEGER NOT NULL, PRIMARY KEY (minute, session)
) WITHOUT ROWID;
CREATE TABLE unread (
    minute INTEGER NOT NULL, handover INTEGER NOT NULL, bits INTEGER NOT NULL, PRIMARY KEY (minute, handover)
) WITHOUT ROWID;
INSERT INTO meta SELECT 'activity_from', value FROM meta WHERE key = 'unix';

-- The time books. A split is JSON: [allocation, residence], the second null if it is the same. Each is a list
-- of [numerator, account, part, session or null, owner or null, 1 if estimated], in the order of ties; the
-- denominator is the sum. `owner` is a number of time_owners.
CREATE TABLE time_splits (number INTEGER PRIMARY KEY, split TEXT NOT NULL);
-- Watched time of one Gpu with one split, cut at each quarter; times are unix microseconds.
CREATE TABLE time_spans (
    number INTEGER PRIMARY KEY, quarter INTEGER NOT NULL, gpu TEXT NOT NULL, split INTEGER NOT NULL,
    begins INTEGER NOT NULL, ends INTEGER NOT NULL, microseconds INTEGER NOT NULL
);
CREATE INDEX time_spans_quarter ON time_spans (quarter);
CREATE INDEX time_spans_split ON time_spans (split);
-- Owners in splits that have no Session: JSON as in `handovers`, on a Device. Names can arrive later. `split`
-- is the last one with this owner.
CREATE TABLE time_owners (
    number INTEGER PRIMARY KEY, device TEXT NOT NULL, owner TEXT NOT NULL, command TEXT NOT NULL,
    split INTEGER NOT NULL
);
-- JSON: uuid and model of a Gpu; instance and profile; numerator and denominator of the part of the Gpu.
CREATE TABLE gpu_parts (number INTEGER PRIMARY KEY, part TEXT NOT NULL UNIQUE);
-- Folded time spans: microseconds by both bases. party is 0 for the Gpu's own accounts.
CREATE TABLE hour_gpu_time (
    quarter INTEGER NOT NULL, part INTEGER NOT NULL, account TEXT NOT NULL, party INTEGER NOT NULL,
    is_estimate INTEGER NOT NULL, allocation INTEGER NOT NULL, residence INTEGER NOT NULL,
    PRIMARY KEY (quarter, part, account, party, is_estimate)
) WITHOUT ROWID;
-- The time state of each Gpu. All its microseconds are `posted` and those of time span `span`. `base` is what
-- was posted when exported counters (by `basis`) last began at 0, `closed` the time of series that have ended
-- since then; `forgotten` is time of spans that were deleted for age or size, or lost with a damaged file.
-- `first` and `last` are the unix microseconds between which the Gpu was read, watched or not; the newest
-- span may end later. `state` is JSON (ledger/time/stored.py).
CREATE TABLE gpu_times (
    uuid TEXT PRIMARY KEY, basis TEXT NOT NULL, posted INTEGER NOT NULL, span INTEGER, base INTEGER NOT NULL,
    closed INTEGER NOT NULL, state TEXT NOT NULL, first INTEGER, last INTEGER,
    forgotten INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
"""

_FACTS = """
-- JSON of the facts about the owner, by name, that have no column above.
ALTER TABLE sessions ADD COLUMN facts TEXT NOT NULL DEFAULT '{}';
"""

_XIDS = """
-- Equal Xids of a Gpu (and instance) in quick succession; session is that of the only process there.
CREATE TABLE xids (
    number INTEGER PRIMARY KEY, gpu TEXT NOT NULL, instance TEXT NOT NULL, xid INTEGER NOT NULL,
    first REAL NOT NULL, last REAL NOT NULL, times INTEGER NOT NULL, session INTEGER
);
"""

_USAGE_COLUMNS = """
    begins REAL NOT NULL, ends REAL NOT NULL,
    seen INTEGER NOT NULL, resident INTEGER NOT NULL, allocated INTEGER NOT NULL, shared INTEGER NOT NULL,
    active INTEGER NOT NULL, inactive INTEGER NOT NULL, sm INTEGER NOT NULL, sm_known INTEGER NOT NULL,
    busy INTEGER NOT NULL, busy_known INTEGER NOT NULL, memory INTEGER NOT NULL,
    memory_known INTEGER NOT NULL, starts INTEGER NOT NULL, waited INTEGER NOT NULL,
    throttle_known INTEGER NOT NULL, sm_peak INTEGER, memory_peak INTEGER,
    pcie_tx INTEGER, pcie_rx INTEGER, nvlink_tx INTEGER, nvlink_rx INTEGER,
    throttled TEXT NOT NULL, bars BLOB NOT NULL
"""

_USAGE = f"""
-- As in OpenSession: pages times milliseconds, milliseconds, microseconds, unix seconds. active is NULL for
-- sessions of which an earlier version kept a part.
ALTER TABLE usage ADD COLUMN memory_pages INTEGER NOT NULL DEFAULT 0;
ALTER TABLE usage ADD COLUMN memory_known INTEGER NOT NULL DEFAULT 0;
ALTER TABLE usage ADD COLUMN active INTEGER;
ALTER TABLE usage ADD COLUMN first_active REAL;
-- Bytes of memory of each Device, as last read.
CREATE TABLE device_memory (uuid TEXT PRIMARY KEY, bytes INTEGER NOT NULL) WITHOUT ROWID;
-- The presence of an owner on a Device, as in UsagePeriod; owner is JSON (of earlier versions also null, for
-- the Device itself).
CREATE TABLE usage_periods (
    number INTEGER PRIMARY KEY, device TEXT NOT NULL, owner TEXT NOT NULL, begins REAL NOT NULL,
    start TEXT NOT NULL, over INTEGER NOT NULL, last_quarter INTEGER NOT NULL
);
CREATE INDEX usage_periods_open ON usage_periods (number) WHERE NOT over;
CREATE INDEX usage_periods_last_quarter ON usage_periods (last_quarter);
-- What was seen of each presence in a quarter, as in UsageCell, and the same of folded hours, in which one
-- presence stands for all of its owner on the Device. throttled is JSON by reason; bars are as in UsageBars.
CREATE TABLE usage_quarters (
    quarter INTEGER NOT NULL, period INTEGER NOT NULL, {_USAGE_COLUMNS}, PRIMARY KEY (quarter, period)
) WITHOUT ROWID;
CREATE TABLE usage_hours (
    quarter INTEGER NOT NULL, period INTEGER NOT NULL, {_USAGE_COLUMNS}, PRIMARY KEY (quarter, period)
) WITHOUT ROWID;
-- The cgroup of an owner on the node, as in HostPeriod; owner is JSON. cpu is microseconds, closed those of
-- earlier cgroups of the same owner, memory is bytes.
CREATE TABLE host_periods (
    number INTEGER PRIMARY KEY, owner TEXT NOT NULL, begins REAL NOT NULL, ends REAL NOT NULL,
    cpu INTEGER, closed INTEGER NOT NULL, memory_peak INTEGER, is_sampled INTEGER NOT NULL,
    memory_limit INTEGER, cpus INTEGER, is_limited INTEGER NOT NULL, over INTEGER NOT NULL
);
CREATE INDEX host_periods_ends ON host_periods (ends);
"""

MIGRATIONS: tuple[str, ...] = (_FIRST, _FLOORS_BY_DRIVER, _REPORTS, _TIME, _FACTS, _XIDS, _USAGE)


class NotALedger(Exception):
    """The file is an SQLite database, but not a gpuledger ledger."""


class SchemaTooNew(Exception):
    """A later version wrote the file's schema; the message is its number."""


def schema_version(connection: Connection) -> int:
    """The version of a ledger file, 0 for an empty file.

    Raises NotALedger and SchemaTooNew, and sqlite3.Error for problems with the file.
    """
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    (identity,) = connection.execute("PRAGMA application_id").fetchone()
    if version > len(MIGRATIONS) and identity == APPLICATION_ID:
        raise SchemaTooNew(str(version))
    occupied = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if identity != APPLICATION_ID and (version or occupied):
        raise NotALedger
    return version


def migrate_schema(connection: Connection) -> None:
    """Migrate the file to this version. Each migration is one transaction.

    Raises as `schema_version`.
    """
    version = schema_version(connection)
    if not version:
        # Effective only in an empty file.
        connection.execute("PRAGMA auto_vacuum=INCREMENTAL")
    connection.execute("PRAGMA journal_mode=WAL").fetchall()
    for number, script in enumerate(MIGRATIONS[version:], version + 1):
        # executescript commits first, so the script must hold the whole transaction.
        connection.executescript(
            f"BEGIN IMMEDIATE;{script};PRAGMA application_id={APPLICATION_ID};"
            f"PRAGMA user_version={number};COMMIT;"
        )


def meta_value(connection: Connection, key: str) -> Any:
    """The value of a key of `meta`; None if it is not there. Raises sqlite3.Error."""
    row = connection.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    return None if row is None else row[0]
