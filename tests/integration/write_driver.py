"""A program that queues blocks for remote write until it is killed.

Arguments: URL, directory, shards, first number, file. After `accept` returned for all targets, the number is
appended to the file.
"""

from __future__ import annotations

import asyncio
import os
import sys
from itertools import count
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent.parent), str(Path(__file__).parent.parent.parent / "src")]

from gpuledger.agent.deliver.receivers import Receivers  # noqa: E402
from gpuledger.agent.deliver.settings import QueueConfig, ReceiverSettings  # noqa: E402
from gpuledger.host.clock import SystemClock  # noqa: E402  (after the path is set)
from write_helpers import block  # noqa: E402

TARGETS = 7


async def main() -> None:
    url, directory, shards, first, file = sys.argv[1:]
    config = QueueConfig(
        min_shards=int(shards), max_shards=int(shards), max_samples_per_send=20, batch_send_deadline=0.05
    )
    receivers = Receivers([ReceiverSettings("one", url, queue_config=config)], Path(directory), SystemClock())
    receivers.start()
    accepted = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number in count(int(first)):
        for target in range(TARGETS):
            receivers.accept(block(target, number, padding=number % 700))
        os.write(accepted, f"{number}\n".encode())
        await asyncio.sleep(0)


if __name__ == "__main__":
    asyncio.run(main())
