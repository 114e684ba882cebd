"""All remote-write receivers: each has its own queue for the accepted blocks and sends independently."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import random
import re
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Final

from gpuledger.agent.deliver.metadata import MetadataStore
from gpuledger.agent.deliver.receiver import Receiver
from gpuledger.agent.deliver.records import Block, compress_block, split_block
from gpuledger.agent.deliver.sender import Sleep
from gpuledger.agent.deliver.settings import ReceiverSettings
from gpuledger.agent.deliver.state import ReceiverState
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.source import Clock

_TAKEN: Final = frozenset({errno.EAGAIN, errno.EACCES})
_PLAIN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_OURS: Final = re.compile(r"\d{12}\.blocks|position")


def lock_queues(directory: Path) -> int:
    """Lock the queue directory and return a descriptor; closing it releases the lock.

    The end of the process releases it too. Raises GpuledgerError if the directory is unusable or another
    program holds the lock.
    """
    import fcntl

    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise GpuledgerError(
            f"cannot use {directory} for the remote write queues: {error.strerror}; set a directory that "
            f"user {os.geteuid()} can write to"
        ) from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        why = "another gpuledger" if error.errno in _TAKEN else error.strerror
        raise GpuledgerError(
            f"the remote write queues in {directory} are in use ({why}); stop the other program or set "
            "another directory"
        ) from None
    return handle


def receiver_folder(directory: Path, name: str) -> Path:
    """Return the queue folder of a receiver; a name that is not a plain file name is hashed."""
    if _PLAIN.fullmatch(name) and name != "lock":
        return directory / name
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-")[:40]
    return directory / f"{plain or 'receiver'}-{sha256(name.encode()).hexdigest()[:12]}"


def find_orphaned_queues(directory: Path, used: set[Path]) -> dict[Path, tuple[int, float]]:
    """Return the queues of removed receivers with their bytes and the unix time of their last change."""
    found = {}
    for folder in directory.iterdir():
        if folder in used or not folder.is_dir():
            continue
        with suppress(OSError):
            stats = [file.stat() for file in folder.iterdir() if _OURS.fullmatch(file.name)]
            if stats:
                found[folder] = sum(each.st_size for each in stats), max(each.st_mtime for each in stats)
    return found


def remove_queue(folder: Path) -> None:
    """Delete a queue's files and its folder; foreign files are kept. Raises OSError."""
    for file in folder.iterdir():
        if _OURS.fullmatch(file.name):
            file.unlink()
    folder.rmdir()


_LOG = logging.getLogger(__name__)


class Receivers:
    """All receivers. Used on the event loop's thread only.

    `chance` returns numbers from 0 to 1; `sleep` waits for seconds. `metadata` is filled by the scrapes.
    """

    def __init__(
        self,
        settings: Sequence[ReceiverSettings],
        directory: Path,
        clock: Clock,
        chance: Callable[[], float] = random.random,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self.metadata = MetadataStore()
        self._settings = tuple(settings)
        self._directory = directory
        self._clock = clock
        self._chance = chance
        self._sleep = sleep
        self._lock: int | None = None
        self._receivers: dict[str, Receiver] = {}

    def start(self) -> None:
        """Open the queues and start sending on the running event loop.

        Raises GpuledgerError if another program uses the queues or a directory is unusable.
        """
        self._lock = lock_queues(self._directory)
        try:
            opened = self._open(self._settings)
        except GpuledgerError:
            self._unlock()
            raise
        self._start_receivers(opened)
        self._remove_orphaned_queues()

    def accept(self, block: Block, receivers: Collection[str] | None = None) -> None:
        """Queue a block for these receivers (None: all); unknown names are ignored.

        On return it is in each receiver's queue: in its file, so that it survives the end of this process, or
        in memory (see `state`) if the disk is not writable.
        """
        found = self._receivers
        selected = [one for name, one in found.items() if receivers is None or name in receivers]
        if not selected:
            return
        most = min(one.settings.queue_config.max_samples_per_send for one in selected)
        accepted = int(self._clock.unix() * 1000)
        for part in split_block(block, most) if block.samples > most else (block,):
            record = compress_block(part, accepted)
            for receiver in selected:
                receiver.accept(record)

    async def apply(self, settings: Sequence[ReceiverSettings]) -> None:
        """Apply changed settings. Receivers of the same name keep their queue; removed ones stop sending.

        Raises GpuledgerError, without any change, if a new receiver's queue cannot be opened.
        """
        wanted = {one.name: one for one in settings}
        opened = self._open([one for name, one in wanted.items() if name not in self._receivers])
        self._start_receivers(opened)
        for name in self._receivers.keys() - wanted.keys():
            await self._receivers.pop(name).stop(0)
        for name, one in wanted.items():
            await self._receivers[name].apply(one)
        self._receivers = {name: self._receivers[name] for name in wanted}
        self._remove_orphaned_queues()

    async def stop(self, drain_seconds: float = 5.0) -> None:
        """Send queued records for at most `drain_seconds`; the rest is kept on disk for the next start."""
        receivers, self._receivers = list(self._receivers.values()), {}
        await asyncio.gather(*(one.stop(drain_seconds) for one in receivers))
        self._unlock()

    def state(self) -> tuple[ReceiverState, ...]:
        """Return the state of each receiver, in the order of the settings."""
        return tuple(receiver.state() for receiver in self._receivers.values())

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _open(self, settings: Sequence[ReceiverSettings]) -> list[Receiver]:
        opened: list[Receiver] = []
        try:
            for one in settings:
                folder = receiver_folder(self._directory, one.name)
                opened.append(Receiver(one, folder, self._clock, self._chance, self._sleep, self.metadata))
        except GpuledgerError:
            for receiver in opened:
                receiver.close()
            raise
        return opened

    def _start_receivers(self, opened: Sequence[Receiver]) -> None:
        for receiver in opened:
            self._receivers[receiver.settings.name] = receiver
            receiver.start()

    def _remove_orphaned_queues(self) -> None:
        """Delete queues of removed receivers after the longest max_age: until then the name may return."""
        used = {receiver_folder(self._directory, name) for name in self._receivers}
        longest = max((one.settings.queue.max_age for one in self._receivers.values()), default=0.0)
        if not used:
            return
        for folder, (size, changed) in find_orphaned_queues(self._directory, used).items():
            try:
                if self._clock.unix() - changed > longest:
                    remove_queue(folder)
                    _LOG.warning(
                        "remote write: deleted the queue %s: its receiver is no longer configured", folder
                    )
                else:
                    _LOG.warning(
                        "remote write: %d bytes in %s are queued for a receiver that is no longer "
                        "configured; add the receiver again or delete the folder",
                        size,
                        folder,
                    )
            except OSError as error:
                _LOG.warning("remote write: cannot delete the old queue %s: %s", folder, error.strerror)
