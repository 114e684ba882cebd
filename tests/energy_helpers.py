"""A test bench for one Gpu's energy ledger: ticks in, postings out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from builders import reading
from gpuledger.ledger.energy.counter import EnergyCounter, Epoch
from gpuledger.ledger.energy.floor import FloorEstimator, configured_floors
from gpuledger.ledger.energy.gpu_energy_ledger import GpuEnergyLedger, Posting
from gpuledger.model import quantities as q
from gpuledger.model.devices import Gpu, Instance
from gpuledger.model.process import AccountingRecord, GpuProcess, UtilizationSample

UNIX = 1_700_000_000.0


def samples(pid: int, *times: float, sm: float) -> list[UtilizationSample]:
    """One sample of a pid at each time, in seconds of the source's clock."""
    return [UtilizationSample(pid, round(at * 1e6), sm, 0.0, 0.0, 0.0) for at in times]


class Bench:
    """A Gpu's energy ledger with configured floors (watts) and optional stored state."""

    def __init__(
        self,
        card: Gpu,
        *,
        empty: float | None = None,
        resident: float | None = None,
        parts: Sequence[Instance] = (),
        limit: float | None = None,
        stored: int | None = None,
        stored_at: float = 0.0,
        stored_epoch: Epoch | None = None,
        epoch: Epoch | None = None,
    ) -> None:
        self.card = card
        self.parts = parts
        self.limit = limit
        here = epoch or Epoch("boot")
        counter = EnergyCounter(here)
        if stored is not None:
            counter = EnergyCounter(
                stored_epoch or here, opening=0, booked=stored, last=stored, last_at=stored_at
            )
        self.book = GpuEnergyLedger(card, counter, FloorEstimator(configured_floors(empty, resident)))
        self.posted = self.book.begin_epoch(here, UNIX)
        if counter.epoch == here:
            self.book.counter, _ = counter.resumed(here)

    def tick(
        self,
        at: float,
        value: int | None,
        processes: Sequence[GpuProcess] | None,
        *,
        samples: Sequence[UtilizationSample] | None = (),
        utilization: float | None = None,
        activity: Mapping[Instance, float] | None = None,
        power: float | None = None,
        accounting: Sequence[AccountingRecord] = (),
        fresh: bool = False,
    ) -> Posting:
        """Apply one tick and return its last posting.

        `fresh` begins a new interval, like the first move of a counter; `samples` is None if the driver's
        samples cannot be read.
        """
        values = {q.ENERGY: value, q.UTILIZATION: utilization, q.POWER_LIMIT_MAX: self.limit, q.POWER: power}
        known = {quantity: number for quantity, number in values.items() if number is not None}
        whole = reading(
            self.card,
            *(processes or () if not self.parts else ()),
            failed=processes is None and not self.parts,
            values=known,
            samples=None if self.parts or samples is None else tuple(samples),
            accounting=tuple(accounting),
        )
        cut = [
            reading(
                part,
                *(one for one in processes or () if one.device == part),
                failed=processes is None,
                values={} if activity is None else {q.ENGINE_ACTIVITY: activity[part]},
            )
            for part in self.parts
        ]
        if fresh:
            assert value is not None
            self.book.counter = EnergyCounter(
                self.book.counter.epoch,
                opening=value - 1,
                booked=value - 1,
                last=value - 1,
                last_at=at,
                running=True,
                moved_at=at - 1,
            )
        now = self.book.post(at, UNIX + at, whole, cut, whole=True)
        if not fresh:
            self.posted += now
        return now[-1] if now else None  # type: ignore[return-value]  # asserted


def flat(posted: Posting) -> dict[object, int]:
    """Millijoules by pid, plus the Gpu's own accounts if not 0."""
    own = {"idle": posted.booked.idle, "unattributed": posted.booked.unattributed}
    known = {key[1]: joules for key, joules in posted.booked.processes.items()}
    assert sum(known.values()) + sum(own.values()) == posted.booked.delta
    return {**known, **{name: joules for name, joules in own.items() if joules}}
