"""Which MIG instance stands behind which label, in the log."""

from __future__ import annotations

import logging

from gpuledger.model.devices import Instance
from gpuledger.model.snapshot import Snapshot

log = logging.getLogger("gpuledger.node.instances")


class InstanceLog:
    """Says one line per Instance, at the start and whenever the Instances are others than before."""

    def __init__(self) -> None:
        self._seen: list[tuple[Instance, int]] = []
        self._told: dict[Instance, str] = {}

    def take(self, snapshot: Snapshot | None) -> None:
        """Without a Snapshot, or where Devices could not be listed whole, nothing is known to differ."""
        if snapshot is None or snapshot.devices_failed:
            return
        found = [one.device for one in snapshot.readings if isinstance(one.device, Instance)]
        # Equal Instances may have another place among the driver's devices, and so another label.
        seen = [(one, one.index) for one in found]
        if seen == self._seen:
            return
        self._seen = seen
        lines = {one: _line(one) for one in found}
        for one, line in lines.items():
            if self._told.get(one) != line:
                log.info("MIG instance %s", line)
        for gone in self._told.keys() - lines.keys():
            log.info("MIG instance is gone: %s", self._told[gone])
        self._told = lines


def _line(one: Instance) -> str:
    index = one.parent.index
    return (
        f"{one.uuid}: GPU {index}, gi {one.gi}, ci {one.ci}, profile {one.profile or 'not told'}; "
        f'label gpu="{index}_{one.instance}", or "{index}_{one.index}_0" with mig_label: device'
    )
