"""A recording told again, as a Source."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from gpuledger.model.devices import Device, is_chosen
from gpuledger.model.errors import SourceUnavailable, UsageError, unknown
from gpuledger.model.process import AccountingRecord, GpuProcess, UtilizationSample
from gpuledger.model.quantities import Quantity
from gpuledger.model.snapshot import Reading, Snapshot, SourceInfo, XidEvent
from gpuledger.model.source import Clock
from gpuledger.sources.replay.recording import Entry, Outage, Reader
from gpuledger.sources.settings import SourceSettings


class Replay:
    """Tells at each read the latest Snapshot that the recording had by then.

    The recording's time is that of its `Snapshot.elapsed`; it runs from the first read, `settings.speed`
    times as fast as the clock. What happened in Snapshots that were passed over (Xids, values not
    believed, samples, accounting records) is told with the next one; a Snapshot that is told again has no
    events. Pids are never looked up: owners are those of the recording.
    """

    def __init__(self, path: Path, settings: SourceSettings, clock: Clock) -> None:
        """Raises UsageError when the file is no recording, holds nothing, or lacks a wanted Device."""
        self._path = path
        self._speed = settings.speed
        self._chosen = settings.devices
        self._clock = clock
        self._reader = Reader(path)
        self._entries: Iterator[Entry] = iter(self._reader)
        self._next: Entry | None = next(self._entries, None)
        self._closed = False
        if self._next is None:
            self._reader.close()
            raise UsageError(f"{path} holds no reading: it was cut off before the first")
        self._first = self._next.elapsed
        self._began: float | None = None
        self._last: Entry = self._next
        self._gap = 0.0
        self._owed = _Events()
        self._infos: dict[SourceInfo, SourceInfo] = {}
        self._info = self._info_of(self._next)
        self._check_devices(self._next)

    @property
    def info(self) -> SourceInfo:
        """Name `replay`, with the file's name and the recorded source as detail; versions as recorded."""
        return self._info

    def read(self, wanted: frozenset[Quantity]) -> Snapshot:  # noqa: ARG002  (the protocol's)
        """The Snapshot of this moment, with all that was recorded, `wanted` or not.

        Raises SourceUnavailable when the source was so at this moment, and after the end.
        """
        if self._closed:
            raise SourceUnavailable("the recording is closed", "closed")
        now = self._clock.elapsed()
        if self._began is None:
            self._began = now
        position = self._first + (now - self._began) * self._speed
        moved = self._advance(position)
        if isinstance(self._last, Outage):
            raise SourceUnavailable(self._last.text, self._last.reason)
        # The last Snapshot stands for as long as the one before it did.
        if self._next is None and not moved and position > self._last.elapsed + self._gap:
            raise SourceUnavailable(self._end_text(), "recording_over")
        if not moved:
            return self._told(_again(self._last))
        owed, self._owed = self._owed, _Events()
        return self._told(owed.with_those_of(self._last))

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._closed = True
        self._reader.close()

    def _advance(self, position: float) -> bool:
        """Go to the last entry not later than `position`; whether there was a new one."""
        moved = False
        while self._next is not None and self._next.elapsed <= position:
            if moved and isinstance(self._last, Snapshot):
                self._owed.take(self._last)
            self._gap = self._next.elapsed - self._last.elapsed
            self._last, self._next = self._next, next(self._entries, None)
            moved = True
        return moved

    def _told(self, snapshot: Snapshot) -> Snapshot:
        readings = tuple([_answered(reading) for reading in snapshot.readings])
        told = replace(snapshot, source=self._info_of(snapshot), readings=readings)
        return _only(told, self._chosen) if self._chosen else told

    def _info_of(self, entry: Entry) -> SourceInfo:
        if isinstance(entry, Outage):
            return SourceInfo("replay", simulated=True, detail=self._path.name)
        recorded = entry.source
        if recorded not in self._infos:
            detail = " ".join(
                part for part in (f"{self._path.name}:", recorded.name, recorded.detail) if part
            )
            self._infos[recorded] = replace(recorded, name="replay", simulated=True, detail=detail)
        return self._infos[recorded]

    def _check_devices(self, first: Entry) -> None:
        if isinstance(first, Outage):
            return
        gpus = {reading.device.gpu for reading in first.readings}
        for wanted in self._chosen:
            if not any(is_chosen(gpu, (wanted,)) for gpu in gpus):
                self.close()
                raise unknown("device", wanted, [str(gpu.index) for gpu in gpus])

    def _end_text(self) -> str:
        minutes, seconds = divmod(round(self._last.elapsed - self._first), 60)
        lasted = f"{minutes} m {seconds} s" if minutes else f"{seconds} s"
        return f"the recording {self._path.name} ended after {lasted}; start again to see it again"


class _Events:
    """What happened in Snapshots that were not told, for the next one that is."""

    def __init__(self) -> None:
        self._xids: list[XidEvent] = []
        self._invalid = 0
        self._samples: dict[Device, list[UtilizationSample]] = {}
        self._records: dict[Device, list[AccountingRecord]] = {}

    def take(self, snapshot: Snapshot) -> None:
        """Keep the events of a Snapshot that is passed over."""
        self._xids += snapshot.xids
        self._invalid += snapshot.invalid
        for reading in snapshot.readings:
            if reading.samples:
                self._samples.setdefault(reading.device, []).extend(reading.samples)
            if reading.accounting:
                self._records.setdefault(reading.device, []).extend(reading.accounting)

    def with_those_of(self, snapshot: Snapshot) -> Snapshot:
        """The Snapshot with all that was kept before its own; what Devices told that are gone is lost."""
        if not (self._xids or self._invalid or self._samples or self._records):
            return snapshot
        return replace(
            snapshot,
            xids=(*self._xids, *snapshot.xids),
            invalid=self._invalid + snapshot.invalid,
            readings=tuple([self._with_own(reading) for reading in snapshot.readings]),
        )

    def _with_own(self, reading: Reading) -> Reading:
        samples, records = self._samples.get(reading.device), self._records.get(reading.device, ())
        return replace(
            reading,
            samples=(*samples, *(reading.samples or ())) if samples else reading.samples,
            accounting=(*records, *reading.accounting),
        )


def _again(snapshot: Snapshot) -> Snapshot:
    """A Snapshot that was told before: its state, without what happened."""
    readings = [
        replace(reading, samples=None if reading.samples is None else (), accounting=())
        for reading in snapshot.readings
    ]
    return replace(snapshot, xids=(), invalid=0, readings=tuple(readings))


def _answered(reading: Reading) -> Reading:
    """The Reading with the recorded owner of each process as its Host's answer."""
    if not reading.processes:
        return reading
    return replace(reading, processes=tuple([_with_answer(process) for process in reading.processes]))


def _with_answer(process: GpuProcess) -> GpuProcess:
    return replace(process, host=replace(process.host, workload=process.workload))


def _only(snapshot: Snapshot, chosen: tuple[str, ...]) -> Snapshot:
    def takes(device: Device | None) -> bool:
        return device is None or is_chosen(device.gpu, chosen)

    return replace(
        snapshot,
        readings=tuple([item for item in snapshot.readings if takes(item.device)]),
        allocations=tuple([item for item in snapshot.allocations if takes(item.device)]),
        xids=tuple([item for item in snapshot.xids if takes(item.gpu)]),
        failures=tuple([item for item in snapshot.failures if takes(item.device)]),
    )
