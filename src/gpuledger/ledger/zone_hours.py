"""Quarters of an hour, and the full hours of a time zone that they belong to. Pure.

A quarter is a number: unix seconds // 900. A full hour is a run of quarters with the same local hour and the
same offset from UTC. It has four quarters; less where the offset changes within the hour (Australia/Lord_Howe
moves its clocks by 30 minutes). Days, weeks and months of a zone begin with a full hour. The zone None is the
machine's.
"""

from __future__ import annotations

from datetime import datetime, timedelta, tzinfo

from gpuledger.ledger.watched_time import QUARTER, QUARTERS_PER_HOUR


def hour_begins(quarter: int, zone: tzinfo | None) -> int:
    """The first quarter of the zone's full hour that contains this quarter."""
    hour = _local_hour(quarter, zone)
    first = quarter
    while quarter - first < QUARTERS_PER_HOUR - 1 and _local_hour(first - 1, zone) == hour:
        first -= 1
    return first


def hour_ends(quarter: int, zone: tzinfo | None) -> int:
    """The first quarter after the zone's full hour that contains this quarter."""
    hour = _local_hour(quarter, zone)
    begins = hour_begins(quarter, zone)
    end = quarter + 1
    while end - begins < QUARTERS_PER_HOUR and _local_hour(end, zone) == hour:
        end += 1
    return end


def is_full_hour(quarter: int, zone: tzinfo | None) -> bool:
    """Whether a full hour of the zone begins with this quarter."""
    return hour_begins(quarter, zone) == quarter


def nearest_hour(quarter: int, zone: tzinfo | None) -> int:
    """The begin of a full hour of the zone that is nearest to this quarter; of two, the later."""
    before = hour_begins(quarter, zone)
    if before == quarter:
        return quarter
    after = hour_ends(quarter, zone)
    return before if quarter - before < after - quarter else after


def local_time(quarter: int, zone: tzinfo | None) -> datetime:
    """The begin of a quarter as a time of the zone."""
    local = datetime.fromtimestamp(quarter * QUARTER, zone)
    return local.astimezone() if zone is None else local


def _local_hour(quarter: int, zone: tzinfo | None) -> tuple[int, timedelta | None]:
    """Two neighboring quarters with equal results belong to the same full hour."""
    local = local_time(quarter, zone)
    return local.hour, local.utcoffset()
