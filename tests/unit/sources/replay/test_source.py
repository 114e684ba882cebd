"""A replayed recording gives the same pages at any speed; no event is lost or repeated."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import gpu, instance, process, reading, snapshot
from gpuledger.host.procfs import RemoteHost
from gpuledger.model.errors import SourceUnavailable, UsageError
from gpuledger.model.process import AccountingRecord, HostFacts, ProcessStart, UtilizationSample
from gpuledger.model.snapshot import Failure, Reading, Snapshot, SourceInfo, XidEvent
from gpuledger.model.workload import Allocation, Workload
from gpuledger.sources.replay.recording import Outage, RecordingEntry
from gpuledger.sources.replay.source import ReplaySource
from gpuledger.sources.settings import SourceSettings
from gpuledger.sources.simulator.scenario_parser import load_scenario, parse_scenario
from gpuledger.sources.smi.settings import SmiSettings
from gpuledger.sources.source_factory import open_source
from gpuledger.workloads.owner_lookup import OwnerLookup
from unit.sources.replay.support import Pages, at, named, without_source, write
from unit.sources.simulator.support import ALL, ManualClock, Node

CARD, OTHER = gpu(0), gpu(1)
FAULTY = """
gpus:
  - processes:
      - {name: /usr/bin/python3, user: ada, load: 0.6, memory: 9GB}
      - {name: a, pod: {namespace: ml, name: "t-{n}", known_after: 2s}, load: 0.3, every: 5s, for: 3s}
  - instances: [{gi: 1, profile: 1g.10gb, sm_count: 16, memory: 10GB}]
    processes: [{name: b, gi: 1, slurm: {job: "77"}, load: 0.2}]
  - {}
faults:
  - {kind: gpu_lost, gpu: 0, at: 4, for: 3}
  - {kind: process_list_fails, gpu: 1, gi: 1, at: 8, for: 2}
  - {kind: xid, gpu: 2, xid: 31, at: 1, every: 3}
  - {kind: bad_value, gpu: 2, quantity: power, at: 5, for: 4}
  - {kind: utilization_fails, gpu: 0, at: 11, for: 2}
"""


class Player:
    """A ReplaySource with its clock; `at(t)` reads t real seconds after the first read."""

    open: ClassVar[list[ReplaySource]] = []

    def __init__(self, path: Path, speed: float = 1.0, devices: tuple[str, ...] = ()) -> None:
        self.clock = ManualClock()
        self.source = ReplaySource(path, SourceSettings(speed=speed, devices=devices), self.clock)
        self.began = self.clock.now
        Player.open.append(self.source)

    def at(self, seconds: float) -> Snapshot:
        self.clock.now = self.began + seconds
        return self.source.read(ALL)


@pytest.fixture(autouse=True)
def closed_at_the_end() -> Iterator[None]:
    yield
    while Player.open:
        Player.open.pop().close()


def sample(number: int) -> UtilizationSample:
    return UtilizationSample(100, number, 0.5, 0.1, 0.0, 0.0)


def tick(number: int, *more: Reading) -> Snapshot:
    """Build a tick with one Xid, one invalid value, one sample and one accounting record."""
    own = {"samples": (sample(number),), "accounting": (AccountingRecord(100 + number, float(number)),)}
    replayed = snapshot(
        reading(CARD, process(CARD, pid=100 + number), **own),
        *more,
        xids=(XidEvent(CARD, number, float(number)),),
        invalid=1,
    )
    return at(replayed, 50.0 + number)


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    return write(tmp_path / "r.jsonl", [tick(number) for number in range(6)])


def pids(replayed: Snapshot) -> list[int]:
    return [found.pid for found in replayed.processes]


@pytest.mark.parametrize("scenario", ["k8s-node", "workstation", "mixed-lab", "faulty"])
@pytest.mark.parametrize("compressed", [False, True])
def test_a_replayed_recording_gives_the_same_page_byte_for_byte(
    tmp_path: Path, scenario: str, compressed: bool
) -> None:
    node = Node(parse_scenario(FAULTY, "faulty") if scenario == "faulty" else load_scenario(scenario))
    live, again = Pages(), Pages()
    pages, ticks = [], []
    for second in range(15):
        replayed = node.at(second)
        pages.append(live.of(replayed))
        ticks.append(named(replayed))
    player = Player(write(tmp_path / "r", ticks, compressed=compressed))
    for second, page in enumerate(pages):
        assert without_source(again.of(player.at(second))) == without_source(page)


def test_info_names_the_recording_and_the_recorded_source(tmp_path: Path) -> None:
    hardware = SourceInfo("nvml", False, "580.95.05", "13.580.95.05", "13.0")
    player = Player(write(tmp_path / "bug.jsonl", [replace(tick(0), source=hardware)]))
    expected = SourceInfo("replay", True, "580.95.05", "13.580.95.05", "13.0", "bug.jsonl: nvml")
    assert player.source.info == player.at(0).source == expected
    page = Pages().of(player.source.read(ALL)).decode()
    assert 'gpuledger_source_info{source="replay",simulated="true",driver_version="580.95.05"' in page


def test_owners_are_the_recorded_ones_and_no_user_is_looked_up(tmp_path: Path) -> None:
    known = Workload("pod", "ml", "train-0", "main", found_by="kubelet")
    facts = HostFacts(
        ProcessStart("b", 1, 2.0), uid=7, user="ada", cgroup="0::/user.slice/user-1000.slice/a.scope\n"
    )
    replayed = replace(process(CARD), host=facts, workload=replace(known, user="ada"))
    player = Player(write(tmp_path / "r", [snapshot(reading(CARD, replayed))]))

    def refuse(uid: int) -> str:
        raise AssertionError(f"uid {uid} was looked up on this machine")

    (found,) = OwnerLookup(refuse).assign_owners(player.at(0)).processes
    assert found.workload == replace(known, user="ada")
    assert found.host.cgroup == facts.cgroup


@pytest.mark.parametrize("speed", [1.0, 2.0, 0.25])
def test_a_read_returns_the_latest_snapshot_at_that_time(recording: Path, speed: float) -> None:
    player = Player(recording, speed)
    for position, pid in ((0.0, 100), (0.9, 100), (1.0, 101), (2.5, 102), (4.99, 104), (5.0, 105)):
        assert pids(player.at(position / speed)) == [pid]


def test_replay_time_starts_at_the_first_read(recording: Path) -> None:
    player = Player(recording)
    player.began = player.clock.now = 3600.0
    assert pids(player.at(0)) == [100]
    assert pids(player.at(1)) == [101]


def test_a_repeated_snapshot_has_no_events(recording: Path) -> None:
    player = Player(recording)
    first, again = player.at(0), player.at(0.5)
    assert (len(first.xids), first.invalid, first.readings[0].samples) == (1, 1, (sample(0),))
    assert (again.xids, again.invalid, again.readings[0].samples) == ((), 0, ())
    assert (len(first.readings[0].accounting), again.readings[0].accounting) == (1, ())
    assert (again.elapsed, pids(again)) == (first.elapsed, pids(first))


def test_unreadable_samples_remain_none_in_a_repeated_snapshot(tmp_path: Path) -> None:
    replayed = snapshot(reading(CARD, samples=None))
    player = Player(write(tmp_path / "r", [at(replayed, 0), at(replayed, 2)]))
    assert [player.at(second).readings[0].samples for second in (0, 1)] == [None, None]


def test_events_of_a_skipped_snapshot_are_added_to_the_next(recording: Path) -> None:
    player = Player(recording)
    player.at(0)
    replayed = player.at(3)
    assert [event.xid for event in replayed.xids] == [1, 2, 3]
    assert replayed.invalid == 3
    assert replayed.readings[0].samples == (sample(1), sample(2), sample(3))
    assert pids(replayed) == [103]


def test_skipped_samples_are_added_even_if_the_next_ones_are_unreadable(tmp_path: Path) -> None:
    ticks = [tick(0), tick(1, reading(OTHER, samples=(sample(7),))), tick(2, reading(OTHER, samples=None))]
    player = Player(write(tmp_path / "r", ticks))
    player.at(0)
    first, other = player.at(2).readings
    assert (first.samples, other.samples) == ((sample(1), sample(2)), (sample(7),))


@given(times=st.lists(st.floats(0, 8), min_size=1, max_size=20).map(sorted))
def test_every_event_is_returned_once_at_any_read_interval(
    tmp_path_factory: pytest.TempPathFactory, times: list[float]
) -> None:
    entries: list[RecordingEntry] = [tick(number) for number in range(7)]
    entries.insert(3, Outage(0.0, 52.5, "LOST", "the driver went away"))
    player = Player(write(tmp_path_factory.mktemp("pace") / "r", entries))
    xids: list[int] = []
    samples: list[UtilizationSample] = []
    records: list[AccountingRecord] = []
    invalid = 0
    for time in (0.0, *times, 6.0 if times[-1] < 6 else times[-1]):
        try:
            replayed = player.at(time)
        except SourceUnavailable:
            continue
        xids += [event.xid for event in replayed.xids]
        samples += replayed.readings[0].samples or ()
        records += replayed.readings[0].accounting
        invalid += replayed.invalid
    assert xids == list(range(7))
    assert samples == [sample(number) for number in range(7)]
    assert [record.pid for record in records] == [100 + number for number in range(7)]
    assert invalid == 7


def test_a_recorded_outage_is_replayed_and_ends(tmp_path: Path) -> None:
    entries: list[RecordingEntry] = [
        tick(0),
        Outage(0.0, 51.0, "LIBRARY_NOT_FOUND", "no libnvidia-ml.so.1"),
        tick(2),
    ]
    player = Player(write(tmp_path / "r", entries))
    player.at(0)
    for _ in range(2):
        with pytest.raises(SourceUnavailable, match=r"^no libnvidia-ml\.so\.1$") as lost:
            player.at(1.5)
        assert lost.value.reason == "LIBRARY_NOT_FOUND"
    assert pids(player.at(2)) == [102]


def test_the_last_snapshot_is_valid_for_one_interval_then_the_recording_is_over(recording: Path) -> None:
    player = Player(recording)
    player.at(0)
    assert pids(player.at(5)) == [105]
    assert pids(player.at(6)) == [105]
    for later in (6.5, 600):
        with pytest.raises(SourceUnavailable) as over:
            player.at(later)
        assert (
            str(over.value) == "the recording r.jsonl ended after 5 s; restart gpuledger to replay it again"
        )
        assert over.value.reason == "recording_over"


def test_the_end_message_has_minutes(tmp_path: Path) -> None:
    player = Player(write(tmp_path / "r", [at(tick(0), 100.0), at(tick(1), 823.0)]), speed=10_000)
    player.at(0)
    player.at(1)
    with pytest.raises(SourceUnavailable, match="ended after 12 m 3 s;"):
        player.at(2)


def test_a_late_read_still_returns_the_last_snapshot(recording: Path) -> None:
    player = Player(recording)
    player.at(0)
    assert len(player.at(1000).xids) == 5


def test_a_truncated_recording_ends_at_the_cut(recording: Path, caplog: pytest.LogCaptureFixture) -> None:
    recording.write_bytes(recording.read_bytes()[:-30])
    player = Player(recording)
    player.at(0)
    assert pids(player.at(4)) == [104]
    with pytest.raises(SourceUnavailable, match="ended after 4 s"):
        player.at(5.5)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_only_selected_devices_are_replayed(tmp_path: Path) -> None:
    mig_instance = instance(OTHER, 1)
    replayed = replace(
        snapshot(
            reading(CARD),
            reading(OTHER),
            reading(mig_instance),
            xids=(XidEvent(CARD, 31, 1.0), XidEvent(OTHER, 43, 1.0)),
        ),
        allocations=(Allocation(CARD, Workload()), Allocation(mig_instance, Workload())),
        failures=(Failure("a", "b", CARD), Failure("c", "d", None)),
    )
    path = write(tmp_path / "r", [replayed])
    found = Player(path, devices=("1",)).at(0)
    assert [item.device for item in found.readings] == [OTHER, mig_instance]
    assert [event.xid for event in found.xids] == [43]
    assert [item.device for item in found.allocations] == [mig_instance]
    assert [failure.part for failure in found.failures] == ["c"]
    with pytest.raises(UsageError, match="unknown device '7'"):
        Player(path, devices=("7",))


def test_a_recording_without_a_tick_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no tick"):
        Player(write(tmp_path / "r", []))


def test_a_closed_recording_cannot_be_read(recording: Path) -> None:
    player = Player(recording)
    player.at(0)
    player.source.close()
    player.source.close()
    with pytest.raises(SourceUnavailable, match="closed"):
        player.at(1)


def test_source_replay_requires_a_file(recording: Path) -> None:
    source = open_source(
        SourceSettings(source=f"replay:{recording}"), SmiSettings(), RemoteHost(), ManualClock()
    )
    assert source.info.name == "replay"
    source.close()
    with pytest.raises(UsageError, match="--source replay:FILE"):
        open_source(SourceSettings(source="replay"), SmiSettings(), RemoteHost(), ManualClock())
