"""Logs changes of the devices: the number of GPUs, labels of MIG instances, and omitted processes."""

from __future__ import annotations

import logging

from gpuledger.model.devices import Gpu, Instance
from gpuledger.model.session import LedgerState
from gpuledger.model.snapshot import Snapshot

log = logging.getLogger("gpuledger.census")


class GpuCountLog:
    """Counts the Gpus of each Snapshot and logs a warning when the number differs from `expected`.

    Logs once per change. 0 turns the check off. Instances do not count as Gpus.
    """

    def __init__(self, expected: int) -> None:
        self._expected = expected
        self._last = expected

    def update(self, snapshot: Snapshot | None) -> None:
        """Compare the number of Gpus; ignores a missing Snapshot and an incomplete list of Devices."""
        if not self._expected or snapshot is None or snapshot.devices_failed:
            return
        found = [reading.device.index for reading in snapshot.readings if isinstance(reading.device, Gpu)]
        if len(found) == self._last:
            return
        self._last = len(found)
        if self._last == self._expected:
            log.info("all %d GPUs expected by --gpu-count are read again", self._expected)
            return
        log.warning(
            "%d GPUs are read (%s), but --gpu-count expects %d: "
            "run `gpuledger doctor` to see what is missing",
            len(found),
            ", ".join(map(str, found)) or "none",
            self._expected,
        )


class OmittedProcessLog:
    """Logs once for each device that processes beyond `process.max_per_device` have no series."""

    def __init__(self) -> None:
        self._logged: set[str] = set()

    def update(self, ledger: LedgerState) -> None:
        """Log the devices that have such processes for the first time."""
        for uuid, processes in ledger.omitted.items():
            if processes and uuid not in self._logged:
                self._logged.add(uuid)
                log.warning(
                    "%s: %d processes beyond process.max_per_device have no series; their energy and time "
                    "are in the ledger; raise it to export them",
                    *(uuid, len(processes)),
                )


instance_log = logging.getLogger("gpuledger.node.instances")


class InstanceLog:
    """Logs, at debug, one line per Instance at the start and whenever the Instances change."""

    def __init__(self) -> None:
        self._seen: list[tuple[Instance, int]] = []
        self._logged: dict[Instance, str] = {}

    def update(self, snapshot: Snapshot | None) -> None:
        """Log what changed; ignores a missing Snapshot and an incomplete list of Devices."""
        if snapshot is None or snapshot.devices_failed:
            return
        found = [reading.device for reading in snapshot.readings if isinstance(reading.device, Instance)]
        # The driver may number equal Instances differently, which changes the label.
        seen = [(instance, instance.index) for instance in found]
        if seen == self._seen:
            return
        self._seen = seen
        lines = {instance: _line(instance) for instance in found}
        for instance, line in lines.items():
            if self._logged.get(instance) != line:
                instance_log.debug("MIG instance %s", line)
        for gone in self._logged.keys() - lines.keys():
            instance_log.debug("MIG instance is gone: %s", self._logged[gone])
        self._logged = lines


def _line(instance: Instance) -> str:
    index = instance.parent.index
    return (
        f"{instance.uuid}: GPU {index}, gi {instance.gi}, ci {instance.ci}, "
        f"profile {instance.profile or 'unknown'}; "
        f'label gpu="{index}_{instance.instance}", or "{index}_{instance.index}_0" with mig_label: device'
    )
