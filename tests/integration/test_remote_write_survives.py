"""Samples that remote write accepted arrive in order, despite `kill -9` and a full disk."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from integration.write_driver import TARGETS
from running import PATIENCE, Program, free_port
from write_helpers import Post, ScriptedReceiver, receiving, sending, settings, until

DRIVER = Path(__file__).with_name("write_driver.py")
DISK = Path(__file__).with_name("write_full_disk.py")
KILLS = 25


def test_repeated_kill_dash_nine_loses_nothing_and_keeps_the_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chance = random.Random(12)
    file, queues = tmp_path / "accepted", tmp_path / "queues"
    there = ScriptedReceiver(port=free_port())

    def script(post: Post) -> str:
        # One request in ten is retried, so that kills hit requests in every stage.
        return "503 Later" if chance.random() < 0.1 else "204 No Content"

    there.script = script

    def accepted() -> list[int]:
        return [int(line) for line in file.read_text().splitlines()] if file.exists() else []

    # Called often: counts without parsing.
    def count_accepted() -> int:
        return file.read_bytes().count(b"\n") if file.exists() else 0

    async def one_life(first: int) -> None:
        shards = str(chance.choice([1, 2, 3, 5]))
        more = chance.choice([1, 20, 200, 500])
        before = count_accepted()
        command = [sys.executable, str(DRIVER), there.url, str(queues), shards, str(first), str(file)]
        program = Program(command, prepared=True)

        def enough() -> bool:
            assert program.process.poll() is None, program.lines
            return count_accepted() >= before + more

        try:
            await until(enough, "blocks to be accepted")
        finally:
            program.process.kill()
            program.stop()

    async def test() -> None:
        for life in range(KILLS):
            first = max(accepted(), default=-1) + 2
            # In every third run the receiver is down and a queue builds up.
            if life % 3 == 2:
                await one_life(first)
            else:
                async with receiving(there):
                    await one_life(first)
        async with receiving(there), sending(queues, settings(there.url)) as rest:
            await until(lambda: not rest.state()[0].queued_blocks, "the queue to be empty")
            assert sum(rest.state()[0].dropped.values()) == 0

    asyncio.run(test())
    by_target: dict[int, list[int]] = defaultdict(list)
    for target, number in there.received:
        by_target[target].append(number)
    numbers = set(accepted())
    for target in range(TARGETS):
        lost = numbers - set(by_target[target])
        assert not lost, f"{len(lost)} of {len(numbers)} accepted blocks of target {target} never arrived"
        # Without duplicates, the samples are in order.
        once = list(dict.fromkeys(by_target[target]))
        assert once == sorted(once)
    twice = len(there.received) - len(set(there.received))
    # At most the requests in flight (one per shard) are sent twice.
    assert twice <= KILLS * 5 * 20
    with capsys.disabled():
        sys.stdout.write(
            f"\n{KILLS} x kill -9: {len(numbers) * TARGETS} samples accepted, all arrived, in order;"
            f" {twice} of them twice\n"
        )


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_full_disk_drops_only_the_oldest_samples_and_keeps_the_order() -> None:
    """Runs write_full_disk.py in a new mount namespace with a tmpfs of 1 MiB."""
    done = subprocess.run(
        ["unshare", "--mount", sys.executable, str(DISK)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "all queued samples have arrived" in done.stdout
