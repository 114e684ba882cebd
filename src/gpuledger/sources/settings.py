"""Settings of sources."""

from __future__ import annotations

from dataclasses import dataclass
from re import fullmatch
from typing import ClassVar, Final

from gpuledger.model.settings import (
    NamedParser,
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

_HIGHEST_GPU: Final = 1023
_GPU_NAMES: Final = comma_separated(text)


def parse_group(value: object) -> str:
    """Comma-separated GPU indices from dcgm-exporter's `g`, `g:0,2-3` or `f`; empty for all."""
    written = text(value).strip()
    if written in ("f", "g"):
        return ""
    if written.split(":", 1)[0] == "i":
        raise ValueError(
            "expected f, g or g:0,2-3: MIG instances are exported with their GPU and cannot be selected"
        )
    if not fullmatch(r"g:\d{1,4}(-\d{1,4})?(,\d{1,4}(-\d{1,4})?)*", written):
        raise ValueError("expected f, g or g:0,2-3")
    chosen: dict[int, None] = {}
    for part in written[2:].split(","):
        first, _, last = part.partition("-")
        numbers = range(int(first), int(last or first) + 1)
        if not numbers or numbers[-1] > _HIGHEST_GPU:
            raise ValueError(f"expected indices from 0 to {_HIGHEST_GPU}, the lower one first")
        chosen.update(dict.fromkeys(numbers))
    return ",".join(map(str, chosen))


def _parse_devices(value: object) -> tuple[str, ...]:
    """The names of GPUs; also in dcgm-exporter's form, because its long flag has the same name."""
    if not isinstance(value, str) or not fullmatch(r"\s*[fgi](:.*)?\s*", value):
        return _GPU_NAMES(value)
    chosen = parse_group(value)
    return _GPU_NAMES(chosen) if chosen else ()


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
        NamedParser(_parse_devices, "LIST"),
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
