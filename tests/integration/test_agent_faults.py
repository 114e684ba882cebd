"""`gpuledger agent` under faults: accepted samples arrive, in order."""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
from collections import Counter
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import pytest

from agent_rig import (
    OURS,
    TARGETS,
    Agents,
    CountingTargets,
    RecordingReceiver,
    count_reorderings,
    eventually,
    fill_disk,
    missing,
    wait_for_scrapes,
)
from running import PATIENCE, free_port
from scripted_target import Answer, scripted
from unprivileged import UID, environment, unprivileged_command
from write_helpers import receiving, until

# Scrapes in ten minutes at an interval of 15 s.
TEN_MINUTES = 40
# A segment (an eighth of max_bytes) is full after two scrapes; the interval is long enough for every
# response.
SMALL: dict[str, Any] = {"disk": {"max_bytes": "1MiB"}, "interval": "1s"}
PADDING = 20_000
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")


@pytest.fixture
def targets() -> CountingTargets:
    return CountingTargets()


@pytest.fixture
def receiver() -> RecordingReceiver:
    """Down until it is `receiving`."""
    return RecordingReceiver(port=free_port())


def lost_samples(
    fault: str,
    targets: CountingTargets,
    receiver: RecordingReceiver,
    agents: Agents,
    run: Coroutine[Any, Any, None],
) -> set[tuple[str, int]]:
    """Run the scenario; return exported samples that did not arrive, except each target's last one."""
    try:
        asyncio.run(run)
    finally:
        agents.stop()
    lost = missing(targets, receiver) - set(targets.exported.items())
    print(  # noqa: T201  (the figures are quoted in docs/reliability.md)
        f"{fault}: {targets.exported.total()} samples exported, {len(set(receiver.arrived))} arrived, "
        f"{len(lost)} lost"
    )
    return lost


async def drain_and_stop(receiver: RecordingReceiver, agents: Agents) -> None:
    """Start the receiver, wait for queued samples and stop the agent, which drains its queue."""
    async with receiving(receiver):
        await until(lambda: len(receiver.arrived) > len(TARGETS), "the queue to drain")
        await asyncio.to_thread(agents.stop)


def test_receiver_outages_and_kill_dash_nine_lose_no_accepted_sample(
    tmp_path: Path, targets: CountingTargets, receiver: RecordingReceiver
) -> None:
    async def run(agents: Agents) -> None:
        await wait_for_scrapes(targets, TEN_MINUTES)
        agents.kill(targets)
        await wait_for_scrapes(targets, 5)
        async with receiving(receiver):
            await until(lambda: len(receiver.arrived) > TEN_MINUTES, "the queue to drain")
            receiver.healthy = False
            await wait_for_scrapes(targets, 5)
            agents.kill(targets)
            await wait_for_scrapes(targets, 5)
            receiver.healthy = True
            agents.kill(targets)
            await wait_for_scrapes(targets, 5)
            await asyncio.to_thread(agents.stop)

    with scripted(targets.answer) as target:
        agents = Agents(tmp_path, target, receiver.url, prepared=True)
        lost = lost_samples("receiver down, failing, three kill -9", targets, receiver, agents, run(agents))
    assert len(lost - agents.in_flight) <= agents.failed
    assert count_reorderings(receiver.arrived) == 0


@contextmanager
def small_disk(place: Path) -> Iterator[tuple[Sequence[str], Path]]:
    """Mount a tmpfs of 1 MiB at `place` in a new mount namespace.

    Yields the command prefix that runs a program in the namespace, and our own path to the mount.
    """
    place.mkdir()
    mount = f'mount -t tmpfs -o size=1m tmpfs "{place}" && echo mounted && exec cat'
    keeper = subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", mount], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert keeper.stdin is not None
    assert keeper.stdout is not None
    try:
        assert keeper.stdout.readline() == "mounted\n"
        within = ("nsenter", f"--mount=/proc/{keeper.pid}/ns/mnt", f"--wd={place.parent}")
        yield within, Path(f"/proc/{keeper.pid}/root{place}")
    finally:
        keeper.stdin.close()
        keeper.wait(PATIENCE)
        keeper.stdout.close()


@AS_ROOT
def test_a_full_disk_loses_nothing_that_fits_in_memory(
    tmp_path: Path, targets: CountingTargets, receiver: RecordingReceiver
) -> None:
    async def run(agents: Agents, ballast: Path) -> None:
        await wait_for_scrapes(targets, 5)
        fill_disk(ballast)
        await wait_for_scrapes(targets, TEN_MINUTES)
        await eventually(lambda: agents.metric("queue_memory_bytes") > 0)
        ballast.unlink()
        await eventually(lambda: agents.metric("queue_memory_bytes") == 0)
        await drain_and_stop(receiver, agents)

    with scripted(targets.answer) as target, small_disk(tmp_path / "queue") as (within, disk):
        agents = Agents(tmp_path, target, receiver.url, (*within, *OURS))
        lost = lost_samples("disk full", targets, receiver, agents, run(agents, disk / "ballast"))
    assert len(lost) <= agents.failed
    assert count_reorderings(receiver.arrived) == 0


@AS_ROOT
def test_an_agent_starts_on_a_full_disk_and_delivers_its_queue(
    tmp_path: Path, targets: CountingTargets, receiver: RecordingReceiver
) -> None:
    async def run(agents: Agents, ballast: Path, command: Sequence[str]) -> None:
        await wait_for_scrapes(targets, 5)
        agents.stop()
        agents.add_in_flight(targets)
        fill_disk(ballast)
        agents.start(command)
        await wait_for_scrapes(targets, 5)
        await eventually(lambda: agents.metric("queue_memory_bytes") > 0)
        # The disk remains full until the end.
        await drain_and_stop(receiver, agents)

    with scripted(targets.answer) as target, small_disk(tmp_path / "queue") as (within, disk):
        command = (*within, *OURS)
        agents = Agents(tmp_path, target, receiver.url, command)
        lost = lost_samples(
            "full at the start", targets, receiver, agents, run(agents, disk / "ballast", command)
        )
    assert len(lost - agents.in_flight) <= agents.failed
    assert count_reorderings(receiver.arrived) == 0


@pytest.fixture
def home() -> Iterator[Path]:
    """A directory of the ordinary user, outside pytest's temporary directories, which exclude other users."""
    with TemporaryDirectory(prefix="gpuledger-") as made:
        Path(made).chmod(0o755)
        folder = Path(made, "home")
        folder.mkdir()
        if os.geteuid() == 0:
            os.chown(folder, UID, UID)
        yield folder


def test_a_read_only_queue_loses_nothing_that_fits_in_memory(home: Path, receiver: RecordingReceiver) -> None:
    targets = CountingTargets(PADDING)

    async def run(agents: Agents) -> None:
        await wait_for_scrapes(targets, 1)
        (agents.queue / "one").chmod(0o500)
        await eventually(lambda: agents.metric("queue_memory_bytes") > 0)
        await wait_for_scrapes(targets, 2)
        (agents.queue / "one").chmod(0o700)
        await eventually(lambda: agents.metric("queue_memory_bytes") == 0)
        await drain_and_stop(receiver, agents)

    with scripted(targets.answer) as target:
        agents = Agents(home, target, receiver.url, unprivileged_command("agent"), environment(home), **SMALL)
        lost = lost_samples("queue read-only", targets, receiver, agents, run(agents))
    assert lost == set()
    assert count_reorderings(receiver.arrived) == 0
    (logged,) = [line for line in agents.program.lines if "cannot write to" in line]
    assert "(Permission denied)" in logged
    assert "make the directory writable" in logged


def test_an_unwritable_queue_directory_is_an_error_in_one_line(
    home: Path, receiver: RecordingReceiver
) -> None:
    (home / "queue").mkdir()
    (home / "queue").chmod(0o500)
    agents = Agents(home, None, receiver.url, unprivileged_command("agent"), environment(home))
    assert agents.program.process.wait(PATIENCE) == 1
    agents.stop()
    (logged,) = [line for line in agents.program.lines if line.startswith("gpuledger:")]
    assert (
        f"cannot use {home}/queue for the remote write queues: Permission denied; set a directory that user"
        in logged
    )
    assert not [line for line in agents.program.lines if "Traceback" in line]


def test_a_damaged_queue_loses_and_counts_only_the_damaged_records(
    tmp_path: Path, targets: CountingTargets, receiver: RecordingReceiver
) -> None:
    async def run(agents: Agents) -> None:
        await wait_for_scrapes(targets, 20)
        assert agents.stop() == 0
        agents.add_in_flight(targets)
        (segment,) = (agents.queue / "one").glob("*.blocks")
        content = bytearray(segment.read_bytes())
        half = len(content) // 2
        content[half : half + 8] = b"\0" * 8
        segment.write_bytes(content)
        (agents.queue / "one" / "position").write_bytes(b"nonsense")
        agents.start(OURS)
        async with receiving(receiver):
            await until(lambda: len(receiver.arrived) > 40, "the queue to drain")
            await eventually(lambda: agents.metric("queue_bytes") == 0)
            dropped.append(agents.metric("dropped_samples_total", reason="corrupt"))
            await asyncio.to_thread(agents.stop)

    dropped: list[float] = []
    with scripted(targets.answer) as target:
        agents = Agents(tmp_path, target, receiver.url, prepared=True)
        lost = lost_samples("damaged queue", targets, receiver, agents, run(agents))
    lost -= agents.in_flight
    # The eight damaged bytes belong to at most two records.
    assert dropped[0] in (1, 2)
    assert dropped[0] <= len(lost) <= dropped[0] + agents.failed
    assert any("skipped damaged records" in line for line in agents.program.lines)
    assert any("position is damaged" in line for line in agents.program.lines)


def test_without_file_descriptors_open_connections_continue_and_the_rest_recovers(
    tmp_path: Path, receiver: RecordingReceiver
) -> None:
    """Scrapes, segments and clients that need a new descriptor fail."""
    targets, closing = CountingTargets(PADDING), False

    def answer(path: str) -> Answer:
        found = targets.answer(path)
        # Then the agent needs a new connection, and a new descriptor.
        return Answer(found.body, headers=(("Connection", "close"),)) if closing and path == "/0" else found

    async def run(agents: Agents) -> None:
        nonlocal closing
        async with receiving(receiver):
            await wait_for_scrapes(targets, 1)
            await until(lambda: receiver.arrived, "the first samples to arrive")
            assert await asyncio.to_thread(agents.metric, "queue_memory_bytes") == 0
            pid = agents.program.process.pid
            before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
            # Open descriptors remain open; no new ones can be opened.
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, before[1]))
            arrived, closing = len(receiver.arrived), True
            await eventually(lambda: agents.metric("queue_memory_bytes") > 0)
            await eventually(lambda: agents.metric("targets", state="down") == 1)
            assert agents.metric("targets", state="up") == len(TARGETS) - 1
            assert len(receiver.arrived) > arrived
            port = agents.program.wait_line(r"listening on \S+ port (\d+)")[1]
            with pytest.raises(httpx.HTTPError):
                await asyncio.to_thread(
                    httpx.get, f"http://127.0.0.1:{port}/metrics", timeout=1, trust_env=False
                )
            resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
            closing = False
            await eventually(lambda: agents.metric("queue_memory_bytes") == 0)
            await eventually(lambda: agents.metric("targets", state="up") == len(TARGETS))
            await asyncio.to_thread(agents.stop)

    with scripted(answer) as target:
        agents = Agents(tmp_path, target, receiver.url, **SMALL, prepared=True)
        lost = lost_samples("no descriptors", targets, receiver, agents, run(agents))
    assert lost == set()
    assert count_reorderings(receiver.arrived) == 0
    lines = [line for line in agents.program.lines if "socket.accept() out of system resource" in line]
    assert len(lines) == 1


def test_out_of_memory_the_agent_continues_or_restarts_and_accepted_samples_arrive(
    tmp_path: Path, receiver: RecordingReceiver
) -> None:
    """The library that compresses samples aborts the process without memory; elsewhere a scrape is lost."""
    targets = CountingTargets(PADDING)
    exhausted: list[Counter[str]] = []
    # The answers that had come too late, as on a busy machine, at the begin and the end.
    late: list[float] = []

    async def run(agents: Agents) -> None:
        async def count_late() -> float:
            return await asyncio.to_thread(agents.metric, "scrape_failures_total", reason="request")

        await wait_for_scrapes(targets, 3)
        late.append(await count_late())
        process = agents.program.process
        pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[0])
        before = resource.prlimit(process.pid, resource.RLIMIT_AS)
        exhausted.append(targets.exported.copy())
        resource.prlimit(process.pid, resource.RLIMIT_AS, (pages * resource.getpagesize(), before[1]))
        await until(
            lambda: process.poll() is not None or min(targets.exported.values()) > 8,
            "some scrapes without memory",
        )
        try:
            resource.prlimit(process.pid, resource.RLIMIT_AS, before)
            late.append(await count_late())
        except (ProcessLookupError, httpx.HTTPError):
            await asyncio.to_thread(process.wait, PATIENCE)
            agents.stop()
            agents.start(OURS)
            late.append(0.0)
        exhausted.append(targets.exported.copy())
        await wait_for_scrapes(targets, 3)
        await drain_and_stop(receiver, agents)

    with scripted(targets.answer) as target:
        agents = Agents(tmp_path, target, receiver.url, disk={"max_bytes": "16MiB"}, interval="1s")
        lost = lost_samples("no memory", targets, receiver, agents, run(agents))
    begun, ended = exhausted
    # One response can be in flight at either end.
    others = [one for one in lost if not begun[one[0]] <= one[1] <= ended[one[0]] + 1]
    assert len(others) <= late[0] + agents.failed - late[1]
    assert count_reorderings(receiver.arrived) == 0
