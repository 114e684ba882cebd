"""Finds time zones: by their IANA name, or the machine's own."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta, tzinfo
from os import environ
from pathlib import Path

from gpuledger.model.errors import suggest_name

_EXPECTED = "expected the IANA name of a time zone, such as Europe/Berlin or UTC"
_LOCALTIME = Path("/etc/localtime")
_DIRECTORY = "zoneinfo/"
# Files of the database that name no fixed zone.
_NO_ZONES = frozenset(("localtime", "posixrules", "Factory"))


class UtcTimeZone(tzinfo):
    """UTC under the name `key`, for most servers and containers: `zoneinfo` needs 0.2 MiB."""

    def __init__(self, key: str) -> None:
        self.key = key

    def fromutc(self, dt: datetime) -> datetime:
        """The same time."""
        return dt

    def utcoffset(self, _: datetime | None) -> timedelta:
        """No difference."""
        return timedelta()

    def dst(self, _: datetime | None) -> timedelta:
        """No summer time."""
        return timedelta()

    def tzname(self, _: datetime | None) -> str:
        """The abbreviation."""
        return "UTC"


_UTC = {name: UtcTimeZone(name) for name in ("UTC", "Etc/UTC")}


class MachineTimeZone(tzinfo):
    """The time zone of the machine's C library, for machines that do not say which zone theirs is.

    `key` is what is known of it: the environment variable TZ, or the file.
    """

    def __init__(self, key: str) -> None:
        self.key = key

    def fromutc(self, dt: datetime) -> datetime:
        """The local time of a time in UTC that has this object as its zone."""
        unix = dt.replace(tzinfo=UTC).timestamp()
        return datetime.fromtimestamp(unix).replace(tzinfo=self)

    def utcoffset(self, dt: datetime | None) -> timedelta | None:
        """The difference of local time from UTC."""
        return None if dt is None else dt.replace(tzinfo=None).astimezone().utcoffset()

    def dst(self, dt: datetime | None) -> timedelta | None:  # noqa: ARG002  (named as in tzinfo)
        """The part of the difference that is summer time: not known."""
        return None

    def tzname(self, dt: datetime | None) -> str | None:
        """The abbreviation, such as CET."""
        return None if dt is None else dt.replace(tzinfo=None).astimezone().tzname()


def parse_time_zone(value: object) -> str:
    """The IANA name of a time zone; empty for the machine's. Raises ValueError with the expected form."""
    if value is None:
        return ""
    name = str(value).strip()
    if name:
        named_time_zone(name)
    return name


def find_time_zone(name: str) -> tzinfo:
    """The time zone with this IANA name, or the machine's if the name is empty. Raises ValueError."""
    return named_time_zone(name) if name else machine_time_zone()


def named_time_zone(name: str) -> tzinfo:
    """The time zone with this IANA name. Raises ValueError with a similar name or what is missing."""
    if name in _UTC:
        return _UTC[name]
    # Imported lazily, for memory: most commands only need UTC.
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

    try:
        if name not in _NO_ZONES:
            return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        pass
    known = available_timezones() - _NO_ZONES
    if not known:
        raise ValueError(
            "this machine has no time zone database: install the package tzdata of your distribution or of "
            "PyPI, or leave the setting empty"
        )
    raise ValueError(
        f"{_EXPECTED} ({suggest_name(name, known, otherwise='see `timedatectl list-timezones`')})"
    )


def machine_time_zone() -> tzinfo:
    """The machine's time zone, from TZ or /etc/localtime, as the C library finds it."""
    given = environ.get("TZ")
    name = _name_in(given.removeprefix(":")) if given is not None else _name_in(_link_target(_LOCALTIME))
    if name:
        try:
            zone = named_time_zone(name)
        except ValueError:
            zone = None
        # The C library reads another database: both must agree on today's and last summer's time.
        if zone is not None and _agrees(zone):
            return zone
    return MachineTimeZone(given or str(_LOCALTIME))


def time_zone_name(zone: tzinfo) -> str:
    """The IANA name of a zone, or what is known of it."""
    return str(getattr(zone, "key", "")) or str(zone)


def _name_in(path: str) -> str:
    """The name of a zone in the path of its file: `../usr/share/zoneinfo/Europe/Berlin`; else the text."""
    _, directory, name = path.rpartition(_DIRECTORY)
    return name if directory else path


def _link_target(path: Path) -> str:
    try:
        return str(path.readlink())
    except OSError:
        return ""


def _agrees(zone: tzinfo) -> bool:
    now = time.time()
    half_year = 183 * 86_400
    return all(
        datetime.fromtimestamp(unix, zone).utcoffset()
        == datetime.fromtimestamp(unix).astimezone().utcoffset()
        for unix in (now, now - half_year)
    )
