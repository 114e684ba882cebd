"""The settings for lookups of processes, users and devices of the machine."""

from __future__ import annotations

from dataclasses import dataclass

from gpuledger.host.time_zone import parse_time_zone
from gpuledger.model.settings import choice, setting, text


@dataclass(frozen=True, slots=True)
class HostSettings:
    """Paths for lookups of the machine's processes, users and PCI devices."""

    procfs: str = setting(
        "procfs",
        text,
        "/proc",
        "mount point of the machine's proc filesystem",
        metavar="DIR",
    )
    pids: str = setting(
        "host.pids",
        choice("auto", "trust"),
        "auto",
        "auto looks up pids only where the host's pids are visible (in Kubernetes: hostPID: true), because "
        "the driver reports host pids, and another pid namespace uses the same numbers for other processes; "
        "trust always looks them up",
        flags=("--host-pids",),
    )
    passwd: str = setting(
        "passwd_file",
        text,
        "/etc/passwd",
        "file with the user names; for users of a directory server, fill it with the output of `getent "
        "passwd`",
        metavar="FILE",
    )
    sysfs: str = setting(
        "sysfs",
        text,
        "/sys",
        "mount point of the machine's sys filesystem; a GPU on the PCI bus that the driver has lost is "
        "reported as failed",
        metavar="DIR",
    )


@dataclass(frozen=True, slots=True)
class TimeZoneSettings:
    """The time zone of the ledger and of reports."""

    timezone: str = setting(
        "report.timezone",
        parse_time_zone,
        "",
        "IANA name of the time zone of reports: of dates, days, months and the full hours to which older "
        "history is summed (default: the machine's)",
        metavar="ZONE",
    )
