"""Source that reads AMD and Intel GPUs from files of this machine's kernel: one Snapshot of all per tick."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

from gpuledger.host.files import ReadFile, read_or_none, read_whole
from gpuledger.model import quantities as q
from gpuledger.model.devices import Device
from gpuledger.model.errors import SourceUnavailable
from gpuledger.model.quantities import Quantity
from gpuledger.model.snapshot import CollectorRun, Reading, Snapshot, SourceInfo
from gpuledger.model.source import Clock, Host
from gpuledger.model.text import clean_name, decode_utf8
from gpuledger.sources.device_selection import DeviceSelection
from gpuledger.sources.drm.card_reader import LOST, PART, CardReadings, CardValues
from gpuledger.sources.drm.cards import INTEL_DRIVERS, CardReader, DrmCard
from gpuledger.sources.drm.client_files import ClientFiles
from gpuledger.sources.drm.device_files import DeviceFiles
from gpuledger.sources.drm.energy_counters import CardOfTwoDies, pair_dies
from gpuledger.sources.drm.kfd import KfdReader
from gpuledger.sources.drm.processes import DeviceProcesses, ProcessReader
from gpuledger.sources.drm.sysfs import SysfsFolder
from gpuledger.sources.drm.usage import UsageTracker
from gpuledger.sources.findings import SourceFindings
from gpuledger.sources.settings import SourceSettings

DEVICES: Final = "devices"
PROCESSES: Final = "processes"
# Needed to split energy, in every tick.
_ALWAYS: Final = frozenset({q.UTILIZATION})


class DrmSource:
    """Reads sysfs and procfs below the given roots. Used by one thread.

    Cards that appear or disappear are found at the next read. `sees_host_pids` is whether pids of the procfs
    are those of the machine: KFD lists the machine's. `skip_integrated` leaves out GPUs inside desktop CPUs.
    `machine` is part of the identity of GPUs that have none (`machine_digest`); empty if it is not known.
    `indexes_from` is the index of the first GPU, below which another source has its own.
    """

    has_local_pids = True

    def __init__(
        self,
        settings: SourceSettings,
        host: Host,
        clock: Clock,
        *,
        sysfs: str = "/sys",
        procfs: str = "/proc",
        read: ReadFile = read_whole,
        sees_host_pids: Callable[[], bool] = lambda: True,
        skip_integrated: bool = False,
        machine: str = "",
        cards: CardReader | None = None,
        clients: ClientFiles | None = None,
        timer: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._settings = settings
        self._host = host
        self._clock = clock
        self._timer = timer
        self._sysfs = sysfs.rstrip("/")
        self._read_file = read
        self._skip_integrated = skip_integrated
        self._sees_host_pids = sees_host_pids
        self._cards = cards or CardReader(sysfs, read, machine=machine)
        usage = UsageTracker(clients or ClientFiles(procfs, read))
        self._processes = ProcessReader(usage, KfdReader(sysfs, read), sees_host_pids)
        self._states: dict[str, CardReadings] = {}
        self._pairs: dict[tuple[str, str], CardOfTwoDies] = {}
        self._epoch: tuple[str, str] | None = None
        self._logged: set[str] = set()
        self._run = f"run-{clock.unix():.0f}"
        self.selection = DeviceSelection(settings.devices)
        # The drivers are parts of the kernel, and have its version.
        version = decode_utf8(read_or_none(f"{procfs.rstrip('/')}/sys/kernel/osrelease", read) or b"").strip()
        self.info = SourceInfo("drm", driver_version=clean_name(version))

    @property
    def indexes_from(self) -> int:
        """The index of the first GPU."""
        return self._cards.indexes_from

    @indexes_from.setter
    def indexes_from(self, index: int) -> None:
        self._cards.indexes_from = index

    def cards(self) -> list[DrmCard]:
        """The selected cards, in the order of their indexes."""
        found = [
            card
            for card in self._cards.cards()
            if not (self._skip_integrated and self._cards.is_integrated(card))
        ]
        self.selection.compare(card.gpu for card in found)
        return [card for card in found if self.selection.takes(card.gpu)]

    def read(self, wanted: frozenset[Quantity]) -> Snapshot:
        """Read one tick. Raises SourceUnavailable without a GPU of a driver that this source knows.

        If all of them are integrated and left out, there is nothing to read, which is no error.
        """
        unix, elapsed = self._clock.unix(), self._clock.elapsed()
        findings = SourceFindings(logged=self._logged)
        times = [self._timer()]
        cards = self.cards()
        if not cards and not self._cards.cards():
            raise SourceUnavailable(
                f"no GPU of the drivers amdgpu, i915 or xe in {self._sysfs}/class/drm: see the driver of "
                "each GPU with `lspci -k | grep -A3 -E 'VGA|3D|Display'`; load one of these (`modprobe "
                "amdgpu`, `i915` or `xe`), or choose another --source",
                "no_gpu",
            )
        self.selection.log_omission()
        with_dies = self._add_dies(cards)
        self._update_states(with_dies)
        times.append(self._timer())
        values = {card.address: self._read_card(card, wanted, elapsed, findings) for card in with_dies}
        self._split_dies(with_dies, values, wanted)
        times.append(self._timer())
        processes = self._processes.read(cards, values, self._host, unix, elapsed, findings)
        times.append(self._timer())
        if self._epoch is None:
            self._epoch = self._host.epoch()
        readings: list[Reading] = []
        for card in cards:
            readings += self._build_readings(card, values[card.address], processes)
        return Snapshot(
            unix=unix,
            elapsed=elapsed,
            source=self.info,
            readings=tuple(readings),
            failures=tuple(findings.failures),
            collected=tuple(
                CollectorRun(part, after - before, findings.error_of(part))
                for part, before, after in zip((DEVICES, PART, PROCESSES), times, times[1:], strict=False)
            ),
            invalid=findings.invalid,
            boot_id=self._epoch[0],
        )

    def close(self) -> None:
        """Forget the cards; nothing is open between ticks."""
        self._states.clear()
        self._epoch = None

    @property
    def sees_host_pids(self) -> bool:
        """Whether pids of the procfs are those of the machine."""
        return self._sees_host_pids()

    @property
    def lists_all_processes(self) -> bool:
        """Whether the last read saw the pids of all processes of the machine."""
        return self._processes.lists_all

    @property
    def hidden_processes(self) -> tuple[int, int]:
        """Processes of the last read with descriptors that may not be looked at, and all processes."""
        return self._processes.hidden, self._processes.total

    def _add_dies(self, cards: list[DrmCard]) -> list[DrmCard]:
        """The cards, and the dies that are not selected but share the energy counter of one that is."""
        if not self._settings.devices or not any(card.has_two_dies for card in cards):
            return cards
        return [*cards, *(one for one in self._cards.cards() if one.has_two_dies and one not in cards)]

    def _update_states(self, cards: list[DrmCard]) -> None:
        before, self._states = self._states, {}
        for card in cards:
            state = before.get(card.address)
            if state is not None and (state.card.gpu, state.card.folder) == (card.gpu, card.folder):
                state.update_card(card)
            else:
                files = DeviceFiles(card, SysfsFolder(card.folder, self._read_file))
                state = CardReadings(card, files, self._settings.slow_interval)
            self._states[card.address] = state

    def _read_card(
        self, card: DrmCard, wanted: frozenset[Quantity], now: float, findings: SourceFindings
    ) -> CardValues:
        return self._states[card.address].read(wanted | _ALWAYS, now, findings)

    def _split_dies(
        self, cards: list[DrmCard], values: Mapping[str, CardValues], wanted: frozenset[Quantity]
    ) -> None:
        """Give each die of an MI250 its part of the card's energy."""
        if q.ENERGY not in wanted or not any(card.has_two_dies for card in cards):
            return
        dies = {card.address: self._states[card.address].die() for card in cards if card.has_two_dies}

        def reads_zero(card: DrmCard) -> bool:
            die = dies[card.address]
            return die is None or not die.counts

        for first, second in set(pair_dies(cards, reads_zero).values()):
            one, other = dies[first.address], dies[second.address]
            if one is None or other is None:
                continue
            counter = self._pairs.setdefault((first.address, second.address), CardOfTwoDies())
            for card, energy in zip((first, second), counter.split(one, other), strict=True):
                # This counter begins with this program.
                self._states[card.address].epoch = self._run
                values[card.address].values[q.ENERGY] = energy
                values[card.address].supported[q.ENERGY.key] = True

    def _build_readings(
        self, card: DrmCard, found: CardValues, processes: Mapping[Device, DeviceProcesses]
    ) -> list[Reading]:
        state = self._states[card.address]
        if found.lost:
            return _lost_readings(card, found, state)
        used = processes[card.gpu]
        values = dict(found.values)
        if used.busy is not None and q.UTILIZATION not in values and not card.partitions:
            values[q.UTILIZATION] = used.busy
        if used.memory is not None and card.driver in INTEL_DRIVERS:
            values[q.MEMORY_USED] = used.memory
        supported = found.supported | {
            quantity.key: True for quantity in (q.UTILIZATION, q.MEMORY_USED) if quantity in values
        }
        readings = [
            Reading(
                card.gpu,
                values=values,
                processes=() if card.partitions else used.processes,
                samples=None if card.partitions else used.samples,
                supported=supported,
                mig_enabled=bool(card.partitions),
                rules=state.rules(used.basis, listed=True),
                unseen=0.0 if card.partitions else used.unseen,
            )
        ]
        for partition in card.partitions:
            device = partition.instance
            node, own = partition.node, processes[device]
            part: dict[Quantity, float] = {}
            if node is not None and node.memory:
                part[q.MEMORY_TOTAL] = node.memory
            if own.memory is not None:
                part[q.MEMORY_USED] = own.memory
            if partition.number in found.activity:
                part[q.ENGINE_ACTIVITY] = found.activity[partition.number]
            readings.append(
                Reading(
                    device,
                    values=part,
                    processes=own.processes,
                    samples=None,
                    supported={quantity.key: True for quantity in part},
                    rules=state.rules(own.basis, listed=True),
                )
            )
        return readings


def _lost_readings(card: DrmCard, found: CardValues, state: CardReadings) -> list[Reading]:
    """The Readings of a card that is lost, and of its partitions."""
    devices: tuple[Device, ...] = (card.gpu, *(partition.instance for partition in card.partitions))
    return [
        Reading(
            device,
            up=False,
            values=found.values if device is card.gpu else {},
            processes=None,
            samples=None,
            mig_enabled=bool(card.partitions) and device is card.gpu,
            down_reason=LOST,
            rules=state.rules("", listed=True),
        )
        for device in devices
    ]
