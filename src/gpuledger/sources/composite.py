"""Several sources of one machine as one: GPUs of different makers in one Snapshot."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from gpuledger.model.errors import SourceUnavailable
from gpuledger.model.quantities import Quantity
from gpuledger.model.snapshot import CollectorRun, Failure, Reading, Snapshot, SourceInfo
from gpuledger.model.source import Source
from gpuledger.sources.device_selection import DeviceSelection

log = logging.getLogger("gpuledger.source")


class FollowingSource(Source, Protocol):
    """A source with GPU indexes that follow those of another one."""

    indexes_from: int


class CompositeSource:
    """Reads `first` and `second` in turn; the GPUs of `second` have the next indexes.

    An index does not change while the program runs: the second source's begin after the highest index that
    the first one has had, or the number of its GPUs on the PCI bus (`count_first`) if that is higher. If one
    source is unavailable, the Snapshot has the GPUs of the other, a Failure, and `devices_failed`; only if
    both are, or the other has no GPU, does `read` raise. Each is read again at each tick. `devices` selects
    GPUs of both by index, UUID or PCI bus id; empty selects all. The sources read all of their GPUs.
    """

    has_local_pids = True

    def __init__(
        self,
        first: Source,
        second: FollowingSource,
        count_first: Callable[[], int] = lambda: 0,
        devices: tuple[str, ...] = (),
    ) -> None:
        self._first = first
        self._second = second
        self._count_first = count_first
        self._devices = devices
        self.selection = DeviceSelection(devices)
        self._next_index = 0
        self._logged: dict[str, str] = {}

    @property
    def sources(self) -> Sequence[Source]:
        """Both sources."""
        return (self._first, self._second)

    @property
    def info(self) -> SourceInfo:
        """The versions of the first source, and both names: `nvml+drm`."""
        first, second = self._first.info, self._second.info
        return replace(first, name=f"{first.name}+{second.name}")

    def read(self, wanted: frozenset[Quantity]) -> Snapshot:
        """Read one tick of both. Raises SourceUnavailable if neither can be read."""
        found: list[Snapshot] = []
        errors: list[tuple[Source, SourceUnavailable]] = []
        for source in self.sources:
            if source is self._second:
                self._second.indexes_from = self._find_next_index(found)
            try:
                found.append(source.read(wanted))
            except SourceUnavailable as error:
                errors.append((source, error))
        has_gpus = any(snapshot.readings for snapshot in found)
        self._log_errors(errors, has_gpus=has_gpus)
        if errors and not has_gpus:
            raise errors[0][1]
        failures = tuple(
            Failure("devices", error.reason, None, f"{source.info.name}: {error}") for source, error in errors
        )
        return self._select(_join_snapshots(found, self.info, failures))

    def close(self) -> None:
        """Close both."""
        for source in self.sources:
            source.close()

    def _select(self, snapshot: Snapshot) -> Snapshot:
        """The Snapshot with the selected GPUs, and what is not known to belong to others."""
        if not self._devices:
            return snapshot
        gpus = dict.fromkeys(reading.device.gpu for reading in snapshot.readings)
        if not snapshot.devices_failed:
            self.selection.compare(gpus)
            self.selection.log_omission()
        others = {gpu for gpu in gpus if not self.selection.takes(gpu)}
        return replace(
            snapshot,
            readings=tuple([one for one in snapshot.readings if one.device.gpu not in others]),
            xids=tuple([one for one in snapshot.xids if one.gpu not in others]),
            failures=tuple(
                [one for one in snapshot.failures if one.device is None or one.device.gpu not in others]
            ),
        )

    def _find_next_index(self, found: Sequence[Snapshot]) -> int:
        used = [reading.device.gpu.index + 1 for snapshot in found for reading in snapshot.readings]
        self._next_index = max(self._next_index, self._count_first(), *used, 0)
        return self._next_index

    def _log_errors(self, errors: Sequence[tuple[Source, SourceUnavailable]], *, has_gpus: bool) -> None:
        now = {source.info.name: str(error) for source, error in errors}
        if has_gpus:
            for name, text in now.items():
                if self._logged.get(name) != text:
                    log.warning("%s cannot be read; GPUs of other makers are: %s", name, text)
        self._logged = now


def _join_snapshots(found: Sequence[Snapshot], info: SourceInfo, failures: tuple[Failure, ...]) -> Snapshot:
    main = found[0]
    readings = [reading for snapshot in found for reading in _with_rules(snapshot)]
    return replace(
        main,
        source=info,
        readings=tuple(readings),
        allocations=tuple(one for snapshot in found for one in snapshot.allocations),
        xids=tuple(xid for snapshot in found for xid in snapshot.xids),
        failures=(*(failure for snapshot in found for failure in snapshot.failures), *failures),
        collected=_join_collected(found),
        invalid=sum(snapshot.invalid for snapshot in found),
        devices_failed=bool(failures) or any(snapshot.devices_failed for snapshot in found),
        boot_id=next((snapshot.boot_id for snapshot in found if snapshot.boot_id), ""),
    )


def _with_rules(snapshot: Snapshot) -> list[Reading]:
    """The Readings with what holds only for their source: that its Devices were listed, its driver's load."""
    found = []
    for reading in snapshot.readings:
        rules = reading.rules
        if rules.listed is None:
            rules = replace(rules, listed=not snapshot.devices_failed)
        found.append(replace(reading, rules=rules))
    return found


def _join_collected(found: Sequence[Snapshot]) -> tuple[CollectorRun, ...]:
    """Runs of the same part become one: its time is the sum, its error that of either."""
    by_name: dict[str, CollectorRun] = {}
    for snapshot in found:
        for run in snapshot.collected:
            known = by_name.get(run.name)
            by_name[run.name] = (
                run
                if known is None
                else CollectorRun(run.name, known.seconds + run.seconds, known.error or run.error)
            )
    return tuple(by_name.values())
