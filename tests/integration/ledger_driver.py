"""A program that posts to a ledger as fast as it can until it is killed.

Arguments: folder of the ledger, output file.

Time and the energy counters follow the boot clock at a hundred times its speed, so they continue after a
restart. Processes come and go by time. After each posting, the program appends the exported counters to the
output file: a scraper cannot have seen others.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent.parent), str(Path(__file__).parent.parent.parent / "src")]

from builders import gpu, process, reading  # noqa: E402
from gpuledger.host.clock import SystemClock  # noqa: E402
from gpuledger.ledger.ledger import Ledger  # noqa: E402
from gpuledger.ledger.store.retention import RetentionLimits  # noqa: E402
from gpuledger.ledger.store.store import Store  # noqa: E402
from gpuledger.model import quantities as q  # noqa: E402
from gpuledger.model.process import GpuProcess, UtilizationSample  # noqa: E402
from gpuledger.model.snapshot import Snapshot, SourceInfo  # noqa: E402
from gpuledger.model.workload import Workload  # noqa: E402
from ledger_helpers import SETTINGS, exported_values  # noqa: E402  (after the path is set)

SPEED = 100
CARDS = [gpu(0, sm_count=132), gpu(1, sm_count=132)]
MILLIWATTS = 400_000


def processes_at(at: float) -> list[GpuProcess]:
    """Return three processes on each card; one is replaced every 7 s, and its pod is known 3 s later."""
    found = []
    for card in CARDS:
        for seat in range(3):
            life = int(at + seat * 7) // 21
            age = at + seat * 7 - life * 21
            pod = Workload("pod", "ml", f"pod-{seat}" if age > 3 else "", pod_uid=f"uid-{seat}")
            missing = "" if age > 3 else "pod_name"
            pid = 1000 * (card.index + 1) + 10 * (life % 90) + seat
            found.append(process(card, pid, ticks=life, workload=pod, missing=missing))
    return found


def main() -> None:
    clock = SystemClock()
    folder, file = sys.argv[1:]
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    store = Store(Path(folder), "gpuledger", boot, clock, RetentionLimits())
    ledger = Ledger(SETTINGS, store)
    scraped = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    while True:
        at = time.clock_gettime(time.CLOCK_BOOTTIME) * SPEED
        alive = processes_at(at)
        values = {q.ENERGY: int(at * MILLIWATTS), q.UTILIZATION: 0.5}
        readings = []
        for card in CARDS:
            mine = [one for one in alive if one.device == card]
            samples = [UtilizationSample(one.pid, round(at * 1e6), 0.3, 0, 0, 0) for one in mine]
            readings.append(reading(card, *mine, values=values, samples=tuple(samples)))
        snapshot = Snapshot(1.7e9 + at, at, SourceInfo("test"), tuple(readings), boot_id=boot)
        state = ledger.post(snapshot)
        assert all(part.success for part in state.parts)
        exported = {"/".join(name): joules for name, joules in exported_values(state).items()}
        os.write(scraped, (json.dumps(exported) + "\n").encode())


if __name__ == "__main__":
    main()
