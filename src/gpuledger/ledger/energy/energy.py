"""The energy books of a node: every Gpu's, posted Snapshot by Snapshot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpuledger.ledger.energy.booking import Policy
from gpuledger.ledger.energy.counter import Counter, Epoch
from gpuledger.ledger.energy.floor import FloorBook, Floors, QuietPower
from gpuledger.ledger.energy.gpu_book import GpuBook, Posted
from gpuledger.model.devices import Gpu, Instance
from gpuledger.model.quantities import (
    ENERGY,
    ENGINE_ACTIVITY,
    POWER,
    POWER_LIMIT,
    POWER_LIMIT_MAX,
    UTILIZATION,
    Quantity,
)
from gpuledger.model.snapshot import Reading, Snapshot

WANTS: frozenset[Quantity] = frozenset(
    {ENERGY, ENGINE_ACTIVITY, POWER, POWER_LIMIT, POWER_LIMIT_MAX, UTILIZATION}
)


@dataclass(frozen=True, slots=True)
class Stored:
    """What is kept of a Gpu over restarts: its counter, and what its floors were learnt from."""

    counter: Counter
    empty: QuietPower = field(default_factory=QuietPower)
    resident: QuietPower = field(default_factory=QuietPower)
    last_unix: float | None = None


class EnergyBook:
    """Books of all Gpus; used by the tick thread alone.

    `stored` is what an earlier run left, by Gpu uuid. `given` are configured floors for every Gpu.
    """

    def __init__(
        self,
        given: Floors,
        policy: Policy = Policy.APPORTIONED,
        stored: Mapping[str, Stored] | None = None,
    ) -> None:
        self._given = given
        self._policy = policy
        self._stored = dict(stored or {})
        self.books: dict[str, GpuBook] = {}
        self.epochs_closed = 0

    @property
    def invalid(self) -> int:
        """Counter readings not believed so far."""
        return sum(book.invalid for book in self.books.values())

    def resume(self, stored: Mapping[str, Stored]) -> None:
        """Go on from what an earlier run left, by Gpu uuid; before the first Snapshot."""
        self._stored = dict(stored)

    def post(self, snapshot: Snapshot) -> list[Posted]:
        """Book one Snapshot; answers what went into the books."""
        epoch = Epoch(snapshot.boot_id, snapshot.driver_load)
        parts: dict[Gpu, list[Reading]] = {}
        for reading in snapshot.readings:
            if isinstance(reading.device, Instance):
                parts.setdefault(reading.device.parent, []).append(reading)
        posted = []
        for reading in snapshot.readings:
            if isinstance(reading.device, Gpu):
                book = self._book(reading.device, epoch)
                one = book.post(
                    snapshot.elapsed,
                    snapshot.unix,
                    reading,
                    parts.get(reading.device, ()),
                    whole=not snapshot.devices_failed,
                )
                if one is not None:
                    posted.append(one)
        return posted

    def _book(self, gpu: Gpu, epoch: Epoch) -> GpuBook:
        book = self.books.get(gpu.uuid)
        if book is None:
            book = self.books[gpu.uuid] = self._open(gpu, epoch)
        elif epoch.differs(book.counter.epoch):
            # The driver was loaded anew while we watched.
            book.counter, verdict = book.counter.resumed(epoch)
            book.evidence = None
            self.epochs_closed += verdict.epoch_closed
        return book

    def _open(self, gpu: Gpu, epoch: Epoch) -> GpuBook:
        kept = self._stored.pop(gpu.uuid, None)
        if kept is None:
            return GpuBook(gpu, Counter(epoch), FloorBook(self._given), self._policy)
        counter, verdict = kept.counter.resumed(epoch)
        self.epochs_closed += verdict.epoch_closed
        floors = FloorBook(self._given, kept.empty, kept.resident)
        return GpuBook(gpu, counter, floors, self._policy, seen_unix=kept.last_unix)
