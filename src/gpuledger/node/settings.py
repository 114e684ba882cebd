"""What a user sets about the tick, and about changes while it goes on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gpuledger.model.settings import Reload, duration, integer, setting, text


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """How often the machine is read."""

    reload: ClassVar[Reload] = Reload()

    interval: float = setting(
        "interval",
        duration("s", lowest=0.05, highest=3600.0),
        1.0,
        "time between readings of the driver; doubles by itself while reading takes over a fifth of it",
        flags=("--interval", "--dcgm-update-frequency"),
        metavar="DURATION",
    )


@dataclass(frozen=True, slots=True)
class CensusSettings:
    """What the machine should have."""

    reload: ClassVar[Reload] = Reload(restart=("gpu_count",))

    expected: int = setting(
        "gpu_count",
        integer(0, 1024),
        0,
        "how many GPUs should be read (of --devices, where given); another number is said in the log; 0 "
        "expects none in particular",
        metavar="N",
    )


NO_SOCKET = "none"


@dataclass(frozen=True, slots=True)
class ControlSettings:
    """Where `gpuledger pause` and `gpuledger resume` are heard."""

    socket: str = setting(
        "control.socket",
        text,
        "",
        "unix socket on which gpuledger pause and resume are heard; none hears nobody (default: "
        "/run/gpuledger/control.sock, else in $XDG_RUNTIME_DIR/gpuledger, else beside the books; for made-up "
        "sources none)",
        metavar="PATH",
    )


@dataclass(frozen=True, slots=True)
class ReloadSettings:
    """How changed settings are found."""

    reload: ClassVar[Reload] = Reload()

    interval: float = setting(
        "reload.interval",
        duration("s", lowest=0.0, highest=86_400.0),
        5.0,
        "look this often whether the configuration, or a file that it names, has changed; 0 never looks, and "
        "SIGHUP alone has them read anew",
        metavar="DURATION",
    )
