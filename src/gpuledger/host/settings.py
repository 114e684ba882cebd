"""The settings for lookups of processes, users and devices of the machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import tzinfo
from typing import Any

from gpuledger.host.time_zone import find_time_zone, parse_time_zone
from gpuledger.model.settings import auto_or_boolean, build_settings, choice, setting, text


@dataclass(frozen=True)
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
        "file with the user names, in a container the machine's or the output of `getent passwd` there",
        metavar="FILE",
    )
    name_service: str = setting(
        "name_service",
        auto_or_boolean,
        "auto",
        "look up users that the file lacks in the name service (LDAP, SSSD), in a thread; auto does so "
        "outside containers unless --passwd-file is set",
        metavar="auto|true|false",
    )
    sysfs: str = setting(
        "sysfs",
        text,
        "/sys",
        "mount point of the machine's sys filesystem; a GPU on the PCI bus that the driver has lost is "
        "reported as failed",
        metavar="DIR",
    )

    def uses_name_service(self, *, is_named: bool, in_container: bool) -> bool:
        """Whether users are looked up in the name service. `is_named` if the user named a passwd file."""
        if self.name_service != "auto":
            return self.name_service == "true"
        return not is_named and not in_container


@dataclass(frozen=True)
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


def configured_time_zone(values: Mapping[str, Any]) -> tzinfo:
    """The time zone of the ledger and of reports, from parsed values (`config.load`)."""
    return find_time_zone(build_settings(TimeZoneSettings, values).timezone)
