"""Time zones, among them those with unusual clocks."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

BERLIN = ZoneInfo("Europe/Berlin")
ZONES = [
    ZoneInfo(name)
    for name in (
        "UTC",
        "Europe/Berlin",
        "Asia/Kolkata",
        "Asia/Kathmandu",
        "America/St_Johns",
        "Australia/Lord_Howe",
        "Africa/Cairo",
        "America/Havana",
        "America/Santiago",
        "Pacific/Apia",
    )
]


def unix(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
