"""What a user sets about the machine that pids belong to."""

from __future__ import annotations

from dataclasses import dataclass

from gpuledger.model.settings import choice, setting, text


@dataclass(frozen=True, slots=True)
class HostSettings:
    """Where the machine's processes, users and PCI devices are looked up."""

    procfs: str = setting(
        "procfs",
        text,
        "/proc",
        "where the proc filesystem of the machine is mounted",
        metavar="DIR",
    )
    pids: str = setting(
        "host.pids",
        choice("auto", "trust"),
        "auto",
        "auto looks pids up only where the host's own are visible (in Kubernetes: hostPID: true), because "
        "the driver tells host pids and another namespace has other processes under the same numbers; "
        "trust always looks them up",
        flags=("--host-pids",),
        metavar="auto|trust",
    )
    passwd: str = setting(
        "passwd_file",
        text,
        "/etc/passwd",
        "file with the names of users; where they come from a directory server, give it the output of "
        "`getent passwd`",
        metavar="FILE",
    )
    sysfs: str = setting(
        "sysfs",
        text,
        "/sys",
        "where the sys filesystem of the machine is mounted; a GPU that its PCI bus has and the driver has "
        "lost is told as a failure",
        metavar="DIR",
    )
