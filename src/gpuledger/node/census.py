"""Whether the machine has as many GPUs as its owner says."""

from __future__ import annotations

import logging

from gpuledger.model.devices import Gpu
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
