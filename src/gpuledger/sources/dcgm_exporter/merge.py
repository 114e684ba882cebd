"""A Snapshot with the profiling metrics that NVML did not tell, from a dcgm-exporter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from gpuledger.model.devices import Gpu, Instance
from gpuledger.model.page import MapHealth, Page
from gpuledger.model.quantities import DRAM_ACTIVITY, Level, Quantity
from gpuledger.model.snapshot import Reading, Snapshot
from gpuledger.sources.dcgm_exporter.page import Told

# Asked every period, and late by one when it is busy: what is older says nothing of now.
_STALE_PERIODS = 3


def with_profiling(page: Page, told: Told, health: MapHealth, period: float) -> Page:
    """The Page with what a dcgm-exporter told, if its last answer is at most three `period`s (seconds) old.

    `health` is of the asking. For what is served; the books are posted without.
    """
    answered = health.last_success
    if page.snapshot is None or answered is None:
        return page
    # A clock that was set back makes no old answer a new one.
    if not -period <= page.unix - answered <= _STALE_PERIODS * period:
        return page
    return replace(page, snapshot=merged(page.snapshot, told))


def merged(snapshot: Snapshot, told: Told) -> Snapshot:
    """The Snapshot with what is `told` where a Device that is up does not tell it itself.

    Not for the books: the values are means over the exporter's own interval, which is longer and not known.
    """
    if not told:
        return snapshot
    instances = [item.device for item in snapshot.readings if isinstance(item.device, Instance)]
    per_gi = Counter((item.parent, item.gi) for item in instances)
    cut = {item.parent for item in instances}
    readings = tuple([_with(item, _of(item, told, per_gi, cut)) for item in snapshot.readings])
    return replace(snapshot, readings=readings)


def _with(reading: Reading, more: Mapping[Quantity, float]) -> Reading:
    missing = {quantity: value for quantity, value in more.items() if quantity not in reading.values}
    if not missing or not reading.up:
        return reading
    supported = {**reading.supported, **{quantity.key: True for quantity in missing}}
    return replace(reading, values={**missing, **reading.values}, supported=supported)


def _of(
    reading: Reading, told: Told, per_gi: Mapping[tuple[Gpu, int], int], cut: set[Gpu]
) -> Mapping[Quantity, float]:
    device = reading.device
    if isinstance(device, Instance):
        alone = per_gi[device.parent, device.gi] == 1
        found = told.get((device.parent.uuid, device.gi), {})
        # dcgm-exporter knows no compute instances: what all of a GPU instance did is none's in particular.
        return {
            quantity: value
            for quantity, value in found.items()
            if quantity.level is Level.INSTANCE and (alone or quantity is DRAM_ACTIVITY)
        }
    if device not in cut:
        return told.get((device.uuid, None), {})
    # It tells what is the whole GPU's again with each of its instances.
    return {
        quantity: value
        for (uuid, _), values in told.items()
        if uuid == device.uuid
        for quantity, value in values.items()
        if quantity.level is Level.GPU
    }
