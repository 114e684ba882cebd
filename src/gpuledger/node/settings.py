"""Settings of the tick, the GPU count, the control socket and the reload."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gpuledger.model.settings import ReloadPolicy, duration, integer, setting, text


@dataclass(frozen=True)
class NodeSettings:
    """How often the driver is read."""

    reload: ClassVar[ReloadPolicy] = ReloadPolicy()

    interval: float = setting(
        "interval",
        duration("s", lowest=0.05, highest=3600.0),
        1.0,
        "time between reads, below 60s to watch GPU time; doubles while a read takes over a fifth of it",
        flags=("--interval", "--dcgm-update-frequency"),
    )


@dataclass(frozen=True)
class GpuCountSettings:
    """How many GPUs the machine should have."""

    reload: ClassVar[ReloadPolicy] = ReloadPolicy(restart=("gpu_count",))

    expected: int = setting(
        "gpu_count",
        integer(0, 1024),
        0,
        "how many GPUs to expect (after --devices, if set); logs a warning when another number is read; 0 "
        "turns the check off",
    )


NO_SOCKET = "none"


@dataclass(frozen=True)
class ControlSettings:
    """Where `gpuledger pause` and `gpuledger resume` reach the node."""

    socket: str = setting(
        "control.socket",
        text,
        "",
        "unix socket for pause, resume, free and users' own rows; none: off (default: in /run/gpuledger, "
        "$XDG_RUNTIME_DIR/gpuledger or beside the ledger; none if simulated)",
        metavar="PATH",
    )


@dataclass(frozen=True)
class ReloadSettings:
    """How changed settings are detected."""

    reload: ClassVar[ReloadPolicy] = ReloadPolicy()

    interval: float = setting(
        "reload.interval",
        duration("s", lowest=0.0, highest=86_400.0),
        5.0,
        "how often to check whether the configuration or a file that it names has changed; with 0 only a "
        "SIGHUP reloads them",
    )
