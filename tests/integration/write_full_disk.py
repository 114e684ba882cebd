"""Remote write on a disk that is full, in the mount namespace that this program was started in."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent.parent), str(Path(__file__).parent.parent.parent / "src")]

from gpuledger.outputs.remote_write.settings import DiskQueue  # noqa: E402  (after the path is set)
from running import free_port  # noqa: E402
from write_helpers import ScriptedReceiver, block, in_order, receiving, sending, settings, until  # noqa: E402

BLOCKS = 2000
MEMORY = 200_000


async def check(disk: Path) -> None:
    there = ScriptedReceiver(port=free_port())
    queue = DiskQueue(max_bytes=8 << 20, memory_bytes=MEMORY)
    ballast = disk / "ballast"
    async with sending(disk / "queues", settings(there.url, queue=queue)) as here:

        def feed(numbers: range) -> None:
            for number in numbers:
                here.accept(block(number % 3, number, padding=700))

        feed(range(100))
        # Somebody else takes the rest of the disk.
        with ballast.open("wb") as file:
            try:
                while True:
                    file.write(bytes(4096))
                    file.flush()
            except OSError:
                pass
        feed(range(100, 250))
        state = here.state()[0]
        assert state.memory_bytes > 0, "the full disk went unnoticed"
        assert sum(state.dropped.values()) == 0, state.dropped
        # More than memory holds: the oldest go, from the disk first.
        feed(range(250, BLOCKS))
        state = here.state()[0]
        assert state.memory_bytes <= MEMORY
        assert state.dropped["disk_full"] > 0
        assert state.dropped["disk_full"] == sum(state.dropped.values())
        assert state.queued_samples == BLOCKS - state.dropped["disk_full"]
        dropped = state.dropped["disk_full"]
        # Room again: what waits in memory is written, and then survives.
        ballast.unlink()
        await until(lambda: not here.state()[0].memory_bytes, "memory to be written to the disk")
        assert here.state()[0].queued_samples == BLOCKS - dropped
    async with receiving(there), sending(disk / "queues", settings(there.url, queue=queue)) as again:
        await until(lambda: not again.state()[0].queued_blocks, "the queue to be empty")
    numbers = [number for _, number in there.taken]
    assert sorted(numbers) == list(range(dropped, BLOCKS)), "others than the oldest were dropped"
    assert in_order(there.taken)
    print(f"{dropped} of {BLOCKS} were dropped; all that the state says is left has arrived")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], check=True)
        try:
            asyncio.run(check(Path(folder)))
        finally:
            subprocess.run(["umount", "--lazy", folder], check=True)


if __name__ == "__main__":
    main()
