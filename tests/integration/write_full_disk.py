"""Remote write on a full disk. Run this program in a new mount namespace."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent.parent), str(Path(__file__).parent.parent.parent / "src")]

from gpuledger.agent.deliver.settings import DiskQueueLimits  # noqa: E402  (after the path is set)
from running import free_port  # noqa: E402
from write_helpers import ScriptedReceiver, block, in_order, receiving, sending, settings, until  # noqa: E402

BLOCKS = 2000
MEMORY = 200_000


async def check(disk: Path) -> None:
    there = ScriptedReceiver(port=free_port())
    queue = DiskQueueLimits(max_bytes=8 << 20, memory_bytes=MEMORY)
    ballast = disk / "ballast"
    async with sending(disk / "queues", settings(there.url, queue=queue)) as here:

        def feed(numbers: range) -> None:
            for number in numbers:
                here.accept(block(number % 3, number, padding=700))

        feed(range(100))
        # Another program fills the rest of the disk.
        handle = os.open(ballast, os.O_WRONLY | os.O_CREAT)
        with suppress(OSError):
            while True:
                os.write(handle, bytes(4096))
        os.close(handle)
        feed(range(100, 250))
        state = here.state()[0]
        assert state.memory_bytes > 0, "the full disk went unnoticed"
        assert sum(state.dropped.values()) == 0, state.dropped
        # More than memory holds: the oldest samples are dropped, from the disk first.
        feed(range(250, BLOCKS))
        state = here.state()[0]
        assert state.memory_bytes <= MEMORY
        assert state.dropped["disk_full"] == sum(state.dropped.values()) > 0
        assert state.queued_samples == BLOCKS - state.dropped["disk_full"]
        # Space again: the samples in memory are written to the disk.
        ballast.unlink()
        await until(lambda: not here.state()[0].memory_bytes, "memory to be written to the disk")
        state = here.state()[0]
        assert state.queued_samples == BLOCKS - state.dropped["disk_full"]
    async with receiving(there), sending(disk / "queues", settings(there.url, queue=queue)) as again:
        left = again.state()[0].queued_samples
        assert 0 < left <= state.queued_samples
        await until(lambda: not again.state()[0].queued_blocks, "the queue to be empty")
    numbers = sorted(number for _, number in there.received)
    assert numbers == list(range(BLOCKS - left, BLOCKS)), "others than the oldest were dropped"
    assert in_order(there.received)
    sys.stdout.write(f"{BLOCKS - left} of {BLOCKS} were dropped; all queued samples have arrived\n")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], check=True)
        try:
            asyncio.run(check(Path(folder)))
        finally:
            subprocess.run(["umount", "--lazy", folder], check=True)


if __name__ == "__main__":
    main()
