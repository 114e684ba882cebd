"""The time ledger of a node: posts each Snapshot's time for all Gpus, by both bases."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from gpuledger.ledger.energy.counter import Epoch
from gpuledger.ledger.service_processes import NO_PROCESSES, serving_processes
from gpuledger.ledger.time.decision import Stretch, TimeTick, read_tick
from gpuledger.ledger.time.gpu_time_ledger import UNKNOWN_GAP, Gap, GpuTimeLedger
from gpuledger.ledger.time.span import TimePosting, TimeSpanRecorder
from gpuledger.ledger.time.split import GpuFacts
from gpuledger.ledger.time.stored import StoredGpuTime
from gpuledger.ledger.watched_time import CLOCK_STEP, MICRO
from gpuledger.model.devices import Gpu, Instance
from gpuledger.model.process import ProcessKey
from gpuledger.model.snapshot import Reading, Snapshot
from gpuledger.model.workload import Allocation

log = logging.getLogger("gpuledger.ledger")


class TimeLedger:
    """Time ledgers of all Gpus. Used only by the tick thread.

    `posted` are the microseconds in spans, by Gpu uuid.
    """

    def __init__(self) -> None:
        self.gpu_ledgers: dict[str, GpuTimeLedger] = {}
        self.recorder = TimeSpanRecorder()
        self.posted: Counter[str] = Counter()
        self._kept: list[TimePosting] = []
        self._facts: dict[str, GpuFacts] = {}
        self._allocations: tuple[Allocation, ...] = ()
        self._by_gpu: dict[str, tuple[Allocation, ...]] = {}
        # Seconds in suspend until the last tick, None if nothing was watched then.
        self._suspended: float | None = None
        self._gap = UNKNOWN_GAP
        self._serving = NO_PROCESSES

    def resume(self, stored: Iterable[StoredGpuTime], next_span: int = 1) -> None:
        """Continue from an earlier run. Call before the first Snapshot. New spans begin at `next_span`."""
        self.recorder = TimeSpanRecorder(next_span)
        for one in stored:
            self.posted[one.gpu.uuid] = one.posted
            self._record(one.gpu, one.pending, self._kept)
            self.recorder.close(one.gpu.uuid)
            if one.is_down:
                self.gpu_ledgers[one.gpu.uuid] = GpuTimeLedger(one.gpu, one.epoch, is_down=True)

    def state(self) -> list[StoredGpuTime]:
        """What a restart needs, after a posting."""
        return [
            StoredGpuTime(one.gpu, self.posted[uuid], one.epoch, one.is_down, tuple(one.pending_stretches()))
            for uuid, one in self.gpu_ledgers.items()
        ]

    @property
    def pending(self) -> Mapping[str, int]:
        """Watched microseconds that are not decided yet, by Gpu uuid."""
        return {uuid: one.pending for uuid, one in self.gpu_ledgers.items()}

    @property
    def watched(self) -> Mapping[str, int]:
        """Watched microseconds by Gpu uuid: those in spans and the pending ones."""
        return {
            uuid: posted + (self.gpu_ledgers[uuid].pending if uuid in self.gpu_ledgers else 0)
            for uuid, posted in self.posted.items()
        }

    def interrupt(self) -> None:
        """Stop watching until the next posting. What is pending is decided now, and returned with that."""
        self._suspended = None
        self._stop_watching(self._kept)

    def _stop_watching(self, posted: list[TimePosting]) -> None:
        for one in self.gpu_ledgers.values():
            self._record(one.gpu, one.interrupt(), posted)
            self.recorder.close(one.gpu.uuid)

    def post(self, snapshot: Snapshot, serving: frozenset[ProcessKey] | None = None) -> list[TimePosting]:
        """Post one Snapshot.

        If its `suspended` is the same before and after a gap of more than a minute, the gap is a hang, and
        watched, unless it was planned. If it is higher, the machine was suspended, and the time since the
        last tick is not watched. `serving` are processes that serve others, computed from the Snapshot if
        None.
        """
        posted, self._kept = self._kept, []
        self._serving = serving_processes(snapshot.processes) if serving is None else serving
        before, self._suspended = self._suspended, snapshot.suspended
        self._gap = UNKNOWN_GAP
        if before is not None and snapshot.suspended is not None:
            if snapshot.suspended - before < CLOCK_STEP:
                self._gap = Gap(True, round((snapshot.interval or 0.0) * MICRO))
            else:
                self._stop_watching(posted)
        self._group_allocations(snapshot.allocations)
        parts: dict[str, list[Reading]] = {}
        for reading in snapshot.readings:
            if isinstance(reading.device, Instance):
                parts.setdefault(reading.device.parent.uuid, []).append(reading)
        missing = dict(self.gpu_ledgers)
        for reading in snapshot.readings:
            gpu = reading.device
            if isinstance(gpu, Gpu):
                one = missing.pop(gpu.uuid, None)
                if one is None:
                    one = self.gpu_ledgers[gpu.uuid] = GpuTimeLedger(gpu)
                # Loads of one maker's driver say nothing about the GPUs of another.
                load = snapshot.driver_load if reading.rules.epoch is None else ""
                one.gpu, one.epoch = gpu, Epoch(snapshot.boot_id, load)
                self._post_gpu(one, self._tick(gpu, reading, parts.get(gpu.uuid, ()), snapshot), posted)
        for one in missing.values():
            self._post_missing(one, snapshot, posted)
        return posted

    def _tick(
        self, gpu: Gpu, reading: Reading | None, parts: Sequence[Reading], snapshot: Snapshot
    ) -> TimeTick:
        at, unix = round(snapshot.elapsed * MICRO), round(snapshot.unix * MICRO)
        facts = self._facts_of(gpu, reading, parts, snapshot)
        whole = not snapshot.devices_failed if reading is None else snapshot.is_listed_completely(reading)
        return read_tick(at, unix, reading, parts, facts, self._serving, whole=whole)

    def _post_missing(self, one: GpuTimeLedger, snapshot: Snapshot, posted: list[TimePosting]) -> None:
        """A Gpu that is in no Reading: it is lost, could not be listed, or is gone."""
        is_gone = not one.is_down and not snapshot.devices_failed
        if not is_gone:
            self._post_gpu(one, self._tick(one.gpu, None, (), snapshot), posted)
            # A loss ends with a boot or a driver load without the Gpu.
            is_gone = one.is_down and Epoch(snapshot.boot_id, snapshot.driver_load).differs(one.epoch)
        if is_gone:
            self._record(one.gpu, one.interrupt(), posted)
            self.recorder.close(one.gpu.uuid)
            del self.gpu_ledgers[one.gpu.uuid]

    def _post_gpu(self, one: GpuTimeLedger, tick: TimeTick, posted: list[TimePosting]) -> None:
        try:
            decided = one.post(tick, self._gap)
        except Exception:
            log.exception("failed to split the time of GPU %s", one.gpu.uuid)
            decided = one.give_up(tick)
        self.posted.setdefault(one.gpu.uuid, 0)
        self._record(one.gpu, decided, posted)

    def _record(self, gpu: Gpu, stretches: Iterable[Stretch], posted: list[TimePosting]) -> None:
        for stretch in stretches:
            self.posted[gpu.uuid] += stretch.microseconds
            posted += self.recorder.post(gpu, *stretch)

    def _group_allocations(self, allocations: tuple[Allocation, ...]) -> None:
        """Group the Allocations by Gpu, once while they do not change."""
        if allocations is not self._allocations:
            grouped: dict[str, list[Allocation]] = {}
            for one in allocations:
                grouped.setdefault(one.device.gpu.uuid, []).append(one)
            self._by_gpu = {uuid: tuple(found) for uuid, found in grouped.items()}
            self._allocations = allocations

    def _facts_of(
        self, gpu: Gpu, reading: Reading | None, parts: Sequence[Reading], snapshot: Snapshot
    ) -> GpuFacts:
        """What is known of the Gpu; the same object while that does not change."""
        before = self._facts.get(gpu.uuid)
        instances = tuple([part.device for part in parts if isinstance(part.device, Instance)])
        is_cut = bool(instances) or (reading is not None and reading.mig_enabled)
        if before is not None and len(instances) < len(before.instances) and not snapshot.is_gone(gpu):
            # The Instances that could not be listed are still there.
            instances, is_cut = before.instances, before.is_cut
        allocations = self._by_gpu.get(gpu.uuid, ())
        described = (gpu.name, gpu.sm_count, *[(one.profile, one.sm_count) for one in instances])
        if (
            before is not None
            and before.allocations is allocations
            and (before.instances, before.is_cut) == (instances, is_cut)
            and before.complete == snapshot.allocations_complete
            and before.described == described
        ):
            return before
        facts = GpuFacts(gpu, instances, is_cut, allocations, snapshot.allocations_complete, described)
        self._facts[gpu.uuid] = facts
        return facts
