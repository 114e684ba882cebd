"""Any nvidia-smi command, here or through ssh, as a Source."""

from __future__ import annotations

from dataclasses import replace

from gpuledger.model.devices import Gpu, is_chosen
from gpuledger.model.errors import SourceUnavailable
from gpuledger.model.process import GpuProcess
from gpuledger.model.quantities import COLUMNS, Quantity
from gpuledger.model.snapshot import Collected, Reading, Snapshot, SourceInfo
from gpuledger.model.source import Clock, Host
from gpuledger.sources.findings import Findings
from gpuledger.sources.smi.answer import Answer, Block
from gpuledger.sources.smi.columns import PART, Columns
from gpuledger.sources.smi.command import Command, CommandRunner, Runner
from gpuledger.sources.smi.machine import (
    Card,
    Listing,
    bus_of,
    cells_of,
    gpu_of,
    gpu_values,
    instances_of,
    mig_enabled,
    part_values,
    uuid_of,
    why_down,
)
from gpuledger.sources.smi.processes import Activity, Lists, build, gather
from gpuledger.sources.smi.questions import RETRY, Questions
from gpuledger.sources.smi.settings import SmiSettings
from gpuledger.sources.smi.values import ordinal

_Topology = tuple[tuple[str, tuple[tuple[str, str, str], ...]], ...]


class SmiSource:
    """One call of `-q -x` a tick, one of `pmon` while there are processes, `-L` when the topology changes,
    one of `--query-gpu` while somebody wants COLUMNS.

    nvidia-smi has no energy counter and no timestamped samples: both are absent, not zero. `host` is asked
    of the pids exactly as printed; for a command that reads another machine it must be one that looks
    nothing up here. `devices` chooses GPUs by index, UUID or PCI bus id; empty takes all.
    """

    def __init__(
        self,
        settings: SmiSettings,
        devices: tuple[str, ...],
        host: Host,
        clock: Clock,
        run: Runner | None = None,
    ) -> None:
        command = Command(settings.command)
        self._questions = Questions(command, settings.timeout, clock, run or CommandRunner())
        self._columns = Columns(settings, command, clock, self._questions.ask)
        self._devices = devices
        self._host = host
        self._clock = clock
        self._info = SourceInfo("smi", detail="remote" if command.remote else "")
        self._known: dict[str, Card] = {}
        self._whole = False
        self._listing = Listing()
        self._listed: _Topology | None = None
        self._list_again = 0.0

    @property
    def info(self) -> SourceInfo:
        """Which source this is; versions from the first answer on."""
        return self._info

    def read(self, wanted: frozenset[Quantity]) -> Snapshot:
        """One tick. Raises SourceUnavailable when the command cannot be run or tells of no GPU."""
        unix, began = self._clock.unix(), self._clock.elapsed()
        findings = Findings()
        answer = self._machine(findings)
        asked = self._clock.elapsed()
        if COLUMNS in wanted:
            self._columns.read(answer, findings)
        queried = self._clock.elapsed()
        cards = self._cards(answer, findings)
        self._info = replace(
            self._info,
            driver_version=answer.driver or self._info.driver_version,
            cuda_version=answer.cuda or self._info.cuda_version,
            exit_code=self._columns.exit_code if COLUMNS in wanted else 0,
        )
        listed = self._clock.elapsed()

        lists = gather(cards, findings)
        facts = self._host.identify({pid for pids in lists.values() for pid in pids or ()}, unix)
        identified = self._clock.elapsed()

        activity = self._activity(cards, lists, findings)
        sampled = self._clock.elapsed()

        readings: list[Reading] = []
        for card in cards:
            told = {
                device.uuid: build(device, lists.get(device.uuid), facts, activity.usage)
                for device in card.devices
            }
            readings.extend(_readings(card, told, wanted, findings))
        done = self._clock.elapsed()
        return Snapshot(
            unix,
            began,
            self._info,
            tuple(sorted(readings, key=lambda reading: reading.device.gpu.index)),
            failures=tuple(findings.failures),
            collected=(
                Collected("devices", listed - queried + asked - began, findings.error_of("devices")),
                Collected("readings", done - sampled, findings.error_of("readings")),
                Collected("processes", identified - listed, findings.error_of("processes")),
                Collected("utilization", sampled - identified, findings.error_of("utilization")),
                *([Collected(PART, queried - asked, findings.error_of(PART))] if COLUMNS in wanted else ()),
            ),
            invalid=findings.invalid,
            devices_failed=not self._whole or answer.parts_unknown,
        )

    def close(self) -> None:
        """Nothing is held between two ticks."""

    def _machine(self, findings: Findings) -> Answer:
        try:
            return self._questions.machine(findings)
        except SourceUnavailable as error:
            kind, _, code = error.reason.partition("_")
            ended = int(code) if kind == "exit" and code != "0" else -1
            self._info = replace(self._info, exit_code=ended)
            raise

    def _activity(self, cards: list[Card], lists: Lists, findings: Findings) -> Activity:
        # On MIG pmon answers with dashes alone.
        busy = any(lists.get(card.gpu.uuid) for card in cards if not card.mig)
        return self._questions.activity(findings) if busy else Activity()

    def _cards(self, answer: Answer, findings: Findings) -> list[Card]:
        """The chosen GPUs: those that were told, and known ones that the answer names only in an error."""
        self._whole = answer.whole
        if not answer.whole and not answer.troubles:
            told = f"{answer.expected} GPUs attached, {len(answer.blocks)} told"
            findings.note("devices", "INCOMPLETE", told)
        listing = self._list(answer)
        cards: dict[str, Card] = {}
        for position, block in enumerate(answer.blocks):
            card = self._card(block, position, answer, listing, findings)
            if card is None:
                self._whole = False
            elif card.gpu.uuid in cards:
                self._whole = False
                detail = f"{card.gpu.uuid}: told twice, also of {bus_of(block)}"
                findings.note("devices", "DUPLICATE_UUID", detail)
            else:
                cards[card.gpu.uuid] = card
        for trouble in answer.troubles:
            known = self._by_bus(trouble.bus)
            findings.note("devices", trouble.reason, trouble.detail, known.gpu if known else None)
            if known:
                cards.setdefault(known.gpu.uuid, replace(known, down=trouble.reason))
        self._known = ({} if self._whole else self._known) | cards
        return [card for card in cards.values() if is_chosen(card.gpu, self._devices)]

    def _card(
        self, block: Block, position: int, answer: Answer, listing: Listing, findings: Findings
    ) -> Card | None:
        findings.invalid += block.spoiled
        down = why_down(block)
        uuid = uuid_of(block)
        known = self._known.get(uuid) if uuid else self._by_bus(bus_of(block))
        if uuid is None:
            detail = f"GPU {bus_of(block) or position}: no UUID told" + (f": {down}" if down else "")
            findings.note("devices", down or "UUID_UNKNOWN", detail, known.gpu if known else None)
            return replace(known, block=block, down=down or "UNKNOWN") if known else None
        if down:
            # What an unwell GPU says of itself is not believed over what it said before.
            gpu = known.gpu if known else self._gpu(block, uuid, position, answer, listing, findings)
            findings.note("readings", down, f"{uuid}: nvidia-smi says {down}", gpu)
            return Card(gpu, block, instances=known.instances if known else (), down=down)
        gpu = self._gpu(block, uuid, position, answer, listing, findings)
        mig = mig_enabled(block)
        return Card(gpu, block, mig, instances_of(gpu, block, listing, findings) if mig else ())

    def _gpu(
        self,
        block: Block,
        uuid: str,
        position: int,
        answer: Answer,
        listing: Listing,
        findings: Findings,
    ) -> Gpu:
        return gpu_of(block, uuid, self._index(block, uuid, position, answer, listing), findings)

    def _index(self, block: Block, uuid: str, position: int, answer: Answer, listing: Listing) -> int:
        """The GPU's index: as told, else as listed; its place counts only where every GPU has one."""
        told = ordinal(block.cells.get("index", ""))
        if told is not None:
            return told
        if uuid in listing.indexes:
            return listing.indexes[uuid]
        known = self._known.get(uuid)
        return position if answer.whole or known is None else known.gpu.index

    def _by_bus(self, bus: str) -> Card | None:
        return next((card for card in self._known.values() if bus and card.gpu.pci_bus_id == bus), None)

    def _list(self, answer: Answer) -> Listing:
        """`-L` where it tells what nothing else does: MIG UUIDs, and indexes when GPUs may be missing."""
        parts = tuple((uuid_of(block) or "", _part_ids(block)) for block in answer.blocks)
        counted = answer.expected == len(answer.blocks)
        if counted and not any(ids for _, ids in parts):
            return Listing()
        now = self._clock.elapsed()
        if parts != self._listed or (now >= self._list_again and not _names_all(self._listing, answer)):
            self._listing = self._questions.listing()
            self._listed, self._list_again = parts, now + RETRY
        return self._listing


def _part_ids(block: Block) -> tuple[tuple[str, str, str], ...]:
    return tuple(
        (
            cells.get("index", ""),
            cells.get("gpu_instance_id", ""),
            cells.get("compute_instance_id", ""),
        )
        for cells in block.parts
    )


def _names_all(listing: Listing, answer: Answer) -> bool:
    named = sum(len(block.parts) for block in answer.blocks)
    return len(listing.parts) >= named and bool(listing.indexes)


def _readings(
    card: Card,
    told: dict[str, tuple[GpuProcess, ...] | None],
    wanted: frozenset[Quantity],
    findings: Findings,
) -> list[Reading]:
    """The Reading of one Gpu and those of its Instances, in that order."""
    if card.down:
        return [
            Reading(device, up=False, processes=None, samples=None, mig_enabled=bool(card.instances))
            for device in card.devices
        ]
    values, supported = gpu_values(card, wanted, findings)
    readings = [
        Reading(
            card.gpu,
            values=values,
            processes=() if card.instances else told[card.gpu.uuid],
            samples=None,
            supported=supported,
            mig_enabled=card.mig,
            raw=card.block.raw,
        )
    ]
    for instance in card.instances:
        values, supported = part_values(instance, cells_of(instance, card.block), wanted, findings)
        readings.append(
            Reading(
                instance,
                values=values,
                processes=told[instance.uuid],
                samples=None,
                supported=supported,
                mig_enabled=True,
            )
        )
    return readings
