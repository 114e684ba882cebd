"""What a Gpu does and draws in one phase and second, and whose the watts are.

This is the truth that books can be tested against: in whole numbers and fractions, so that sums are exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from gpuledger.model.devices import Device, Instance
from gpuledger.sources.simulator.hardware import Hardware, mix
from gpuledger.sources.simulator.scenario import WHOLE
from gpuledger.sources.simulator.timeline import Phase, Seat

_NOISE = 21
_POINT = WHOLE // 100


@dataclass(frozen=True, slots=True)
class Engines:
    """Time of each engine kept busy by one process, in parts per million."""

    sm: int = 0
    memory: int = 0
    encoder: int = 0
    decoder: int = 0

    @property
    def busiest(self) -> int:
        """The engine that the power follows."""
        return max(self.sm, self.encoder, self.decoder)


_QUIET = Engines()


@dataclass(frozen=True, slots=True, eq=False)
class Draw:
    """Power of one phase and second in microwatts: `floor` plus `loads`, one per seat, caused by `engines`.

    `work` is the busy share of the whole Gpu in parts per million.
    """

    power: int
    floor: int
    loads: tuple[int, ...]
    engines: tuple[Engines, ...]
    work: int


def draw(hardware: Hardware, phase: Phase, second: int, seed: int) -> Draw:
    """The Draw of a phase in one second: floor, and the loads cut together at the power limit."""
    spec = hardware.spec
    engines = _engines(phase, second, seed)
    base = spec.resident_power if phase.is_inhabited else spec.empty_power
    loads = []
    work = 0
    for seat, used in zip(phase.seats, engines, strict=True):
        share = used.busiest * sm_count(seat.device, spec.sm_count)
        loads.append(spec.load_power * seat.run.spec.intensity * share // (spec.sm_count * WHOLE * WHOLE))
        work += share
    loads = shared(loads, spec.power_limit - base)
    return Draw(base + sum(loads), base, tuple(loads), engines, min(WHOLE, work // spec.sm_count))


def sm_count(device: Device, whole: int) -> int:
    """Multiprocessors that work on a Device can use."""
    return (device.sm_count or 0) if isinstance(device, Instance) else whole


def shared(wanted: Sequence[int], available: int) -> list[int]:
    """`wanted`, or when that is more than available in sum, whole-number shares of exactly what is."""
    total = sum(wanted)
    if total <= available:
        return list(wanted)
    cut = [amount * available // total for amount in wanted]
    rest = [(-(amount * available % total), index) for index, amount in enumerate(wanted)]
    for _, index in sorted(rest)[: available - sum(cut)]:
        cut[index] += 1
    return cut


def _engines(phase: Phase, second: int, seed: int) -> tuple[Engines, ...]:
    demands = [
        _demand(seat, second, seed) if busy else _QUIET
        for seat, busy in zip(phase.seats, phase.busy, strict=True)
    ]
    by_device: dict[str, list[int]] = {}
    for index, seat in enumerate(phase.seats):
        by_device.setdefault(seat.device.uuid, []).append(index)
    for indices in by_device.values():
        if len(indices) > 1:
            _take_turns(demands, indices, phase)
    return tuple(demands)


def _demand(seat: Seat, second: int, seed: int) -> Engines:
    spec = seat.run.spec
    sm = spec.load
    if spec.noise and sm:
        drawn = mix(seed, _NOISE, seat.device.gpu.index, seat.run.pid, second)
        points = drawn % (2 * spec.noise + 1) - spec.noise
        sm = min(WHOLE, max(_POINT, sm + points * _POINT))
    return Engines(sm, spec.memory_load * sm // WHOLE, spec.encoder, spec.decoder)


def _take_turns(demands: list[Engines], indices: list[int], phase: Phase) -> None:
    # An engine has one second in a second: processes that ask for more share it by what they ask for.
    sm = shared([demands[index].sm for index in indices], WHOLE)
    encoder = shared([demands[index].encoder for index in indices], WHOLE)
    decoder = shared([demands[index].decoder for index in indices], WHOLE)
    for at, index in enumerate(indices):
        memory = phase.seats[index].run.spec.memory_load * sm[at] // WHOLE
        demands[index] = Engines(sm[at], memory, encoder[at], decoder[at])


def residents(seats: Sequence[Seat]) -> dict[Device, list[int]]:
    """Positions of the seats that bear a floor, by Device: computing, and no MPS server with clients."""
    found: dict[Device, list[int]] = {}
    for index, seat in enumerate(seats):
        if seat.run.spec.computes:
            found.setdefault(seat.device, []).append(index)
    for device, indices in found.items():
        clients = [index for index in indices if not seats[index].run.spec.is_mps_server]
        found[device] = clients or indices
    return found


def floor_shares(hardware: Hardware, phase: Phase) -> tuple[tuple[Fraction, ...], Fraction]:
    """Microwatts of the floor per seat, and of nobody, in one phase.

    Without MIG equally over the residents. Under MIG the empty floor goes by SM count over all SMs (those
    without a resident are nobody's), the rise to the resident floor over Instances with residents.
    """
    spec = hardware.spec
    shares = [Fraction(0)] * len(phase.seats)
    parts = residents(phase.seats)
    if not parts:
        return tuple(shares), Fraction(spec.empty_power)
    inhabited = sum(sm_count(device, spec.sm_count) for device in parts)
    rise = spec.resident_power - spec.empty_power
    idle = Fraction(spec.empty_power)
    for device, indices in parts.items():
        size = sm_count(device, spec.sm_count)
        empty = Fraction(spec.empty_power * size, spec.sm_count)
        idle -= empty
        for index in indices:
            shares[index] = (empty + Fraction(rise * size, inhabited)) / len(indices)
    return tuple(shares), idle
