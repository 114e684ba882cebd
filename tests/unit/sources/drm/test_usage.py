"""Engine time of DRM clients: counted once, by one process, from one reading to the next."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from drm_machine import DrmMachine, amd_client, xe_client
from gpuledger.host.files import read_whole
from gpuledger.sources.drm.client_files import ClientFiles
from gpuledger.sources.drm.usage import ClientUses, UsageTracker

AMD, XE = "0000:03:00.0", "0000:04:00.0"
SECOND = 10**9


class Reader:
    """A tracker of a machine with a clock."""

    def __init__(self, folder: Path) -> None:
        self.machine = DrmMachine(folder)
        self.tracker = UsageTracker(ClientFiles(self.machine.procfs))
        self.now = 100.0
        self.asleep: set[str] = set()

    def read(self, seconds: float = 1.0) -> ClientUses:
        self.now += seconds
        return self.tracker.read(self.now, lambda node: node in self.asleep, {AMD, XE})

    def shares(self, seconds: float = 1.0) -> dict[int, dict[str, float]]:
        uses = self.read(seconds).by_place
        return {pid: use.shares for by_pid in uses.values() for pid, use in by_pid.items()}


@pytest.fixture
def reader(tmp_path: Path) -> Reader:
    return Reader(tmp_path)


def test_a_share_is_engine_time_by_wall_time(reader: Reader) -> None:
    reader.machine.add_process(7, {3: ("renderD128", amd_client(AMD, 1, gfx=50 * SECOND))})
    # What the client used before the first reading is not counted.
    assert reader.shares() == {7: {}}
    reader.machine.add_process(7, {3: ("renderD128", amd_client(AMD, 1, gfx=51 * SECOND, compute=SECOND))})
    assert reader.shares(2.0) == {7: {"gfx": 0.5, "compute": 0.5}}


def test_shares_can_pass_one_because_queueing_counts(reader: Reader) -> None:
    reader.machine.add_process(7, {3: ("renderD128", amd_client(AMD, 1, gfx=1))})
    reader.read()
    reader.machine.add_process(7, {3: ("renderD128", amd_client(AMD, 1, gfx=3 * SECOND + 1))})
    assert reader.shares() == {7: {"gfx": 3.0}}


def test_a_client_that_began_after_the_last_reading_counts_from_its_beginning(reader: Reader) -> None:
    reader.read()
    reader.machine.add_process(7, {3: ("renderD128", amd_client(AMD, 1, gfx=SECOND // 4))})
    assert reader.shares() == {7: {"gfx": 0.25}}


def test_a_new_client_counts_at_most_the_time_since(reader: Reader) -> None:
    reader.read()
    reader.machine.add_process(7, {3: ("renderD128", amd_client(AMD, 1, gfx=90 * SECOND))})
    assert reader.shares() == {7: {"gfx": 1.0}}


def test_a_client_held_by_two_processes_counts_once_for_the_lower_pid(reader: Reader) -> None:
    for gfx in (SECOND, 2 * SECOND):
        for pid in (30, 9):
            reader.machine.add_process(pid, {3: ("renderD128", amd_client(AMD, 1, gfx=gfx, vram=4096))})
        found = reader.read().by_place[AMD, "renderD128"]
    assert {pid: (use.shares, use.memory) for pid, use in found.items()} == {9: ({"gfx": 1.0}, 4096)}


def test_a_client_stays_with_its_owner_until_that_closes_it(reader: Reader) -> None:
    client = amd_client(AMD, 1, gfx=SECOND)
    reader.machine.add_process(30, {3: ("renderD128", client)})
    reader.read()
    reader.machine.add_process(9, {3: ("renderD128", client)})
    assert set(reader.shares()) == {30}
    reader.machine.end_process(30)
    assert set(reader.shares()) == {9}


def test_two_descriptors_of_one_client_count_once(reader: Reader) -> None:
    for gfx in (SECOND, 2 * SECOND):
        text = amd_client(AMD, 1, gfx=gfx, vram=4096)
        reader.machine.add_process(9, {3: ("renderD128", text), 4: ("renderD128", text)})
        found = reader.read().by_place[AMD, "renderD128"][9]
    assert (found.shares, found.memory) == ({"gfx": 1.0}, 4096)


def test_two_clients_of_one_process_are_added(reader: Reader) -> None:
    for gfx in (0, SECOND // 2):
        reader.machine.add_process(
            9,
            {
                3: ("renderD128", amd_client(AMD, 1, gfx=gfx, vram=4096)),
                4: ("card0", amd_client(AMD, 2, gfx=gfx // 2, vram=1024)),
            },
        )
        found = reader.read().by_place
    assert found[AMD, "renderD128"][9].shares == {"gfx": 0.5}
    assert found[AMD, "card0"][9].shares == {"gfx": 0.25}


def test_equal_client_ids_of_two_gpus_are_two_clients(reader: Reader) -> None:
    reader.machine.add_process(
        9,
        {
            3: ("renderD128", amd_client(AMD, 1, gfx=1)),
            4: ("renderD129", xe_client(XE, 1, total=100, rcs=1)),
        },
    )
    assert set(reader.read().by_place) == {(AMD, "renderD128"), (XE, "renderD129")}


def test_a_counter_that_falls_for_a_moment_gains_nothing_twice(reader: Reader) -> None:
    shares = []
    for gfx in (4, 5, 4, 5, 6):
        reader.machine.add_process(9, {3: ("renderD128", amd_client(AMD, 1, gfx=gfx * SECOND))})
        shares.append(reader.shares()[9].get("gfx"))
    assert shares == [None, 1.0, 0.0, 0.0, 1.0]


def test_cycles_are_divided_by_the_cycles_of_the_gpu_and_the_engines_of_the_class(reader: Reader) -> None:
    capacity = "drm-engine-capacity-ccs:\t4\n"
    for cycles, total in ((100, 1000), (500, 2000)):
        text = xe_client(XE, 1, total=total, rcs=cycles, ccs=cycles) + capacity
        reader.machine.add_process(9, {3: ("renderD129", text)})
        found = reader.shares(7.0)
    assert found == {9: {"rcs": 0.4, "ccs": 0.1}}


@pytest.mark.parametrize(("cycles", "total"), [(600, 900), (600, 1000), (50, 2000)])
def test_cycles_that_restarted_are_no_sample(reader: Reader, cycles: int, total: int) -> None:
    for now, whole in ((100, 1000), (cycles, total)):
        reader.machine.add_process(9, {3: ("renderD129", xe_client(XE, 1, total=whole, rcs=now))})
        found = reader.shares()
    assert found == {9: {}}


def test_clients_of_a_sleeping_gpu_are_not_read_and_used_nothing(reader: Reader) -> None:
    reader.machine.add_process(9, {3: ("renderD128", amd_client(AMD, 1, gfx=SECOND, vram=4096))})
    reader.read()
    reader.asleep.add("renderD128")
    # Would be noticed if it were read.
    reader.machine.add_process(9, {3: ("renderD128", amd_client(AMD, 1, gfx=9 * SECOND, vram=4096))})
    found = reader.read().by_place[AMD, "renderD128"][9]
    assert (found.shares, found.memory) == ({"gfx": 0.0}, 4096)


def test_a_file_can_have_another_name_in_its_container(reader: Reader) -> None:
    reader.machine.add_process(9, {3: ("renderD128", xe_client(XE, 1, total=100, rcs=1))})
    assert set(reader.read().by_place) == {(XE, "renderD128")}


def test_files_of_other_devices_are_ignored(reader: Reader) -> None:
    reader.machine.add_process(9, {3: ("renderD200", amd_client("0000:99:00.0", 1, gfx=1))})
    reader.machine.add_process(10)
    (reader.machine.proc / "10/fd/1").symlink_to("/dev/null")
    assert reader.read().by_place == {}


def test_an_old_process_that_opens_a_gpu_is_found_within_ten_seconds(reader: Reader) -> None:
    for pid in range(50, 60):
        reader.machine.add_process(pid)
    reader.read()
    for pid in range(50, 60):
        reader.machine.add_process(pid, {3: ("renderD128", amd_client(AMD, pid, gfx=SECOND))})
    found = [set(reader.shares()) for _ in range(10)]
    assert found[-1] == set(range(50, 60))
    # They are looked at in turn, not all at once.
    assert len(found[0]) < 10


def test_a_young_process_is_found_at_once(reader: Reader) -> None:
    reader.machine.add_process(49)
    reader.read()
    reader.machine.add_process(50)
    reader.read()
    reader.machine.add_process(50, {3: ("renderD128", amd_client(AMD, 1, gfx=SECOND))})
    assert set(reader.shares()) == {50}


def test_processes_that_may_not_be_looked_at_are_counted_but_not_kernel_threads(tmp_path: Path) -> None:
    machine = DrmMachine(tmp_path)
    for pid in (2, 8, 9):
        machine.add_process(pid, {3: ("renderD128", amd_client(AMD, pid))})
    (machine.proc / "2/cmdline").write_text("")

    def list_folder(path: str) -> list[str]:
        if path.endswith(("/2/fd", "/8/fd")):
            raise PermissionError(13, "Permission denied")
        return os.listdir(path)  # noqa: PTH208

    tracker = UsageTracker(ClientFiles(machine.procfs, read_whole, os.readlink, list_folder))
    found = tracker.read(1.0, lambda _: False, {AMD, XE})
    assert (found.hidden, found.processes) == (1, 3)
    assert set(found.by_place[AMD, "renderD128"]) == {9}


@pytest.mark.parametrize(
    ("engines", "computes", "draws"),
    [
        ({"gfx": 1}, False, True),
        ({"compute": 1}, True, False),
        ({"gfx": 1, "compute": 1}, True, True),
        ({"dec": 1, "enc": 1}, True, False),
        ({"gfx": 1, "dec": 1}, False, True),
        ({}, False, False),
    ],
)
def test_what_a_process_ever_used_makes_its_type(
    reader: Reader, engines: dict[str, int], computes: bool, draws: bool
) -> None:
    reader.machine.add_process(9, {3: ("renderD128", amd_client(AMD, 1, **engines))})
    found = reader.read().by_place[AMD, "renderD128"][9]
    assert (found.computes, found.draws) == (computes, draws)


def test_codecs_of_amdgpu_have_their_own_shares(reader: Reader) -> None:
    for seconds in (0, 1):
        amount = seconds * SECOND
        engines = {"enc": amount // 4, "enc_1": amount // 4, "dec": amount // 2, "jpeg": amount // 8}
        client = amd_client(AMD, 1, dma=amount // 16 + 1, **engines)
        reader.machine.add_process(9, {3: ("renderD128", client)})
        found = reader.read().by_place[AMD, "renderD128"][9]
    assert (found.encoder, found.decoder, found.jpeg, found.main) == (0.5, 0.5, 0.125, 0.0)
    assert found.other == pytest.approx(0.0625)


def test_a_new_client_of_xe_counts_from_its_beginning_if_the_cycles_of_the_gpu_are_known(
    reader: Reader,
) -> None:
    for total in (1000, 2000):
        reader.machine.add_process(9, {3: ("renderD129", xe_client(XE, 1, total=total, rcs=1))})
        if total == 2000:
            reader.machine.add_process(10, {3: ("renderD129", xe_client(XE, 2, total=total, rcs=600))})
        found = reader.read().by_place[XE, "renderD129"]
    assert {pid: (use.shares, use.known) for pid, use in found.items()} == {
        9: ({"rcs": 0.0}, True),
        10: ({"rcs": 0.6}, True),
    }


def test_a_client_without_an_earlier_number_to_compare_is_unknown_not_idle(reader: Reader) -> None:
    reader.read()
    reader.machine.add_process(10, {3: ("renderD129", xe_client(XE, 2, total=9000, rcs=600))})
    assert not reader.read().by_place[XE, "renderD129"][10].known
    reader.machine.add_process(10, {3: ("renderD129", xe_client(XE, 2, total=10_000, rcs=1100))})
    use = reader.read().by_place[XE, "renderD129"][10]
    assert (use.shares, use.known) == ({"rcs": 0.5}, True)
    # The total restarted.
    reader.machine.add_process(10, {3: ("renderD129", xe_client(XE, 2, total=50, rcs=1200))})
    assert not reader.read().by_place[XE, "renderD129"][10].known


def test_a_process_is_known_only_if_each_of_its_clients_is(reader: Reader) -> None:
    reader.machine.add_process(9, {3: ("renderD129", xe_client(XE, 1, total=1000, rcs=1))})
    reader.read()
    both = {
        3: ("renderD129", xe_client(XE, 1, total=2000, rcs=1)),
        4: ("renderD129", xe_client(XE, 2, total=2000, ccs=700)),
    }
    reader.machine.add_process(9, both)
    assert not reader.read().by_place[XE, "renderD129"][9].known


def test_a_client_that_was_open_while_its_gpu_slept_is_not_new(reader: Reader) -> None:
    unread = {"renderD128": ("amdgpu", AMD)}
    reader.asleep.add("renderD128")
    reader.machine.add_process(9, {3: ("renderD128", amd_client(AMD, 1, gfx=90 * SECOND))})
    for asleep in (True, True, False):
        found = reader.tracker.read(reader.now, lambda _, asleep=asleep: asleep, {AMD}, unread)
        reader.now += 1
        assert set(found.by_place[AMD, "renderD128"]) == {9}
        assert not found.ended
    assert found.by_place[AMD, "renderD128"][9].shares == {}
    assert not found.by_place[AMD, "renderD128"][9].known
