"""The energy ledger of a node: books each Snapshot's energy for all Gpus."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from gpuledger.ledger.energy.booking import EnergyPolicy
from gpuledger.ledger.energy.counter import EnergyCounter, Epoch
from gpuledger.ledger.energy.floor import FloorEstimator, Floors, QuietPower
from gpuledger.ledger.energy.gpu_energy_ledger import GpuEnergyLedger, Posting
from gpuledger.model import quantities as q
from gpuledger.model.devices import Gpu, Instance
from gpuledger.model.process import ProcessKey
from gpuledger.model.snapshot import Reading, Snapshot

log = logging.getLogger("gpuledger.ledger")

QUANTITIES: frozenset[q.Quantity] = frozenset(
    {
        q.DECODER_UTILIZATION,
        q.ENCODER_UTILIZATION,
        q.ENERGY,
        q.ENGINE_ACTIVITY,
        q.POWER,
        q.POWER_LIMIT,
        q.POWER_LIMIT_MAX,
        q.UTILIZATION,
    }
)


@dataclass(frozen=True, slots=True)
class StoredGpuEnergy:
    """The stored energy state of a Gpu: its counter, and the quiet power from which its floors are learned.

    `floors` (without and with residents) are by driver version.
    """

    counter: EnergyCounter
    floors: Mapping[str, tuple[QuietPower, QuietPower]] = field(default_factory=dict)
    last_unix: float | None = None


class EnergyLedger:
    """Energy ledgers of all Gpus. Used only by the tick thread. `configured` floors apply to every Gpu."""

    def __init__(self, configured: Floors, policy: EnergyPolicy = EnergyPolicy.APPORTIONED) -> None:
        self._configured = configured
        self._policy = policy
        self._stored: dict[str, StoredGpuEnergy] = {}
        self.gpu_ledgers: dict[str, GpuEnergyLedger] = {}

    def resume(self, stored: Mapping[str, StoredGpuEnergy]) -> None:
        """Continue from an earlier run, by Gpu uuid. Call before the first Snapshot."""
        self._stored = dict(stored)

    def apply_settings(self, configured: Floors, policy: EnergyPolicy) -> None:
        """Apportion with these settings from now on, including open intervals."""
        self._configured, self._policy = configured, policy
        for gpu_ledger in self.gpu_ledgers.values():
            gpu_ledger.policy = policy
            gpu_ledger.floors.set_configured(configured)

    @property
    def invalid(self) -> int:
        """Rejected readings of counters and of power in this run."""
        return sum(gpu_ledger.invalid for gpu_ledger in self.gpu_ledgers.values())

    def interrupt(self) -> None:
        """Stop observing all Gpus until the next posting."""
        for gpu_ledger in self.gpu_ledgers.values():
            gpu_ledger.interrupt()

    def post(self, snapshot: Snapshot, serving: frozenset[ProcessKey] | None = None) -> list[Posting]:
        """Book one Snapshot and return its postings. `serving` are its processes that serve others.

        If the posting of a Gpu fails, no energy is lost: its meter is unchanged, and the increase until the
        next posting is unobserved.
        """
        parts: dict[Gpu, list[Reading]] = {}
        for reading in snapshot.readings:
            if isinstance(reading.device, Instance):
                parts.setdefault(reading.device.parent, []).append(reading)
        posted = []
        if not snapshot.devices_failed:
            here = {reading.device.gpu.uuid for reading in snapshot.readings}
            for uuid in self.gpu_ledgers.keys() - here:
                # A Gpu that is gone draws no power until it is back.
                self.gpu_ledgers[uuid].power.interrupt()
        for reading in snapshot.readings:
            if isinstance(reading.device, Gpu):
                epoch = Epoch(snapshot.boot_id, snapshot.driver_load_of(reading))
                gpu_ledger = self._gpu_ledger(reading.device, epoch, snapshot)
                before, rejected = gpu_ledger.counter, gpu_ledger.invalid
                meter = (gpu_ledger.has_counter, gpu_ledger.frozen)
                try:
                    posted += gpu_ledger.begin_epoch(
                        epoch, snapshot.unix, starts_at_zero=reading.rules.starts_at_zero
                    )
                    before, meter = gpu_ledger.counter, (gpu_ledger.has_counter, gpu_ledger.frozen)
                    posted += gpu_ledger.post(
                        snapshot.elapsed,
                        snapshot.unix,
                        reading,
                        parts.get(reading.device, ()),
                        whole=snapshot.is_listed_completely(reading),
                        serving=serving,
                    )
                except Exception:
                    log.exception("failed to apportion the energy of GPU %s", reading.device.uuid)
                    gpu_ledger.counter, gpu_ledger.evidence = replace(before, started_at=None), None
                    gpu_ledger.has_counter, gpu_ledger.frozen = meter
                if gpu_ledger.invalid and not rejected:
                    if gpu_ledger.uses_power and gpu_ledger.power.excess_since is not None:
                        _log_excess(reading)
                    else:
                        _log_rejected(before, reading.device, simulated=snapshot.source.simulated)
        return posted

    def _gpu_ledger(self, gpu: Gpu, epoch: Epoch, snapshot: Snapshot) -> GpuEnergyLedger:
        gpu_ledger = self.gpu_ledgers.get(gpu.uuid)
        driver = snapshot.source.driver_version
        if gpu_ledger is None:
            gpu_ledger = self.gpu_ledgers[gpu.uuid] = self._open(gpu, epoch, driver)
        elif driver and driver != gpu_ledger.driver:
            # Idle power learned with one driver does not apply to another.
            gpu_ledger.driver, gpu_ledger.floors = driver, FloorEstimator(self._configured)
        return gpu_ledger

    def _open(self, gpu: Gpu, epoch: Epoch, driver: str) -> GpuEnergyLedger:
        stored = self._stored.pop(gpu.uuid, None)
        if stored is None:
            return GpuEnergyLedger(
                gpu, EnergyCounter(epoch), FloorEstimator(self._configured), self._policy, driver
            )
        empty, resident = stored.floors.get(driver) or (QuietPower(), QuietPower())
        floors = FloorEstimator(self._configured, empty, resident)
        gpu_ledger = GpuEnergyLedger(
            gpu, stored.counter, floors, self._policy, driver, seen_unix=stored.last_unix
        )
        if not epoch.differs(stored.counter.epoch):
            # This program restarted, but the counter's epoch continues.
            gpu_ledger.counter, _ = stored.counter.resumed(epoch)
        return gpu_ledger


def _log_rejected(counter: EnergyCounter, gpu: Gpu, *, simulated: bool) -> None:
    """Log the first rejected reading of a Gpu, which awaited the next one as `suspect`."""
    if simulated and not counter.running:
        # A simulator or recording that starts again begins its counters again.
        return
    value = None if counter.suspect is None else counter.suspect[0]
    remedy = "" if simulated else "; if it goes on, update the driver or replace the card"
    log.warning(
        "the energy counter of GPU %s read %s mJ after %s mJ, which cannot be true: it is left out and, as "
        "later ones, only counted (gpuledger_invalid_values_total)%s",
        gpu.uuid,
        value,
        counter.last,
        remedy,
    )


def _log_excess(reading: Reading) -> None:
    """Log the first reading of a Gpu's power that is left out of its energy."""
    log.warning(
        "the power of GPU %s read %s W, more than twice its limit, which cannot be true: it is left out of "
        "the energy and, as later ones, only counted (gpuledger_invalid_values_total); if it goes on, update "
        "the driver or replace the card",
        reading.device.uuid,
        reading.get(q.POWER),
    )
