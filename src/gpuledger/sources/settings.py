"""What a user sets about sources."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gpuledger.model.settings import Reload, boolean, duration, integer, number, setting, text, words


@dataclass(frozen=True, slots=True)
class SourceSettings:
    """Which machine is read, and how often its slow parts are."""

    reload: ClassVar[Reload] = Reload(restart=("source", "simulator.seed", "simulator.speed"))

    source: str = setting(
        "source",
        text,
        "auto",
        "where readings come from: auto (this machine's driver, else nvidia-smi), nvml, smi, "
        "simulator[:NAME|FILE], replay:FILE; auto never picks the simulator",
        metavar="SOURCE",
    )
    devices: tuple[str, ...] = setting(
        "devices",
        words(text),
        (),
        "read only these GPUs, by index, UUID or PCI bus id (default: all)",
        metavar="LIST",
    )
    process_scan_interval: float = setting(
        "process_scan_interval",
        duration("s"),
        0.0,
        "read the process lists only this often; 0 is every tick",
        metavar="DURATION",
    )
    slow_interval: float = setting(
        "slow_interval",
        duration("s", lowest=0.1),
        10.0,
        "period of fields that change slowly or cost much to read, such as ECC counts and power limits",
        metavar="DURATION",
    )
    enable_accounting: bool = setting(
        "accounting.enable",
        boolean,
        False,
        "turn the driver's accounting mode on, so that processes between two readings are found (needs root; "
        "it stays on until the driver is unloaded)",
        flags=("--enable-accounting",),
    )
    seed: int = setting(
        "simulator.seed",
        integer(0, 2**32 - 1),
        1,
        "simulator: the same seed and scenario give the same node",
        flags=("--seed",),
        metavar="N",
    )
    speed: float = setting(
        "simulator.speed",
        number(0.01, 10_000),
        1.0,
        "simulator and replay: seconds of the scenario or recording per real second",
        flags=("--speed",),
        metavar="FACTOR",
    )
