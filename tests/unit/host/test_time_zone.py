"""Time zones by name, and the machine's."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from gpuledger.host import time_zone
from gpuledger.host.time_zone import (
    MachineTimeZone,
    find_time_zone,
    machine_time_zone,
    parse_time_zone,
    time_zone_name,
)

SUMMER, WINTER = 1_783_000_000, 1_795_854_600


@pytest.fixture
def set_zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    def set_zone(value: str) -> None:
        monkeypatch.setenv("TZ", value)
        time.tzset()

    yield set_zone
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize("name", ["UTC", "Europe/Berlin", "Asia/Kolkata", "America/Argentina/Ushuaia"])
def test_a_name_is_accepted(name: str) -> None:
    assert parse_time_zone(f" {name} ") == name
    assert find_time_zone(name) is find_time_zone(name)
    assert time_zone_name(find_time_zone(name)) == name


@pytest.mark.parametrize("name", ["UTC", "Etc/UTC", "Europe/Berlin"])
def test_a_named_zone_is_that_of_the_database(name: str) -> None:
    for unix in (SUMMER, WINTER):
        ours, theirs = (datetime.fromtimestamp(unix, zone) for zone in (find_time_zone(name), ZoneInfo(name)))
        assert ours == theirs and ours.replace(tzinfo=None) == theirs.replace(tzinfo=None)
        assert (ours.utcoffset(), ours.dst(), ours.tzname(), ours.timestamp()) == (
            *(theirs.utcoffset(), theirs.dst(), theirs.tzname()),
            unix,
        )


@pytest.mark.parametrize("value", ["", "  ", None])
def test_empty_is_the_machines_zone(value: object) -> None:
    assert parse_time_zone(value) == ""


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("Europe/Berln", "did you mean 'Europe/Berlin'"),
        ("europe/berlin", "did you mean 'Europe/Berlin'"),
        ("+02:00", "timedatectl list-timezones"),
        ("/etc/localtime", "timedatectl list-timezones"),
        ("localtime", ""),
        ("../Europe/Berlin", "'Europe/Berlin'"),
        ("Europe", ""),
        ("zone.tab", ""),
        ("True", ""),
        ("x" * 300, "timedatectl"),
        ("a\0b", "timedatectl"),
    ],
)
def test_a_wrong_name_is_refused_in_one_line(name: str, hint: str) -> None:
    with pytest.raises(ValueError, match=r"^expected the IANA name of a time zone, such as .*$") as refused:
        parse_time_zone(name)
    assert hint in str(refused.value)


def test_a_machine_without_a_database_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zoneinfo.ZoneInfo", _no_zones)
    monkeypatch.setattr("zoneinfo.available_timezones", set)
    with pytest.raises(ValueError, match="no time zone database: install the package tzdata"):
        parse_time_zone("Europe/Berlin")


def _no_zones(name: str) -> ZoneInfo:
    raise ValueError(name)


@pytest.mark.parametrize(
    "value", ["America/St_Johns", ":America/St_Johns", "/usr/share/zoneinfo/America/St_Johns"]
)
def test_the_machines_zone_is_that_of_its_environment(set_zone: Callable[[str], None], value: str) -> None:
    set_zone(value)
    assert machine_time_zone() is ZoneInfo("America/St_Johns")


def test_the_machines_zone_is_that_of_its_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TZ", raising=False)
    time.tzset()
    link = tmp_path / "localtime"
    link.symlink_to(Path("/etc/localtime").resolve())
    monkeypatch.setattr(time_zone, "_LOCALTIME", link)
    assert datetime.fromtimestamp(WINTER, machine_time_zone()).utcoffset() == timedelta(
        seconds=time.localtime(WINTER).tm_gmtoff
    )


@pytest.mark.parametrize("value", ["CET-1CEST,M3.5.0,M10.5.0/3", "EST5EDT,M3.2.0,M11.1.0", "XYZ-5:45"])
def test_a_zone_without_a_name_is_that_of_the_c_library(set_zone: Callable[[str], None], value: str) -> None:
    set_zone(value)
    zone = machine_time_zone()
    assert isinstance(zone, MachineTimeZone)
    assert time_zone_name(zone) == value
    for unix in (SUMMER, WINTER):
        local = datetime.fromtimestamp(unix, zone)
        assert local.isoformat() == datetime.fromtimestamp(unix).astimezone().isoformat()
        assert local.timestamp() == unix


def test_both_hours_of_a_repeated_hour_are_different(set_zone: Callable[[str], None]) -> None:
    set_zone("CET-1CEST,M3.5.0,M10.5.0/3")
    zone = machine_time_zone()
    first = int(datetime.fromisoformat("2026-10-25T00:30+00:00").timestamp())
    clocks = [datetime.fromtimestamp(unix, zone).isoformat() for unix in (first, first + 3600)]
    assert clocks == ["2026-10-25T02:30:00+02:00", "2026-10-25T02:30:00+01:00"]


def test_a_zone_with_another_offset_than_the_c_library_is_not_the_machines(
    set_zone: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    set_zone("Asia/Kathmandu")
    monkeypatch.setattr(time_zone, "named_time_zone", lambda name: ZoneInfo("Europe/Berlin"))
    assert isinstance(machine_time_zone(), MachineTimeZone)


def test_an_invalid_zone_of_the_machine_is_utc_as_for_the_c_library(set_zone: Callable[[str], None]) -> None:
    set_zone("Nowhere/Nothing")
    assert datetime.fromtimestamp(WINTER, machine_time_zone()).utcoffset() == timedelta()
