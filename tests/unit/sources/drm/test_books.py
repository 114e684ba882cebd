"""Files of the kernel to booked millijoules: what the counters of AMD and Intel gain is in the accounts."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from drm_machine import amd_client, metrics_table, xe_client
from gpuledger.model import quantities as q
from gpuledger.model.snapshot import Snapshot
from unit.ledger.energy.test_truth import Totals, assert_balance
from unit.sources.drm.support import DrmNode

SECOND = 10**9
MI210, DIES, RADEON, ARC = "0000:03:00.0", ("0000:41:00.0", "0000:42:00.0"), "0000:0c:00.0", "0000:90:00.0"


class Lab:
    """An MI210 with two ROCm processes, both dies of an MI250, a Radeon that draws, and an Arc."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.node = DrmNode(folder)
        self.random = Random(seed)
        # Counts of 2^-16 J, except Intel's microjoules.
        self.mi210, self.mi250, self.arc = 900_000_000, 400_000_000, 59_540_970_520
        self.activity = [0, 0]
        self.engine_time, self.cycles, self.total = SECOND, 1000, 10_000
        machine = self.node.machine
        machine.add_node(1, 100, location_id=0x300, gfx_target_version=90010, drm_render_minor=128)
        for pid in (20, 21):
            machine.add_process(pid)

    def step(self) -> Snapshot:
        """One second of work, and a reading."""
        draw, machine = self.random.randint, self.node.machine
        self.mi210 += draw(0, 300 << 16)
        self.mi250 += draw(0, 500 << 16)
        self.arc += draw(0, 190_000_000)
        self.activity = [one + draw(0, 100) for one in self.activity]
        self.engine_time += draw(0, 2 * SECOND)
        self.cycles, self.total = self.cycles + draw(0, 900), self.total + 1000
        table = metrics_table((1, 3), energy_accumulator=self.mi210)
        machine.add_card(
            0, MI210, "1002:740f", render=128, gpu_metrics=table, gpu_busy_percent=draw(0, 100), unique_id="a"
        )
        for number, address in enumerate(DIES):
            table = metrics_table(
                (1, 3), energy_accumulator=0 if number else self.mi250, gfx_activity_acc=self.activity[number]
            )
            machine.add_card(1 + number, address, "1002:740c", gpu_metrics=table, unique_id=f"b{number}")
        hwmon: dict[str, object] = {"power1_average": draw(10, 300) * 1_000_000}
        machine.add_card(3, RADEON, "1002:744c", render=131, hwmon=hwmon, gpu_busy_percent=draw(0, 100))
        machine.add_card(
            4, ARC, "8086:e20b", "xe", render=132, hwmon={"energy1_label": "card", "energy1_input": self.arc}
        )
        for pid in (20, 21):
            machine.use_kfd(pid, 100, vram=1 << 30, occupancy=draw(0, 104))
        machine.add_process(30, {3: ("renderD131", amd_client(RADEON, 1, gfx=self.engine_time))})
        machine.add_process(40, {3: ("renderD132", xe_client(ARC, 1, total=self.total, ccs=self.cycles))})
        return self.node.read()


@pytest.mark.parametrize("seed", range(5))
def test_what_the_counters_gain_is_in_the_accounts_to_the_millijoule(tmp_path: Path, seed: int) -> None:
    lab, totals = Lab(tmp_path, seed), Totals()
    # Two readings find the counters and see their first move.
    for _ in range(2):
        snapshot = lab.step()
        totals.post(snapshot)
    first, counts = {one.device.uuid: one.get(q.ENERGY) for one in snapshot.readings}, lab.mi250
    for _ in range(20):
        snapshot = lab.step()
        totals.post(snapshot)
    assert_balance(totals)
    gained = {}
    for reading in snapshot.readings:
        before, after = first[reading.device.uuid], reading.get(q.ENERGY)
        if before is not None and after is not None:
            gained[reading.device.gpu.minor] = int(after - before)
            assert totals.total(reading.device.uuid) == after - before
    assert set(gained) == {0, 1, 2, 4}
    # Both dies together have what the card's counter gained, and each has a part.
    assert gained[1] + gained[2] == (lab.mi250 * 1000 >> 16) - (counts * 1000 >> 16)
    assert min(gained[1], gained[2]) > 0
    assert totals.total("PCI-0000:0c:00.0-1002:744c") > 0
    methods = {posting.gpu.minor: set() for posting in totals.postings}
    for posting in totals.postings:
        if posting.booked.processes:
            methods[posting.gpu.minor].add(posting.booked.method)
    assert methods[0] <= {"occupancy", "equal"}
    assert methods[3] == methods[4] == {"engine_time"}
