"""Engine loads and power of a GPU in one phase and second, and how the power splits among processes.

Tests compare the ledger with these values. They are integers and fractions, so that sums are exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from gpuledger.model.devices import Device, Instance
from gpuledger.sources.simulator.gpu_timeline import GpuContext, Phase
from gpuledger.sources.simulator.hardware import Hardware, mix_bits
from gpuledger.sources.simulator.scenario import WHOLE

_NOISE = 21
_POINT = WHOLE // 100


class EngineLoad(NamedTuple):
    """The time that one process keeps each engine busy, in parts per million."""

    sm: int = 0
    memory: int = 0
    encoder: int = 0
    decoder: int = 0

    @property
    def busiest(self) -> int:
        """The load of the busiest engine, which determines the power."""
        return max(self.sm, self.encoder, self.decoder)


_NO_LOAD = EngineLoad()


@dataclass(frozen=True, slots=True, eq=False)
class PowerDraw:
    """Power in one phase and second in microwatts: `floor` plus `loads`, one per context.

    `engines` are the engine loads of the contexts. `work` is the busy share of the whole GPU in parts per
    million.
    """

    power: int
    floor: int
    loads: tuple[int, ...]
    engines: tuple[EngineLoad, ...]
    work: int


def compute_draw(hardware: Hardware, phase: Phase, second: int, seed: int) -> PowerDraw:
    """Compute the power of a phase in one second: the floor, and the loads capped at the power limit."""
    spec = hardware.spec
    engines = _compute_engine_loads(phase, second, seed)
    base = spec.resident_power if phase.has_residents else spec.empty_power
    loads = []
    work = 0
    for context, used in zip(phase.contexts, engines, strict=True):
        share = used.busiest * sm_count(context.device, spec.sm_count)
        loads.append(spec.load_power * context.run.spec.intensity * share // (spec.sm_count * WHOLE * WHOLE))
        work += share
    loads = cap_proportionally(loads, spec.power_limit - base)
    return PowerDraw(base + sum(loads), base, tuple(loads), engines, min(WHOLE, work // spec.sm_count))


def sm_count(device: Device, whole: int) -> int:
    """Return the multiprocessors of a Device; `whole` is the number of the whole GPU."""
    return (device.sm_count or 0) if isinstance(device, Instance) else whole


def cap_proportionally(wanted: Sequence[int], available: int) -> list[int]:
    """Return `wanted`; if its sum exceeds `available`, proportional integers that add up to `available`."""
    total = sum(wanted)
    if total <= available:
        return list(wanted)
    cut = [amount * available // total for amount in wanted]
    rest = [(-(amount * available % total), index) for index, amount in enumerate(wanted)]
    for _, index in sorted(rest)[: available - sum(cut)]:
        cut[index] += 1
    return cut


def _compute_engine_loads(phase: Phase, second: int, seed: int) -> tuple[EngineLoad, ...]:
    demands = [
        _compute_demand(context, second, seed) if busy else _NO_LOAD
        for context, busy in zip(phase.contexts, phase.busy, strict=True)
    ]
    by_device: dict[str, list[int]] = {}
    for index, context in enumerate(phase.contexts):
        by_device.setdefault(context.device.uuid, []).append(index)
    for indices in by_device.values():
        if len(indices) > 1:
            _share_engines(demands, indices, phase)
    return tuple(demands)


def _compute_demand(context: GpuContext, second: int, seed: int) -> EngineLoad:
    spec = context.run.spec
    sm = spec.load
    if spec.noise and sm:
        draw = mix_bits(seed, _NOISE, context.device.gpu.index, context.run.pid, second)
        points = draw % (2 * spec.noise + 1) - spec.noise
        sm = min(WHOLE, max(_POINT, sm + points * _POINT))
    return EngineLoad(sm, spec.memory_load * sm // WHOLE, spec.encoder, spec.decoder)


def _share_engines(demands: list[EngineLoad], indices: list[int], phase: Phase) -> None:
    # If the demands for an engine exceed its time, each process gets a share proportional to its demand.
    sm = cap_proportionally([demands[index].sm for index in indices], WHOLE)
    encoder = cap_proportionally([demands[index].encoder for index in indices], WHOLE)
    decoder = cap_proportionally([demands[index].decoder for index in indices], WHOLE)
    for at, index in enumerate(indices):
        memory = phase.contexts[index].run.spec.memory_load * sm[at] // WHOLE
        demands[index] = EngineLoad(sm[at], memory, encoder[at], decoder[at])


def find_residents(contexts: Sequence[GpuContext]) -> dict[Device, list[int]]:
    """Return, by Device, the positions of the contexts among which the floor is split.

    These are compute contexts, but not that of an MPS server with clients.
    """
    found: dict[Device, list[int]] = {}
    for index, context in enumerate(contexts):
        if context.run.spec.computes:
            found.setdefault(context.device, []).append(index)
    for device, indices in found.items():
        clients = [index for index in indices if not contexts[index].run.spec.is_mps_server]
        found[device] = clients or indices
    return found


def split_floor(hardware: Hardware, phase: Phase) -> tuple[tuple[Fraction, ...], Fraction]:
    """Split the floor of one phase: microwatts per context, and the idle rest.

    Without MIG, residents share it equally. With MIG, the empty floor is split by SM count over all SMs (the
    part of SMs without a resident is idle), and the rise to the resident floor over Instances with residents.
    """
    spec = hardware.spec
    shares = [Fraction(0)] * len(phase.contexts)
    parts = find_residents(phase.contexts)
    if not parts:
        return tuple(shares), Fraction(spec.empty_power)
    occupied_sms = sum(sm_count(device, spec.sm_count) for device in parts)
    rise = spec.resident_power - spec.empty_power
    idle = Fraction(spec.empty_power)
    for device, indices in parts.items():
        size = sm_count(device, spec.sm_count)
        empty = Fraction(spec.empty_power * size, spec.sm_count)
        idle -= empty
        for index in indices:
            shares[index] = (empty + Fraction(rise * size, occupied_sms)) / len(indices)
    return tuple(shares), idle
