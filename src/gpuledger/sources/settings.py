"""Settings of sources."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from gpuledger.model.settings import (
    ReloadPolicy,
    boolean,
    comma_separated,
    duration,
    integer,
    number,
    option,
    setting,
    text,
)

# What `--source` names: sources of this machine (two are joined by "+"), and those with an argument.
MACHINES: Final = ("auto", "nvml", "smi", "drm", "nvml+drm", "smi+drm")
MADE_UP: Final = ("simulator", "replay")


@dataclass(frozen=True)
class SourceSettings:
    """The machine to read, and how often to read its slow parts."""

    reload: ClassVar[ReloadPolicy] = ReloadPolicy(restart=("source", "simulator.seed", "simulator.speed"))

    source: str = setting(
        "source",
        text,
        "auto",
        "source of readings: auto (all GPUs of this machine), nvml, smi, drm (AMD, Intel), nvml+drm, "
        "smi+drm, simulator[:NAME|FILE], replay:FILE; auto never selects the simulator",
        metavar="SOURCE",
    )
    devices: tuple[str, ...] = setting(
        "devices",
        comma_separated(text),
        (),
        "read only these GPUs, by index, UUID or PCI bus id (default: all)",
        as_written=True,
    )
    process_scan_interval: float = setting(
        "process_scan_interval",
        duration("s"),
        0.0,
        "interval between reads of the process lists; 0 reads them every tick",
    )
    slow_interval: float = setting(
        "slow_interval",
        duration("s", lowest=0.1),
        10.0,
        "interval between reads of rarely changing or slow fields, such as ECC counts",
    )
    enable_accounting: bool = setting(
        "accounting.enable",
        boolean,
        False,
        "enable the driver's accounting mode, to find processes that start and end between two readings "
        "(needs root; the mode remains enabled until the driver is unloaded)",
        flags=("--enable-accounting",),
    )
    seed: int = option(
        "simulator.seed",
        integer(0, 2**32 - 1),
        1,
        "simulator: seed of the scenario",
    )
    speed: float = option(
        "simulator.speed",
        number(0.01, 10_000),
        1.0,
        "simulator and replay: seconds of the scenario or recording per real second",
        metavar="FACTOR",
    )
