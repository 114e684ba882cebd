"""Parser of DRM fdinfo (`drm-usage-stats.rst` of the kernel): what one client used of one GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from gpuledger.sources.drm.sysfs import whole_number

_UNITS: Final = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_MEMORY: Final = ("total", "shared", "active", "resident", "purgeable", "memory")
# Regions of the card's own memory: amdgpu, i915, xe (by tile).
_CARD_REGIONS: Final = ("vram", "local")
_HOST_REGIONS: Final = ("system", "gtt", "memory")


@dataclass(frozen=True, slots=True)
class DrmClient:
    """One client: an open file of a GPU. `client_id` is unique with `address`.

    `engines` are nanoseconds by class, `cycles` and `total_cycles` GPU cycles by class (xe), `capacity` the
    engines of a class where there are several. `memory` is bytes by region, then by kind (resident, total).
    """

    driver: str
    address: str
    client_id: int
    engines: Mapping[str, int] = field(default_factory=dict)
    cycles: Mapping[str, int] = field(default_factory=dict)
    total_cycles: Mapping[str, int] = field(default_factory=dict)
    capacity: Mapping[str, int] = field(default_factory=dict)
    memory: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    @property
    def reports_use(self) -> bool:
        """Whether the kernel keeps engine time: amdgpu omits engines that a client has not used."""
        return bool(self.engines or self.cycles) or self.driver == "amdgpu"

    @property
    def held_memory(self) -> int | None:
        """Bytes of the card's memory; of a GPU without any, those of the machine's. None if not reported."""
        card = [held_bytes(kinds) for name, kinds in self.memory.items() if name.startswith(_CARD_REGIONS)]
        if card:
            return sum(card)
        host = [held_bytes(kinds) for name, kinds in self.memory.items() if name.startswith(_HOST_REGIONS)]
        return sum(host) if host else None


def held_bytes(kinds: Mapping[str, int]) -> int:
    """What a client has in a region now: resident, else the older key `memory`, else all of its buffers."""
    return next((kinds[kind] for kind in ("resident", "memory", "total") if kind in kinds), 0)


def parse_fdinfo(text: str) -> DrmClient | None:
    """Parse the text of /proc/PID/fdinfo/N; None if it is no client of a GPU on the PCI bus.

    Values that are no numbers are left out. Clients of accelerators (`_accel_driver`) are no clients of GPUs.
    """
    facts: dict[str, str] = {}
    numbers: dict[str, dict[str, int]] = {"engine": {}, "cycles": {}, "total": {}, "capacity": {}}
    memory: dict[str, dict[str, int]] = {}
    for line in text.splitlines():
        if not line.startswith("drm-"):
            continue
        key, _, value = line[4:].partition(":")
        key, value = key.strip(), value.strip()
        if key in ("driver", "pdev", "client-id"):
            facts[key] = value
        else:
            _add_number(numbers, memory, key, value)
    driver, client = facts.get("driver", ""), whole_number(facts.get("client-id", ""))
    if not driver or driver.endswith("_accel_driver") or client is None or not facts.get("pdev"):
        return None
    return DrmClient(
        driver,
        facts["pdev"].lower(),
        client,
        numbers["engine"],
        numbers["cycles"],
        numbers["total"],
        numbers["capacity"],
        memory,
    )


def _add_number(
    numbers: dict[str, dict[str, int]], memory: dict[str, dict[str, int]], key: str, value: str
) -> None:
    digits, _, unit = value.partition(" ")
    amount = whole_number(digits)
    if amount is None:
        return
    kind, _, name = key.partition("-")
    if key.startswith("engine-capacity-"):
        numbers["capacity"][key.removeprefix("engine-capacity-")] = amount
    elif key.startswith("total-cycles-"):
        numbers["total"][key.removeprefix("total-cycles-")] = amount
    elif kind in ("engine", "cycles") and name:
        numbers[kind][name] = amount
    elif kind in _MEMORY and name and unit.strip() in _UNITS:
        memory.setdefault(name, {})[kind] = amount * _UNITS[unit.strip()]
