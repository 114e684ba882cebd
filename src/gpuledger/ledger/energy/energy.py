"""The energy books of a node: every Gpu's, posted Snapshot by Snapshot."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from gpuledger.ledger.energy.booking import Policy
from gpuledger.ledger.energy.counter import Counter, Epoch
from gpuledger.ledger.energy.floor import FloorBook, Floors, QuietPower
from gpuledger.ledger.energy.gpu_book import GpuBook, Posted
from gpuledger.model.devices import Gpu, Instance
from gpuledger.model.quantities import (
    DECODER_UTILIZATION,
    ENCODER_UTILIZATION,
    ENERGY,
    ENGINE_ACTIVITY,
    POWER,
    POWER_LIMIT,
    POWER_LIMIT_MAX,
    UTILIZATION,
    Quantity,
)
from gpuledger.model.snapshot import Reading, Snapshot

log = logging.getLogger("gpuledger.ledger")

WANTS: frozenset[Quantity] = frozenset(
    {
        DECODER_UTILIZATION,
        ENCODER_UTILIZATION,
        ENERGY,
        ENGINE_ACTIVITY,
        POWER,
        POWER_LIMIT,
        POWER_LIMIT_MAX,
        UTILIZATION,
    }
)


@dataclass(frozen=True, slots=True)
class Stored:
    """What is kept of a Gpu over restarts: its counter, and what its floors were learnt from, without and
    with residents, by version of the driver.
    """

    counter: Counter
    floors: Mapping[str, tuple[QuietPower, QuietPower]] = field(default_factory=dict)
    last_unix: float | None = None


class EnergyBook:
    """Books of all Gpus; used by the tick thread alone. `given` are configured floors for every Gpu."""

    def __init__(self, given: Floors, policy: Policy = Policy.APPORTIONED) -> None:
        self._given = given
        self._policy = policy
        self._stored: dict[str, Stored] = {}
        self.books: dict[str, GpuBook] = {}

    @property
    def invalid(self) -> int:
        """Counter readings not believed so far."""
        return sum(book.invalid for book in self.books.values())

    def resume(self, stored: Mapping[str, Stored]) -> None:
        """Go on from what an earlier run left, by Gpu uuid; before the first Snapshot."""
        self._stored = dict(stored)

    def adopt(self, given: Floors, policy: Policy) -> None:
        """Apportion by these from here on, the intervals that are open too."""
        self._given, self._policy = given, policy
        for book in self.books.values():
            book.policy = policy
            book.floors.give(given)

    def interrupt(self) -> None:
        """Nobody looks at any Gpu until the next posting."""
        for book in self.books.values():
            book.interrupt()

    def post(self, snapshot: Snapshot) -> list[Posted]:
        """Book one Snapshot; answers what went into the books.

        A Gpu whose posting fails loses no energy: its counter stays where it was, and what it shows at the
        next posting is unobserved.
        """
        parts: dict[Gpu, list[Reading]] = {}
        for reading in snapshot.readings:
            if isinstance(reading.device, Instance):
                parts.setdefault(reading.device.parent, []).append(reading)
        posted = []
        for reading in snapshot.readings:
            if isinstance(reading.device, Gpu):
                book = self._book(reading.device, snapshot)
                before = book.counter
                try:
                    posted += book.begin_epoch(_epoch(snapshot), snapshot.unix)
                    before = book.counter
                    posted += book.post(
                        snapshot.elapsed,
                        snapshot.unix,
                        reading,
                        parts.get(reading.device, ()),
                        whole=not snapshot.devices_failed,
                    )
                except Exception:
                    log.exception("the energy of GPU %s could not be apportioned", reading.device.uuid)
                    book.counter, book.evidence = replace(before, started_at=None), None
        return posted

    def _book(self, gpu: Gpu, snapshot: Snapshot) -> GpuBook:
        book = self.books.get(gpu.uuid)
        driver = snapshot.source.driver_version
        if book is None:
            book = self.books[gpu.uuid] = self._open(gpu, _epoch(snapshot), driver)
        elif driver and driver != book.driver:
            # What one driver idles at says nothing of another.
            book.driver, book.floors = driver, FloorBook(self._given)
        return book

    def _open(self, gpu: Gpu, epoch: Epoch, driver: str) -> GpuBook:
        kept = self._stored.pop(gpu.uuid, None)
        if kept is None:
            return GpuBook(gpu, Counter(epoch), FloorBook(self._given), self._policy, driver)
        empty, resident = kept.floors.get(driver) or (QuietPower(), QuietPower())
        floors = FloorBook(self._given, empty, resident)
        book = GpuBook(gpu, kept.counter, floors, self._policy, driver, seen_unix=kept.last_unix)
        if not epoch.differs(kept.counter.epoch):
            # Another run of this program, but not of the counter.
            book.counter, _ = kept.counter.resumed(epoch)
        return book


def _epoch(snapshot: Snapshot) -> Epoch:
    return Epoch(snapshot.boot_id, snapshot.driver_load)
