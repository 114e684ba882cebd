"""All receivers together: what is accepted is in each one's queue, and each is sent to on its own."""

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

from gpuledger.agent.deliver.receiver import Receiver
from gpuledger.agent.deliver.records import Block, cut, record_of
from gpuledger.agent.deliver.sender import Sleep
from gpuledger.agent.deliver.settings import ReceiverSettings
from gpuledger.agent.deliver.state import ReceiverState
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.source import Clock

_TAKEN: Final = frozenset({errno.EAGAIN, errno.EACCES})
_PLAIN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_OURS: Final = re.compile(r"\d{12}\.blocks|position")


class Lock:
    """Held for as long as the queues are open; the kernel lets it go with us."""

    def __init__(self, directory: Path) -> None:
        """Raises GpuledgerError when the directory cannot be used, or another program uses it."""
        import fcntl

        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._handle = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise GpuledgerError(
                f"the remote write queues cannot be kept in {directory}: {error.strerror}; name a directory "
                f"that user {os.geteuid()} can write to"
            ) from None
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._handle)
            why = "another gpuledger" if error.errno in _TAKEN else error.strerror
            raise GpuledgerError(
                f"the remote write queues in {directory} are in use ({why}): stop it, or name another "
                "directory"
            ) from None

    def release(self) -> None:
        """Let another program have them. Idempotent."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


def folder_of(directory: Path, name: str) -> Path:
    """The folder of the receiver of that name, whatever characters are in it."""
    if _PLAIN.fullmatch(name) and name != "lock":
        return directory / name
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-")[:40]
    return directory / f"{plain or 'receiver'}-{sha256(name.encode()).hexdigest()[:12]}"


def left_behind(directory: Path, used: set[Path]) -> dict[Path, tuple[int, float]]:
    """Queues of receivers that are no longer there: their bytes, and the unix time of the last change."""
    found = {}
    for folder in directory.iterdir():
        if folder in used or not folder.is_dir():
            continue
        with suppress(OSError):
            stats = [file.stat() for file in folder.iterdir() if _OURS.fullmatch(file.name)]
            if stats:
                found[folder] = sum(each.st_size for each in stats), max(each.st_mtime for each in stats)
    return found


def remove(folder: Path) -> None:
    """Take a queue away, and nothing that is none of ours. Raises OSError."""
    for file in folder.iterdir():
        if _OURS.fullmatch(file.name):
            file.unlink()
    folder.rmdir()


_LOG = logging.getLogger(__name__)


class Receivers:
    """Used by the event loop's thread alone.

    `chance` answers numbers from 0 to 1 and `sleep` waits for seconds.
    """

    def __init__(
        self,
        settings: Sequence[ReceiverSettings],
        directory: Path,
        clock: Clock,
        chance: Callable[[], float] = random.random,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._settings = tuple(settings)
        self._directory = directory
        self._clock = clock
        self._chance = chance
        self._sleep = sleep
        self._lock: Lock | None = None
        self._receivers: dict[str, Receiver] = {}

    def start(self) -> None:
        """Open the queues and begin to send, in the running loop.

        Raises GpuledgerError: another program has the queues, or a directory cannot be used.
        """
        self._lock = Lock(self._directory)
        try:
            opened = self._open(self._settings)
        except GpuledgerError:
            self._lock.release()
            raise
        self._take_on(opened)
        self._clear_up()

    def accept(self, block: Block, receivers: Collection[str] | None = None) -> None:
        """Take a Block for these receivers (None: for all); names that are not there are passed over.

        When this returns, it is in each one's queue: written to its file, so that it survives the end of this
        process; or, with a disk that takes nothing, in memory, which `state` then tells.
        """
        found = self._receivers
        to = [one for name, one in found.items() if receivers is None or name in receivers]
        if not to:
            return
        most = min(one.settings.queue_config.max_samples_per_send for one in to)
        accepted = int(self._clock.unix() * 1000)
        for part in cut(block, most) if block.samples > most else (block,):
            record = record_of(part, accepted)
            for one in to:
                one.accept(record)

    async def apply(self, settings: Sequence[ReceiverSettings]) -> None:
        """Go on with other settings: queues of the same name go on, those that are no longer named rest.

        Raises GpuledgerError when a new receiver's queue cannot be opened, and then nothing has changed.
        """
        wanted = {one.name: one for one in settings}
        opened = self._open([one for name, one in wanted.items() if name not in self._receivers])
        self._settings = tuple(settings)
        self._take_on(opened)
        for name in self._receivers.keys() - wanted.keys():
            await self._receivers.pop(name).stop(0)
        for name, one in wanted.items():
            await self._receivers[name].apply(one)
        self._clear_up()

    async def stop(self, drain_seconds: float = 5.0) -> None:
        """Send what is queued, for so long at most; what is left waits on disk for the next start."""
        receivers, self._receivers = list(self._receivers.values()), {}
        await asyncio.gather(*(one.stop(drain_seconds) for one in receivers))
        if self._lock is not None:
            self._lock.release()

    def state(self) -> tuple[ReceiverState, ...]:
        """Each receiver as it is now, in the order of the settings."""
        return tuple(
            self._receivers[one.name].state() for one in self._settings if one.name in self._receivers
        )

    def _open(self, settings: Sequence[ReceiverSettings]) -> list[Receiver]:
        opened: list[Receiver] = []
        try:
            for one in settings:
                folder = folder_of(self._directory, one.name)
                opened.append(Receiver(one, folder, self._clock, self._chance, self._sleep))
        except GpuledgerError:
            for receiver in opened:
                receiver.close()
            raise
        return opened

    def _take_on(self, opened: Sequence[Receiver]) -> None:
        for one in opened:
            self._receivers[one.settings.name] = one
            one.start()

    def _clear_up(self) -> None:
        """Queues that nobody sends: kept for as long as a queue keeps anything, for a name may come back."""
        used = {folder_of(self._directory, name) for name in self._receivers}
        longest = max((one.settings.queue.max_age for one in self._receivers.values()), default=0.0)
        if not used:
            return
        for folder, (size, changed) in left_behind(self._directory, used).items():
            try:
                if self._clock.unix() - changed > longest:
                    remove(folder)
                    _LOG.warning(
                        "remote write: the queue %s of a receiver no longer named was removed", folder
                    )
                else:
                    _LOG.warning(
                        "remote write: %d bytes in %s are for a receiver that is not named any more; name it "
                        "again, or remove them",
                        size,
                        folder,
                    )
            except OSError as error:
                _LOG.warning("remote write: the old queue %s cannot be removed: %s", folder, error.strerror)
