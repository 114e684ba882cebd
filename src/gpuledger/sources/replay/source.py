"""The Source that replays a recording."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from gpuledger.model.devices import Device, is_selected
from gpuledger.model.errors import SourceUnavailable, UsageError, unknown_name_error
from gpuledger.model.process import AccountingRecord, GpuProcess, UtilizationSample
from gpuledger.model.quantities import Quantity
from gpuledger.model.snapshot import Reading, Snapshot, SourceInfo, XidEvent
from gpuledger.model.source import Clock
from gpuledger.sources.device_selection import DeviceSelection
from gpuledger.sources.replay.recording import Outage, RecordingEntry, RecordingReader
from gpuledger.sources.settings import SourceSettings


class ReplaySource:
    """Returns at each read the latest Snapshot of the recording up to the current replay time.

    Replay time is the recording's `Snapshot.elapsed`. It starts at the first read and runs `settings.speed`
    times as fast as the clock. Events of skipped Snapshots (Xids, invalid values, samples, accounting
    records) are added to the next one; a Snapshot that is returned again has no events. Pids are never looked
    up: owners are those of the recording.
    """

    has_local_pids = False

    def __init__(self, path: Path, settings: SourceSettings, clock: Clock) -> None:
        """Raises UsageError if the file is not a recording, is empty, or lacks a selected Device."""
        self._path = path
        self._speed = settings.speed
        self._selected_devices = settings.devices
        self.selection = DeviceSelection(settings.devices)
        self._clock = clock
        self._reader = RecordingReader(path)
        self._entries: Iterator[RecordingEntry] = iter(self._reader)
        self._next: RecordingEntry | None = next(self._entries, None)
        self._closed = False
        if self._next is None:
            self._reader.close()
            raise UsageError(f"{path} has no tick: it is truncated before the first; record it again")
        self._first_elapsed = self._next.elapsed
        self._started_at: float | None = None
        self._current: RecordingEntry = self._next
        self._last_interval = 0.0
        self._skipped = _SkippedEvents()
        self._infos: dict[SourceInfo, SourceInfo] = {}
        self.info = self._info_of(self._next)
        self._check_devices(self._next)

    def read(self, wanted: frozenset[Quantity]) -> Snapshot:  # noqa: ARG002  (the protocol's)
        """Return the current Snapshot, with all recorded quantities regardless of `wanted`.

        Raises SourceUnavailable if the recorded source was unavailable at this time, and after the end.
        """
        if self._closed:
            raise SourceUnavailable("the recording is closed", "closed")
        self.selection.log_omission()
        now = self._clock.elapsed()
        if self._started_at is None:
            self._started_at = now
        position = self._first_elapsed + (now - self._started_at) * self._speed
        moved = self._advance_to(position)
        if isinstance(self._current, Outage):
            raise SourceUnavailable(self._current.text, self._current.reason)
        # The last Snapshot is valid for as long as the previous one.
        if self._next is None and not moved and position > self._current.elapsed + self._last_interval:
            raise SourceUnavailable(self._describe_end(), "recording_over")
        if not moved:
            return self._prepare(_without_events(self._current))
        skipped, self._skipped = self._skipped, _SkippedEvents()
        return self._prepare(skipped.prepend_to(self._current))

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._closed = True
        self._reader.close()

    def _advance_to(self, position: float) -> bool:
        """Advance to the last entry up to `position`; return whether there was a new one."""
        moved = False
        while self._next is not None and self._next.elapsed <= position:
            if moved and isinstance(self._current, Snapshot):
                self._skipped.add(self._current)
            self._last_interval = self._next.elapsed - self._current.elapsed
            self._current, self._next = self._next, next(self._entries, None)
            moved = True
        return moved

    def _prepare(self, snapshot: Snapshot) -> Snapshot:
        readings = tuple([_with_recorded_owners(reading) for reading in snapshot.readings])
        prepared = replace(snapshot, source=self._info_of(snapshot), readings=readings)
        return _select_devices(prepared, self._selected_devices) if self._selected_devices else prepared

    def _info_of(self, entry: RecordingEntry) -> SourceInfo:
        if isinstance(entry, Outage):
            return SourceInfo("replay", simulated=True, detail=self._path.name)
        recorded = entry.source
        if recorded not in self._infos:
            detail = " ".join(
                part for part in (f"{self._path.name}:", recorded.name, recorded.detail) if part
            )
            self._infos[recorded] = replace(recorded, name="replay", simulated=True, detail=detail)
        return self._infos[recorded]

    def _check_devices(self, first: RecordingEntry) -> None:
        if isinstance(first, Outage):
            return
        gpus = {reading.device.gpu for reading in first.readings}
        for wanted in self._selected_devices:
            if not any(is_selected(gpu, (wanted,)) for gpu in gpus):
                self.close()
                raise unknown_name_error("device", wanted, [str(gpu.index) for gpu in gpus])
        self.selection.compare(gpus)

    def _describe_end(self) -> str:
        minutes, seconds = divmod(round(self._current.elapsed - self._first_elapsed), 60)
        length = f"{minutes} m {seconds} s" if minutes else f"{seconds} s"
        return f"the recording {self._path.name} ended after {length}; restart gpuledger to replay it again"


class _SkippedEvents:
    """Events of skipped Snapshots, to be added to the next one that is returned."""

    def __init__(self) -> None:
        self._xids: list[XidEvent] = []
        self._invalid = 0
        self._samples: dict[Device, list[UtilizationSample]] = {}
        self._records: dict[Device, list[AccountingRecord]] = {}

    def add(self, snapshot: Snapshot) -> None:
        """Add the events of a skipped Snapshot."""
        self._xids += snapshot.xids
        self._invalid += snapshot.invalid
        for reading in snapshot.readings:
            if reading.samples:
                self._samples.setdefault(reading.device, []).extend(reading.samples)
            if reading.accounting:
                self._records.setdefault(reading.device, []).extend(reading.accounting)

    def prepend_to(self, snapshot: Snapshot) -> Snapshot:
        """Return the Snapshot with these events before its own; those of vanished Devices are dropped."""
        if not (self._xids or self._invalid or self._samples or self._records):
            return snapshot
        return replace(
            snapshot,
            xids=(*self._xids, *snapshot.xids),
            invalid=self._invalid + snapshot.invalid,
            readings=tuple([self._prepend_to_reading(reading) for reading in snapshot.readings]),
        )

    def _prepend_to_reading(self, reading: Reading) -> Reading:
        samples, records = self._samples.get(reading.device), self._records.get(reading.device, ())
        return replace(
            reading,
            samples=(*samples, *(reading.samples or ())) if samples else reading.samples,
            accounting=(*records, *reading.accounting),
        )


def _without_events(snapshot: Snapshot) -> Snapshot:
    """Return the state of a Snapshot without its events."""
    readings = [
        replace(reading, samples=None if reading.samples is None else (), accounting=())
        for reading in snapshot.readings
    ]
    return replace(snapshot, xids=(), invalid=0, readings=tuple(readings))


def _with_recorded_owners(reading: Reading) -> Reading:
    """Set the recorded owner of each process as the result of its Host's owner lookup."""
    if not reading.processes:
        return reading
    return replace(reading, processes=tuple([_with_recorded_owner(process) for process in reading.processes]))


def _with_recorded_owner(process: GpuProcess) -> GpuProcess:
    return replace(process, host=replace(process.host, workload=process.workload))


def _select_devices(snapshot: Snapshot, selected: tuple[str, ...]) -> Snapshot:
    def is_wanted(device: Device | None) -> bool:
        return device is None or is_selected(device.gpu, selected)

    return replace(
        snapshot,
        readings=tuple([item for item in snapshot.readings if is_wanted(item.device)]),
        allocations=tuple([item for item in snapshot.allocations if is_wanted(item.device)]),
        xids=tuple([item for item in snapshot.xids if is_wanted(item.gpu)]),
        failures=tuple([item for item in snapshot.failures if is_wanted(item.device)]),
    )
