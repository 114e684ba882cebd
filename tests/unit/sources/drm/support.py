"""A DrmSource of a machine in a folder."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from drm_machine import DrmMachine
from gpuledger.host.files import read_whole
from gpuledger.host.procfs import ProcFs
from gpuledger.model.devices import Device
from gpuledger.model.process import GpuProcess
from gpuledger.model.quantities import QUANTITIES, Quantity
from gpuledger.model.snapshot import Reading, Snapshot
from gpuledger.sources.drm.cards import CardReader
from gpuledger.sources.drm.client_files import ClientFiles
from gpuledger.sources.drm.pci_names import pci_names
from gpuledger.sources.drm.source import DrmSource
from gpuledger.sources.settings import SourceSettings

ALL = frozenset(QUANTITIES.values())
PCI_IDS = """# A comment
1002  Advanced Micro Devices, Inc. [AMD/ATI]
\t73bf  Navi 21 [Radeon RX 6800/6800 XT / 6900 XT]
\t\t1da2 440e  A board
\t740f  Aldebaran/MI200 [Instinct MI210]
10de  NVIDIA Corporation
\t73bf  Not this one
8086  Intel Corporation
\te20b  Battlemage G21 [Arc B580]
C 03  Display controller
\t73bf  Not this one either
"""


class ManualClock:
    """A clock that the test sets."""

    now = 500.0

    def unix(self) -> float:
        return 1_700_000_000.0 + self.now

    def elapsed(self) -> float:
        return self.now


class DrmNode:
    """A machine, its clock and its source."""

    def __init__(
        self,
        folder: Path,
        *,
        devices: tuple[str, ...] = (),
        read: Callable[[str], bytes] = read_whole,
        machine: str = "",
        **given: Any,
    ) -> None:
        self.machine = DrmMachine(folder)
        self.machine.write("pci.ids", PCI_IDS)
        self.clock = ManualClock()
        self.host = ProcFs(self.machine.procfs, pids="trust", ticks_per_second=100)
        cards = CardReader(
            self.machine.sysfs, read, lambda wanted: pci_names(wanted, [str(folder / "pci.ids")]), machine
        )
        self.source = DrmSource(
            SourceSettings(devices=devices),
            self.host,
            self.clock,
            sysfs=self.machine.sysfs,
            procfs=self.machine.procfs,
            read=read,
            cards=cards,
            **given,
        )

    def read(self, seconds: float = 1.0, wanted: frozenset[Quantity] = ALL) -> Snapshot:
        """Read `seconds` later."""
        self.clock.now += seconds
        return self.source.read(wanted)


def by_device(snapshot: Snapshot) -> dict[Device, Reading]:
    """The Readings by device."""
    return {reading.device: reading for reading in snapshot.readings}


def hide_process(node: DrmNode, pid: int) -> None:
    """Replace the source by one that may not look at the descriptors of this process."""

    def list_folder(path: str) -> list[str]:
        if path.endswith(f"/{pid}/fd"):
            raise PermissionError(13, "Permission denied")
        return os.listdir(path)  # noqa: PTH208

    clients = ClientFiles(node.machine.procfs, read_whole, os.readlink, list_folder)
    node.source = DrmSource(
        SourceSettings(),
        node.host,
        node.clock,
        sysfs=node.machine.sysfs,
        procfs=node.machine.procfs,
        clients=clients,
    )


SECOND = 10**9
MIB = 1 << 20
AMD, XE = "0000:03:00.0", "0000:04:00.0"
MI210 = {"unique_id": "1901ead3a2ecd4a6", "gpu_busy_percent": 0, "mem_info_vram_total": 1000}


def only(found: DrmNode, seconds: float = 1.0) -> Reading:
    (reading,) = found.read(seconds).readings
    return reading


def process_of(reading: Reading, pid: int) -> GpuProcess:
    assert reading.processes is not None
    return next(process for process in reading.processes if process.pid == pid)
