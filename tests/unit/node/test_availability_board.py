"""The board of a node: what can be taken, taken by one user only, over ticks, restarts and clock steps."""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import pytest

from builders import GIB, MIB, FakeClock, gpu, node_state, process, reading, snapshot
from gpuledger.ledger.device_choice import DeviceWish, NotEnoughDevices
from gpuledger.ledger.device_conditions import device_key
from gpuledger.ledger.reservations import CommandProcess, Reservation
from gpuledger.model import quantities as q
from gpuledger.model.availability import FREE, IN_USE, RESERVED, UNKNOWN
from gpuledger.model.devices import Gpu
from gpuledger.model.process import GpuProcess
from gpuledger.model.snapshot import Snapshot
from gpuledger.node.availability_board import AvailabilityBoard

GPUS = [gpu(index, name="NVIDIA L4") for index in range(3)]
ANN, BOB = 1000, 1001
NAMES = {ANN: "ann", BOB: "bob"}
EMPTY = {
    q.UTILIZATION: 0.0,
    q.MEMORY_TOTAL: 24.0 * GIB,
    q.MEMORY_USED: 1.0 * MIB,
    q.MEMORY_RESERVED: 1.0 * MIB,
}
NOW = DeviceWish(window=0.0)


def of_user(device: Gpu, uid: int | None, user: str = "") -> GpuProcess:
    one = process(device, 77)
    return replace(one, host=replace(one.host, uid=uid, user=user))


@dataclass
class Storage:
    """Keeps reservations in memory."""

    rows: list[Reservation] = field(default_factory=list)

    def load(self, elapsed: float, unix: float) -> list[Reservation]:
        return list(self.rows)

    def save(self, reservations: Collection[Reservation], elapsed: float, unix: float) -> None:
        self.rows = list(reservations)


class Machine:
    """A node with three GPUs, and the clock of its machine."""

    def __init__(self, storage: Storage | None = None) -> None:
        self.clock = FakeClock()
        self.running: set[CommandProcess] = set()
        self.storage = storage
        self.start()

    def start(self) -> None:
        self.board = AvailabilityBoard(
            self.clock, lambda uid: NAMES[uid], lambda one: one in self.running, self.storage
        )

    def tick(self, *processes: GpuProcess, after: float = 1.0) -> dict[str, tuple[str, str]]:
        """State and holder of each GPU after a reading."""
        self.clock.advance(after)
        readings = [
            reading(one, *[each for each in processes if each.device == one], values=EMPTY) for one in GPUS
        ]
        state = self.board.update(node_state(self.snapshot(*readings)))
        return {
            one.uuid: (found.state, found.reserved_by)
            for one in GPUS
            if (found := state.availability[device_key(one)])
        }

    def snapshot(self, *readings: object) -> Snapshot:
        seen = snapshot(*readings)  # type: ignore[arg-type]
        return replace(seen, unix=self.clock.unix(), elapsed=self.clock.elapsed())

    def take(self, uid: int = ANN, wish: DeviceWish = NOW, seconds: float = 300.0) -> list[str]:
        return [one.device.uuid for one in self.board.take(wish, uid, seconds)]


@pytest.fixture
def machine() -> Machine:
    made = Machine()
    made.tick()
    return made


def test_what_one_user_takes_no_other_gets(machine: Machine) -> None:
    assert machine.take(ANN, replace(NOW, count=2)) == ["GPU-0", "GPU-1"]
    assert machine.take(BOB) == ["GPU-2"]
    with pytest.raises(NotEnoughDevices, match="none of 1 GPU can be taken: 3 reserved"):
        machine.take(BOB)


def test_a_wish_for_too_many_reserves_nothing(machine: Machine) -> None:
    with pytest.raises(NotEnoughDevices):
        machine.take(ANN, replace(NOW, count=4))
    assert machine.take(BOB, replace(NOW, count=3)) == ["GPU-0", "GPU-1", "GPU-2"]


def test_own_reservations_count_too(machine: Machine) -> None:
    """Two scripts of one user get two GPUs."""
    assert machine.take() != machine.take()


def test_threads_never_get_the_same_gpu(machine: Machine) -> None:
    with ThreadPoolExecutor(20) as threads:
        requests = [threads.submit(machine.take, 1000 + number % 2) for number in range(20)]
    taken = [one.result()[0] for one in requests if one.exception() is None]
    assert sorted(taken) == ["GPU-0", "GPU-1", "GPU-2"]
    refused = [one.exception() for one in requests if one.exception() is not None]
    assert {type(one) for one in refused} == {NotEnoughDevices}


def test_a_reservation_is_shown_with_its_user(machine: Machine) -> None:
    machine.take(BOB)
    assert machine.tick()["GPU-0"] == (RESERVED, "bob")


def test_a_reservation_ends_at_a_reading_after_its_time(machine: Machine) -> None:
    machine.take(seconds=60.0)
    machine.clock.advance(61)
    # Its user may have started a process since the last reading.
    with pytest.raises(NotEnoughDevices):
        machine.take(BOB, replace(NOW, count=3))
    machine.tick()
    assert machine.take(BOB, replace(NOW, count=3)) == ["GPU-0", "GPU-1", "GPU-2"]


def test_a_reservation_ends_when_its_user_has_a_process_there(machine: Machine) -> None:
    machine.take(ANN)
    mine = of_user(GPUS[0], ANN)
    assert machine.tick(mine)["GPU-0"] == (IN_USE, "")
    assert machine.tick()["GPU-0"][1] == ""


def test_a_user_known_by_name_only_counts(machine: Machine) -> None:
    machine.take(ANN)
    machine.tick()
    assert machine.tick(of_user(GPUS[0], None, "ann"))["GPU-0"] == (IN_USE, "")


def test_a_process_of_another_user_leaves_the_reservation(machine: Machine) -> None:
    machine.take(ANN)
    machine.tick()
    assert machine.tick(of_user(GPUS[0], BOB))["GPU-0"] == (IN_USE, "ann")


def test_the_display_server_of_its_user_does_not_end_it(machine: Machine) -> None:
    xorg = replace(process(GPUS[0], 5, types="G", memory=4 * MIB, sm=0.0), name="Xorg")
    xorg = replace(xorg, host=replace(xorg.host, uid=ANN))
    machine.tick(xorg)
    machine.take(ANN)
    machine.tick(xorg)
    assert machine.tick(xorg)["GPU-0"] == (RESERVED, "ann")


def test_a_command_holds_its_gpu_until_it_ends(machine: Machine) -> None:
    command = CommandProcess(42, 7)
    machine.running.add(command)
    machine.board.take(NOW, ANN, 0.0, command)
    machine.tick(of_user(GPUS[0], ANN))
    assert machine.tick(after=50)["GPU-0"] == (RESERVED, "ann")
    machine.running.clear()
    assert machine.tick()["GPU-0"][1] == ""


def test_a_restart_keeps_reservations() -> None:
    machine = Machine(Storage())
    machine.tick()
    machine.take(ANN)
    machine.start()
    machine.tick()
    assert machine.take(BOB) == ["GPU-1"]
    assert machine.tick()["GPU-0"] == (RESERVED, "ann")


def test_a_step_of_the_wall_clock_ends_nothing(machine: Machine) -> None:
    machine.take(seconds=300.0)
    machine.clock.now_unix += 86_400
    assert machine.tick()["GPU-0"] == (RESERVED, "ann")
    machine.clock.now_unix -= 2 * 86_400
    assert machine.tick()["GPU-0"] == (RESERVED, "ann")


def test_users_end_their_own_reservations(machine: Machine) -> None:
    machine.take(ANN)
    machine.take(BOB)
    assert [one.device for one in machine.board.release(ANN)] == ["GPU-0"]
    assert machine.tick()["GPU-1"] == (RESERVED, "bob")


def test_without_a_reading_nothing_can_be_taken(machine: Machine) -> None:
    assert machine.board.update(node_state(None)).availability == {}
    with pytest.raises(NotEnoughDevices, match="there is no GPU"):
        machine.take()


def test_after_a_pause_the_gpus_are_watched_again(machine: Machine) -> None:
    machine.tick(after=60)
    assert machine.tick()["GPU-0"][0] == FREE
    machine.board.update(node_state(None))
    assert machine.tick()["GPU-0"][0] == UNKNOWN
