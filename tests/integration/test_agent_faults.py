"""`gpuledger agent` as a program under faults: what it accepted arrives, in order."""

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
    Counting,
    Receiver,
    asked,
    eventually,
    fill,
    goes_back,
    missing,
)
from ordinary import UID, environment, ordinary
from running import free_port
from scripted_target import Answer, scripted
from write_helpers import receiving, until

# Ten minutes, were it every 15 s.
TEN_MINUTES = 40
# A segment, an eighth of that, is full after two scrapes; and no answer comes too late.
SMALL: dict[str, Any] = {"disk": {"max_bytes": "1MiB"}, "interval": "1s"}
PADDING = 20_000
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")


@pytest.fixture
def targets() -> Counting:
    return Counting()


@pytest.fixture
def receiver() -> Receiver:
    """Nobody, until it is `receiving`."""
    return Receiver(port=free_port())


def lost_by(
    fault: str, targets: Counting, receiver: Receiver, agents: Agents, run: Coroutine[Any, Any, None]
) -> set[tuple[str, int]]:
    """Run it, and answer what was told and has not arrived, but for what was told last of all."""
    try:
        asyncio.run(run)
    finally:
        agents.stop()
    lost = missing(targets, receiver) - set(targets.told.items())
    print(  # noqa: T201  (the figure is what is asked for)
        f"{fault}: {targets.told.total()} samples told, {len(set(receiver.arrived))} arrived, {len(lost)} not"
    )
    return lost


async def worked_off(receiver: Receiver, agents: Agents) -> None:
    """All that is queued arrives, and the agent is told to stop."""
    async with receiving(receiver):
        await until(lambda: len(receiver.arrived) > len(TARGETS), "the queue to be worked off")
        await asyncio.to_thread(agents.stop)


def test_a_receiver_that_is_down_or_fails_and_kill_dash_nine_lose_nothing_accepted(
    tmp_path: Path, targets: Counting, receiver: Receiver
) -> None:
    async def run(agents: Agents) -> None:
        await asked(targets, TEN_MINUTES)
        agents.kill(targets)
        await asked(targets, 5)
        async with receiving(receiver):
            await until(lambda: len(receiver.arrived) > TEN_MINUTES, "the queue to be worked off")
            receiver.well = False
            await asked(targets, 5)
            agents.kill(targets)
            await asked(targets, 5)
            receiver.well = True
            agents.kill(targets)
            await asked(targets, 5)
            await asyncio.to_thread(agents.stop)

    with scripted(targets.answer) as target:
        agents = Agents(tmp_path, target.port, receiver.url)
        lost = lost_by("receiver down, failing, three kill -9", targets, receiver, agents, run(agents))
    assert len(lost - agents.in_flight) <= agents.failed
    # What was on its way at a kill is sent again, from its beginning.
    assert goes_back(receiver.arrived) <= 3 * len(TARGETS)


@contextmanager
def small_disk(place: Path) -> Iterator[tuple[Sequence[str], Path]]:
    """A disk of a megabyte at that place, for who is begun by these words alone, and the way to it for us."""
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
        keeper.wait(20)
        keeper.stdout.close()


@AS_ROOT
def test_a_full_disk_loses_nothing_that_memory_holds(
    tmp_path: Path, targets: Counting, receiver: Receiver
) -> None:
    async def run(agents: Agents, ballast: Path) -> None:
        await asked(targets, 5)
        fill(ballast)
        await asked(targets, TEN_MINUTES)
        await eventually(lambda: agents.metric("queue_memory_bytes") > 0)
        ballast.unlink()
        await eventually(lambda: agents.metric("queue_memory_bytes") == 0)
        await worked_off(receiver, agents)

    with scripted(targets.answer) as target, small_disk(tmp_path / "queue") as (within, disk):
        agents = Agents(tmp_path, target.port, receiver.url, (*within, *OURS))
        lost = lost_by("disk full", targets, receiver, agents, run(agents, disk / "ballast"))
    assert len(lost) <= agents.failed
    assert goes_back(receiver.arrived) == 0


@AS_ROOT
def test_an_agent_begins_on_a_disk_that_is_full_and_delivers_what_is_on_it(
    tmp_path: Path, targets: Counting, receiver: Receiver
) -> None:
    async def run(agents: Agents, ballast: Path, begun_by: Sequence[str]) -> None:
        await asked(targets, 5)
        agents.stop()
        agents.in_flight |= set(targets.told.items())
        fill(ballast)
        agents.start(begun_by)
        await asked(targets, 5)
        await eventually(lambda: agents.metric("queue_memory_bytes") > 0)
        # It stays full to the end: what is delivered by then is not lost.
        await worked_off(receiver, agents)

    with scripted(targets.answer) as target, small_disk(tmp_path / "queue") as (within, disk):
        begun_by = (*within, *OURS)
        agents = Agents(tmp_path, target.port, receiver.url, begun_by)
        lost = lost_by(
            "full at the start", targets, receiver, agents, run(agents, disk / "ballast", begun_by)
        )
    assert len(lost - agents.in_flight) <= agents.failed
    assert goes_back(receiver.arrived) == 0


@pytest.fixture
def home() -> Iterator[Path]:
    """A directory of the ordinary user's, outside of pytest's own, which each run of it closes to others."""
    with TemporaryDirectory(prefix="gpuledger-") as made:
        Path(made).chmod(0o755)
        folder = Path(made, "home")
        folder.mkdir()
        if os.geteuid() == 0:
            os.chown(folder, UID, UID)
        yield folder


def test_a_queue_in_which_no_file_can_be_made_loses_nothing_that_memory_holds(
    home: Path, receiver: Receiver
) -> None:
    targets = Counting(PADDING)

    async def run(agents: Agents) -> None:
        await asked(targets, 1)
        (agents.queue / "one").chmod(0o500)
        await eventually(lambda: agents.metric("queue_memory_bytes") > 0)
        await asked(targets, 2)
        (agents.queue / "one").chmod(0o700)
        await eventually(lambda: agents.metric("queue_memory_bytes") == 0)
        await worked_off(receiver, agents)

    with scripted(targets.answer) as target:
        agents = Agents(home, target.port, receiver.url, ordinary("agent"), environment(home), **SMALL)
        lost = lost_by("queue read-only", targets, receiver, agents, run(agents))
    assert lost == set()
    assert goes_back(receiver.arrived) == 0
    (said,) = [line for line in agents.program.lines if "takes nothing" in line]
    assert "(Permission denied)" in said
    assert "see that files can be made there" in said


def test_a_queue_that_may_not_be_written_is_refused_in_one_line(home: Path, receiver: Receiver) -> None:
    (home / "queue").mkdir()
    (home / "queue").chmod(0o500)
    agents = Agents(home, 1, receiver.url, ordinary("agent"), environment(home))
    assert agents.program.process.wait(60) == 1
    agents.stop()
    (said,) = [line for line in agents.program.lines if line.startswith("gpuledger:")]
    assert f"cannot be kept in {home}/queue: Permission denied; name a directory that user" in said
    assert not [line for line in agents.program.lines if "Traceback" in line]


def test_of_a_damaged_queue_the_damaged_records_alone_are_lost_and_counted(
    tmp_path: Path, targets: Counting, receiver: Receiver
) -> None:
    async def run(agents: Agents) -> None:
        await asked(targets, 20)
        assert agents.stop() == 0
        agents.in_flight |= set(targets.told.items())
        (segment,) = (agents.queue / "one").glob("*.blocks")
        content = bytearray(segment.read_bytes())
        half = len(content) // 2
        content[half : half + 8] = b"\0" * 8
        segment.write_bytes(content)
        (agents.queue / "one" / "position").write_bytes(b"nonsense")
        agents.start(OURS)
        async with receiving(receiver):
            await until(lambda: len(receiver.arrived) > 40, "the queue to be worked off")
            await eventually(lambda: agents.metric("queue_bytes") == 0)
            dropped.append(agents.metric("dropped_samples_total", reason="corrupt"))
            await asyncio.to_thread(agents.stop)

    dropped: list[float] = []
    with scripted(targets.answer) as target:
        agents = Agents(tmp_path, target.port, receiver.url)
        lost = lost_by("damaged queue", targets, receiver, agents, run(agents))
    lost -= agents.in_flight
    # The eight bytes are of two records at most.
    assert dropped[0] in (1, 2)
    assert dropped[0] <= len(lost) <= dropped[0] + agents.failed
    assert any("are damaged and passed over" in line for line in agents.program.lines)
    assert any("position is damaged" in line for line in agents.program.lines)


def test_without_descriptors_what_is_open_goes_on_and_all_else_comes_back(
    tmp_path: Path, receiver: Receiver
) -> None:
    """No page is asked for, no segment begun, no client served that needs a descriptor more."""
    targets, closing = Counting(PADDING), False

    def answer(path: str) -> Answer:
        told = targets.answer(path)
        # The connection is not kept then.
        return Answer(told.body, headers=(("Connection", "close"),)) if closing and path == "/0" else told

    async def run(agents: Agents) -> None:
        nonlocal closing
        async with receiving(receiver):
            await asked(targets, 1)
            await until(lambda: receiver.arrived, "the first samples to arrive")
            assert await asyncio.to_thread(agents.metric, "queue_memory_bytes") == 0
            pid = agents.program.process.pid
            before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
            # What is open stays so; nothing can be opened.
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
        agents = Agents(tmp_path, target.port, receiver.url, **SMALL)
        lost = lost_by("no descriptors", targets, receiver, agents, run(agents))
    assert lost == set()
    assert goes_back(receiver.arrived) == 0
    lines = [line for line in agents.program.lines if "socket.accept() out of system resource" in line]
    assert len(lines) == 1


def test_without_memory_it_goes_on_or_begins_anew_and_what_was_accepted_arrives(
    tmp_path: Path, receiver: Receiver
) -> None:
    """What packs samples ends the program where it gets no memory; elsewhere a scrape is lost."""
    targets = Counting(PADDING)
    exhausted: list[Counter[str]] = []

    async def run(agents: Agents) -> None:
        await asked(targets, 3)
        process = agents.program.process
        pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[0])
        before = resource.prlimit(process.pid, resource.RLIMIT_AS)
        resource.prlimit(process.pid, resource.RLIMIT_AS, (pages * resource.getpagesize(), before[1]))
        exhausted.append(targets.told.copy())
        await until(lambda: process.poll() or min(targets.told.values()) > 8, "some scrapes without memory")
        if process.poll() is None:
            resource.prlimit(process.pid, resource.RLIMIT_AS, before)
        else:
            agents.stop()
            agents.start(OURS)
        exhausted.append(targets.told.copy())
        await asked(targets, 3)
        await worked_off(receiver, agents)

    with scripted(targets.answer) as target:
        agents = Agents(tmp_path, target.port, receiver.url, **SMALL)
        lost = lost_by("no memory", targets, receiver, agents, run(agents))
    begun, ended = exhausted
    # One answer is on its way at either end.
    assert not [one for one in lost if not begun[one[0]] <= one[1] <= ended[one[0]] + 1]
    assert goes_back(receiver.arrived) == 0
