"""Faults of the machine: lost, repartitioned and crowded GPUs, driver reloads, clock changes, suspend."""

from __future__ import annotations

from pathlib import Path

import pytest

from fault_rig import MILLIWATTS, FaultRig, create_mig_gpu
from gpuledger.model.quantities import ENERGY
from ledger_helpers import rows
from nvml.library import NvmlAccount, NvmlInstance, NvmlProcess
from nvml.machine import pids

LOST = 15


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FaultRig:
    return FaultRig(tmp_path, monkeypatch)


def assert_all_booked(rig: FaultRig) -> None:
    """The file holds exactly what each counter counted since its first change."""
    assert rig.end() == 3 * (rig.counter - rig.opening)
    assert set(rig.booked().values()) == {rig.counter - rig.opening}


@pytest.mark.parametrize("gone", [1, 30, 300])
def test_a_lost_gpu_comes_back_and_its_sessions_continue(rig: FaultRig, gone: int) -> None:
    rig.gpus[1].errors["*"] = LOST
    for _ in range(gone):
        rig.run_tick()
        rig.assert_nothing_wrong()
        assert not rig.last.health.healthy and "GPU-whole" in rig.last.health.status
        unreported = rig.find_unreported()
        assert unreported[0] == "GPU-whole is down" and all("GPU-whole" in line for line in unreported)
    rig.gpus[1].errors.clear()
    assert rig.settle(2) <= 2
    assert_all_booked(rig)
    assert rig.sessions() == [(10, None), (11, None), (21, None), (22, None)]
    unobserved = rows(rig.store.file, "SELECT sum(unobserved) FROM spans")[0][0]
    assert (unobserved > 0) == (gone > 60)  # type: ignore[operator]  # an integer


def test_a_reloaded_driver_begins_an_epoch(rig: FaultRig) -> None:
    before = rig.counter
    rig.state.errors["*"] = 9
    for _ in range(5):
        node_state = rig.run_tick()
        assert node_state.snapshot is None and "modprobe nvidia" in node_state.health.status
    # After the reload the counters begin at 0 and the kernel threads are different ones.
    rig.state.errors.clear()
    rig.state.reload += 1
    rig.host.loaded = "9000"
    for card in rig.gpus:
        card.numbers["energy"] = 1_000_000 - (before + 6 * MILLIWATTS - 50_000)
    ticks = 0
    while not rig.last.health.healthy:
        ticks += 1
        rig.run_tick()
    assert ticks <= 4
    value = rig.readings["GPU-calm"].get(ENERGY)
    assert value is not None and value < before
    for _ in range(5):
        rig.run_tick()
    now = int(rig.readings["GPU-calm"].get(ENERGY) or 0)
    # The old epoch counts up to its last reading, the new one from 0; the energy in between is unknown.
    assert rig.end() == 3 * (before - rig.opening + now)
    assert rows(rig.store.file, "SELECT count(*) FROM epochs") == [(3,)]
    assert rig.sessions() == [(10, None), (11, None), (21, None), (22, None)]


def other_mig_layout() -> tuple[list[NvmlInstance], list[NvmlProcess]]:
    """The other MIG layout of the GPU: one instance of another size with another process."""
    return [NvmlInstance(0, gi=5, profile="7g.80gb", sms=132)], [NvmlProcess(23, gi=5, ci=0)]


def test_repartitioning_a_gpu_at_any_call_of_a_tick_reports_no_process_on_a_wrong_instance(
    rig: FaultRig,
) -> None:
    counted = 0

    def count(number: int) -> None:
        nonlocal counted
        counted = number

    rig.driver.before, rig.driver.number = count, 0
    rig.run_tick()
    places = {"1_0": {21}, "2_0": {22}, "5_0": {23}, "": set()}
    for number in range(1, counted, 3):
        recut = create_mig_gpu()
        if rig.gpus[2].instances[0].gi == 1:
            recut.instances, recut.processes = other_mig_layout()

        def reshape(call: int, card: object = recut, number: int = number) -> None:
            if call == number:
                rig.gpus[2] = card  # type: ignore[assignment]  # of `create_mig_gpu`
                rig.state.write()

        rig.driver.before, rig.driver.number = reshape, 0
        for _ in range(3):
            seen = rig.run_tick().snapshot
            rig.assert_nothing_wrong("GPU-calm", "GPU-whole")
            assert seen is not None
            for reading in seen.readings[2:]:
                assert set(pids(reading) or ()) <= places[reading.device.instance], number
        assert rig.last.health.healthy, (number, rig.last.health.status)
        assert len(rig.readings) == 3 + len(recut.instances)
        assert [pids(reading) for reading in seen.readings[3:]] == [[one.pid] for one in recut.processes]
    assert_all_booked(rig)


@pytest.mark.parametrize("seconds", [20.0, 60.0])
def test_a_call_that_hangs_at_any_point_of_a_tick_neither_loses_nor_misattributes_energy(
    rig: FaultRig, seconds: float
) -> None:
    """The tick's timestamp may be older than the hang and its counters newer."""
    for number in range(1, 200, 12):

        def hang(call: int, number: int = number) -> None:
            if call == number:
                rig.clock.advance(seconds)
                assert rig.state.time is not None
                rig.state.time += seconds
                rig.state.write()

        rig.driver.before, rig.driver.number = hang, 0
        rig.run_tick()
        rig.driver.before = None
        for _ in range(4):
            rig.run_tick()
            rig.assert_nothing_wrong()
        assert rig.is_complete
    assert_all_booked(rig)
    assert rig.sessions() == [(10, None), (11, None), (21, None), (22, None)]
    assert rows(rig.store.file, "SELECT count(*) FROM epochs") == [(0,)]


@pytest.mark.parametrize("step", [3600.0, -3600.0, 30 * 86_400.0, -30 * 86_400.0])
def test_setting_the_clock_ends_no_session_and_moves_no_energy(rig: FaultRig, step: float) -> None:
    watts = [row.watts for row in rig.last.ledger.sessions]
    rig.clock.now_unix += step
    for _ in range(10):
        rig.run_tick()
        rig.assert_nothing_wrong()
        assert rig.is_complete
    assert [row.watts for row in rig.last.ledger.sessions] == pytest.approx(watts)
    rig.gpus[1].processes = []
    rig.gpus[1].accounts[0] = NvmlAccount(11, 992_000_000, time=22_500)
    for _ in range(3):
        rig.run_tick()
    assert_all_booked(rig)
    assert [(pid, ended is None) for pid, ended in rig.sessions()] == [
        (10, True), (11, False), (21, True), (22, True)
    ]  # fmt: skip
    assert rows(rig.store.file, "SELECT sum(unobserved) FROM spans") == [(0,)]
    assert rows(rig.store.file, "SELECT count(*) FROM usage WHERE latest < begun") == [(0,)]


@pytest.mark.parametrize("counts", [True, False], ids=["counter-goes-on", "counter-stands"])
def test_energy_of_an_eight_hour_suspend_is_unobserved(rig: FaultRig, counts: bool) -> None:
    seconds = 8 * 3600.0
    rig.clock.advance(seconds)
    assert rig.state.time is not None
    slept = MILLIWATTS * seconds if counts else 0
    rig.state.time += seconds if counts else 0.0
    rig.settle(2)
    rig.assert_nothing_wrong()
    for _ in range(10):
        rig.run_tick()
    assert all(row.resident < 60 for row in rig.last.ledger.owners)
    assert_all_booked(rig)
    assert rig.sessions() == [(10, None), (11, None), (21, None), (22, None)]
    unobserved = int(rows(rig.store.file, "SELECT sum(unobserved) FROM spans")[0][0])  # type: ignore[call-overload]
    assert 3 * slept <= unobserved <= 3 * (slept + 3 * MILLIWATTS)


def test_ten_thousand_processes_on_one_gpu_are_all_booked(rig: FaultRig) -> None:
    crowd = [NvmlProcess(100_000 + number, memory=1 << 20, sm=1) for number in range(10_000)]
    rig.gpus[1].processes = crowd
    # They begin in the first tick, and are booked from then on.
    for _ in range(2):
        node_state = rig.run_tick()
        assert node_state.health.healthy, node_state.health.status
        rig.assert_nothing_wrong("GPU-calm", "GPU-mig")
    assert pids(rig.readings["GPU-whole"]) == [one.pid for one in crowd]
    assert node_state.ledger.compute_sessions["GPU-whole"] == 10_000
    assert len(node_state.ledger.omitted["GPU-whole"]) == 10_000 - 256
    rig.gpus[1].processes = [NvmlProcess(11, sm=20)]
    assert rig.settle(2) <= 2
    assert_all_booked(rig)
    # A process that returns is another session with the same identity.
    assert len(rig.sessions()) == 10_000 + 5


def test_each_reuse_of_a_pid_is_a_separate_session(rig: FaultRig) -> None:
    crowd = [NvmlProcess(1000 + number, sm=1) for number in range(100)]
    rig.gpus[1].processes = crowd
    for generation in range(30):
        rig.host.born = {one.pid: 10_000 * generation + one.pid for one in crowd}
        node_state = rig.run_tick()
        assert node_state.health.healthy and node_state.ledger.compute_sessions["GPU-whole"] == 100
    rig.gpus[1].processes = []
    rig.run_tick()
    assert_all_booked(rig)
    mine = [ended for pid, ended in rig.sessions() if 1000 <= int(pid) < 1100]  # type: ignore[call-overload]
    assert len(mine) == 3000 and None not in mine
    assert len(rig.source._names._names) <= 3


@pytest.mark.parametrize("where", ["driver", "posting", "storing"])
def test_running_out_of_memory_in_a_tick_loses_only_that_tick(
    rig: FaultRig, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def no_memory(*_: object) -> None:
        raise MemoryError

    for number in range(1, 200, 9):

        def fail(call: int, number: int = number) -> None:
            if call == number:
                raise MemoryError

        with monkeypatch.context() as patch:
            if where == "driver":
                rig.driver.before, rig.driver.number = fail, 0
            elif where == "posting":
                patch.setattr(rig.ledger.energy, "post", no_memory)
            else:
                patch.setattr(rig.store, "_write", no_memory)
            node_state = rig.run_tick()
        reached, rig.driver.before = rig.driver.number >= number or where != "driver", None
        if not reached:
            break
        assert not node_state.health.healthy and node_state.health.status.startswith("out of memory")
        rig.settle(2)
        rig.assert_nothing_wrong()
    assert_all_booked(rig)
    assert rig.sessions() == [(10, None), (11, None), (21, None), (22, None)]
