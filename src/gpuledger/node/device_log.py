"""Which MIG instance stands behind which label, in the log."""

from __future__ import annotations

import logging

from gpuledger.model.devices import Gpu, Instance
from gpuledger.model.snapshot import Snapshot

log = logging.getLogger("gpuledger.census")


class Census:
    """Counts the Gpus of each Snapshot, and says in the log when they are not as many as `expected`.

    Once per change; with 0 nothing is expected, and nothing said. Instances are no Gpus of their own.
    """

    def __init__(self, expected: int) -> None:
        self._expected = expected
        self._last = expected

    def take(self, snapshot: Snapshot | None) -> None:
        """Without a Snapshot, or where Devices could not be listed whole, the number is not known."""
        if not self._expected or snapshot is None or snapshot.devices_failed:
            return
        found = [reading.device.index for reading in snapshot.readings if isinstance(reading.device, Gpu)]
        if len(found) == self._last:
            return
        self._last = len(found)
        if self._last == self._expected:
            log.info("the %d GPUs of --gpu-count are read again", self._expected)
            return
        log.warning(
            "%d GPUs are read (%s), and --gpu-count says %d: `gpuledger doctor` says what is missing",
            len(found),
            ", ".join(map(str, found)) or "none",
            self._expected,
        )


instance_log = logging.getLogger("gpuledger.node.instances")


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
                instance_log.info("MIG instance %s", line)
        for gone in self._told.keys() - lines.keys():
            instance_log.info("MIG instance is gone: %s", self._told[gone])
        self._told = lines


def _line(one: Instance) -> str:
    index = one.parent.index
    return (
        f"{one.uuid}: GPU {index}, gi {one.gi}, ci {one.ci}, profile {one.profile or 'not told'}; "
        f'label gpu="{index}_{one.instance}", or "{index}_{one.index}_0" with mig_label: device'
    )
