"""Processes of each device: DRM clients and ROCm processes joined by pid."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpuledger.model import quantities as q
from gpuledger.model.devices import Device, Gpu
from gpuledger.model.process import (
    GpuProcess,
    HostFacts,
    ProcessType,
    Usage,
    UtilizationSample,
)
from gpuledger.model.source import Host
from gpuledger.sources.drm.card_reader import CardValues
from gpuledger.sources.drm.cards import AMDGPU, INTEL_DRIVERS, DrmCard
from gpuledger.sources.drm.kfd import KfdReader, KfdUse
from gpuledger.sources.drm.rocm_shares import EQUAL, split_compute_part
from gpuledger.sources.drm.usage import EngineUse, UsageTracker
from gpuledger.sources.findings import SourceFindings

_REPORTING = INTEL_DRIVERS | {AMDGPU}
_MOST_BYTES = 1 << 50
_C, _G = ProcessType.COMPUTE, ProcessType.GRAPHICS


@dataclass(frozen=True, slots=True)
class DeviceProcesses:
    """The processes of one device and its samples, None if engine time is not known.

    `busy` and `memory` are sums over the clients, None if they do not show all. `unseen` is what the
    device was busy beyond the processes that can be seen, if some cannot, or if a client has ended since the
    last tick: its last use belongs to no other process.
    """

    processes: tuple[GpuProcess, ...] = ()
    samples: tuple[UtilizationSample, ...] | None = ()
    basis: str = ""
    busy: float | None = None
    memory: int | None = None
    unseen: float = 0.0


@dataclass(slots=True)
class _Uses:
    """What is known of one device's processes, by pid."""

    drm: dict[int, EngineUse]
    kfd: dict[int, KfdUse]
    compute_units: int | None
    # ROCm uses amdgpu without leaving a trace in fdinfo.
    is_complete: bool

    @property
    def pids(self) -> list[int]:
        return sorted(self.drm.keys() | self.kfd.keys())


class ProcessReader:
    """Reads the processes of all cards once a tick.

    `hidden` is how many of `total` processes could not be looked at. `lists_all`: these are all processes of
    the machine.
    """

    def __init__(self, usage: UsageTracker, kfd: KfdReader, sees_host_pids: Callable[[], bool]) -> None:
        self._usage = usage
        self._kfd = kfd
        self._sees_host_pids = sees_host_pids
        self.hidden = self.total = 0
        self.lists_all = True

    def read(
        self,
        cards: Sequence[DrmCard],
        values: Mapping[str, CardValues],
        host: Host,
        unix: float,
        elapsed: float,
        findings: SourceFindings,
    ) -> Mapping[Device, DeviceProcesses]:
        """Return the processes of each Gpu, and of each partition."""
        devices = device_nodes(cards)
        asleep = {name for name, card in devices.items() if values[card[0].address].asleep}
        by_address = {card.address: card for card in cards}
        # radeon and nouveau have no clients in fdinfo.
        unreported = {
            name: (card.driver, card.address)
            for name, (card, _) in devices.items()
            if name in asleep or card.driver not in _REPORTING
        }
        found = self._usage.read(elapsed, lambda node: node in asleep, by_address.keys(), unreported)
        self.hidden, self.total = found.hidden, found.processes
        findings.reject("engine time of a process", "a leap", count=found.leaps)
        uses = _empty_uses(cards)
        for (address, name), by_pid in found.by_place.items():
            device = _device_of(by_address[address], name)
            for pid, use in by_pid.items():
                _join(uses[device].drm, pid, use)
        sees_host_pids = self._sees_host_pids()
        if sees_host_pids:
            self._add_rocm(cards, uses)
        _add_rocm_by_files(cards, uses, found.rocm)
        pids = {pid for use in uses.values() for pid in use.pids}
        facts = host.identify(pids, unix)
        at = round(elapsed * 1e6)
        # In a container without the machine's pids, most processes are not even listed.
        self.lists_all = sees_host_pids and not found.unlisted
        sees_all = self.lists_all and not found.hidden
        ended = {
            _device_of(by_address[address], name) for address, name in found.ended if address in by_address
        }
        results: dict[Device, DeviceProcesses] = {}
        for card in cards:
            busy = values[card.address].values.get(q.UTILIZATION)
            devices_of_card: tuple[Device, ...] = (
                card.gpu,
                *(partition.instance for partition in card.partitions),
            )
            for device in devices_of_card:
                # How busy a partition is, is not known from files of the card.
                of_device = busy if isinstance(device, Gpu) and not card.partitions else None
                _reject_memory(uses[device], device, findings)
                results[device] = _build(
                    device, uses[device], facts, of_device, at, sees_all=sees_all, ended=device in ended
                )
        return results

    def _add_rocm(self, cards: Sequence[DrmCard], uses: Mapping[Device, _Uses]) -> None:
        nodes: dict[int, Device] = {}
        for card in cards:
            nodes |= {node.gpu_id: card.gpu for node in card.nodes if node.gpu_id}
            for partition in card.partitions:
                if partition.node is not None and partition.node.gpu_id:
                    nodes[partition.node.gpu_id] = partition.instance
        if not nodes:
            return
        for pid, by_node in self._kfd.uses(frozenset(nodes)).items():
            for gpu_id, use in by_node.items():
                uses[nodes[gpu_id]].kfd[pid] = use


def _add_rocm_by_files(cards: Sequence[DrmCard], uses: Mapping[Device, _Uses], rocm: frozenset[int]) -> None:
    """Without KFD's nodes, which the device cgroup of a container hides: who has KFD open and memory here."""
    for card in cards:
        if not card.nodes:
            used = uses[card.gpu]
            for pid, use in used.drm.items():
                if pid in rocm and use.memory:
                    used.kfd.setdefault(pid, KfdUse(queues=1))


def device_nodes(cards: Sequence[DrmCard]) -> dict[str, tuple[DrmCard, Device]]:
    """The card and device for each name in /dev/dri."""
    found: dict[str, tuple[DrmCard, Device]] = {}
    for card in cards:
        first: Device = card.partitions[0].instance if card.partitions else card.gpu
        if card.gpu.minor is not None:
            found[f"card{card.gpu.minor}"] = (card, first)
        if card.render_minor is not None:
            found[f"renderD{card.render_minor}"] = (card, first)
        for partition in card.partitions:
            if partition.node is not None and partition.node.render_minor:
                found[f"renderD{partition.node.render_minor}"] = (card, partition.instance)
    return found


def _device_of(card: DrmCard, node: str) -> Device:
    """The device of a client. Clients of all partitions have the parent's address, so the node decides."""
    instances = [partition.instance for partition in card.partitions]
    found: Device = next(
        (one for one in instances if node in one.nodes), instances[0] if instances else card.gpu
    )
    return found


def _empty_uses(cards: Sequence[DrmCard]) -> dict[Device, _Uses]:
    uses: dict[Device, _Uses] = {}
    for card in cards:
        is_complete = card.driver in INTEL_DRIVERS
        uses[card.gpu] = _Uses({}, {}, card.gpu.sm_count, is_complete)
        for partition in card.partitions:
            uses[partition.instance] = _Uses({}, {}, partition.instance.sm_count, is_complete)
    return uses


def _join(uses: dict[int, EngineUse], pid: int, use: EngineUse) -> None:
    known = uses.get(pid)
    if known is None:
        uses[pid] = use
        return
    for name, share in use.shares.items():
        known.shares[name] = known.shares.get(name, 0.0) + share
    if use.memory is not None:
        known.memory = (known.memory or 0) + use.memory
    known.computes, known.draws = known.computes or use.computes, known.draws or use.draws
    known.known, known.reported = known.known and use.known, known.reported and use.reported
    known.has_named_codecs = known.has_named_codecs or use.has_named_codecs


def _reject_memory(uses: _Uses, device: Device, findings: SourceFindings) -> None:
    """Leave out memory that no GPU has: counts of a kernel that fall below 0 are near 2^64."""
    for use in uses.drm.values():
        if use.memory is not None and use.memory > _MOST_BYTES:
            findings.reject("memory of a process in bytes", use.memory, device)
            use.memory = None


def _build(
    device: Device,
    uses: _Uses,
    facts: Mapping[int, HostFacts],
    busy: float | None,
    at: int,
    *,
    sees_all: bool,
    ended: bool,
) -> DeviceProcesses:
    clients_busy = _busiest_class(uses.drm.values())
    rocm = split_compute_part(uses.kfd, busy, clients_busy, uses.compute_units)
    reported = all(use.reported for use in uses.drm.values())
    is_sum = sees_all and uses.is_complete and all(use.known for use in uses.drm.values())
    processes, samples = [], []
    for pid in uses.pids:
        drm, kfd = uses.drm.get(pid), uses.kfd.get(pid)
        processes.append(_process(device, pid, facts[pid], drm, kfd, uses.compute_units))
        share = rocm.shares.get(pid, 0.0)
        if drm is not None or share:
            samples.append(_sample(pid, at, drm or EngineUse(), share))
    memory = [process.memory for process in processes if process.memory is not None]
    seen = clients_busy + sum(rocm.shares.values())
    return DeviceProcesses(
        tuple(processes),
        tuple(samples) if rocm.readable and reported else None,
        rocm.basis if reported else EQUAL,
        min(1.0, clients_busy) if is_sum else None,
        sum(memory) if sees_all and len(memory) == len(processes) else None,
        max(0.0, busy - seen) if busy is not None and (ended or not sees_all) else 0.0,
    )


def _busiest_class(uses: Iterable[EngineUse]) -> float:
    sums: dict[str, float] = {}
    for use in uses:
        for name, share in use.shares.items():
            sums[name] = sums.get(name, 0.0) + share
    return max(sums.values(), default=0.0)


def _sample(pid: int, at: int, use: EngineUse, share: float) -> UtilizationSample:
    """The weight of the split: the busiest engine, where queueing counts, plus the share of compute work."""
    return UtilizationSample(
        pid,
        at,
        sm=max(use.main, use.other) + share,
        memory=0.0,
        encoder=use.encoder,
        decoder=use.decoder,
        jpeg=use.jpeg,
    )


def _process(
    device: Device,
    pid: int,
    host: HostFacts,
    drm: EngineUse | None,
    kfd: KfdUse | None,
    compute_units: int | None,
) -> GpuProcess:
    types = set()
    if kfd is not None or (drm is not None and drm.computes):
        types.add(_C)
    if drm is not None and (drm.draws or not types):
        types.add(_G)
    # Buffers of ROCm belong to the client of the render node that it opened: both describe the same bytes.
    held = [
        bytes_
        for bytes_ in (drm.memory if drm is not None else None, kfd.memory if kfd is not None else None)
        if bytes_ is not None
    ]
    return GpuProcess(
        device,
        pid,
        host,
        types=frozenset(types),
        memory=max(held, default=None),
        usage=_usage(drm, kfd, compute_units),
    )


def _usage(drm: EngineUse | None, kfd: KfdUse | None, compute_units: int | None) -> Usage:
    """Fractions of time, at most 1. ROCm work is the part of the compute units in use at this moment."""
    sm = None
    if drm is not None and drm.known:
        sm = min(1.0, drm.main)
    if kfd is not None:
        occupancy = kfd.occupancy / compute_units if kfd.occupancy is not None and compute_units else None
        sm = None if occupancy is None else min(1.0, occupancy + (sm or 0.0))
    if drm is None or not drm.known or not drm.has_named_codecs:
        return Usage(sm=sm)
    return Usage(sm=sm, encoder=min(1.0, drm.encoder), decoder=min(1.0, drm.decoder), jpeg=min(1.0, drm.jpeg))
