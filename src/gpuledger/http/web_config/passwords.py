"""Check passwords against bcrypt hashes in threads, and cache the results."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from queue import SimpleQueue
from threading import Thread
from typing import Final

try:
    # The implementation behind hashlib: importing hashlib loads 3.6 MiB of OpenSSL, too.
    from _blake2 import blake2b
except ImportError:
    from hashlib import blake2b

_LOG = logging.getLogger(__name__)

# Bytes that bcrypt uses of a password; its Python package rejects longer ones, Go's truncates them.
_LONGEST: Final = 72

_Job = tuple[bytes, bytes, Callable[[bool], None]]


class CheckerBusy(Exception):
    """Too many passwords wait to be checked."""


@dataclass(eq=False, repr=False)
class PasswordChecker:
    """Checks whether a password is that of a user.

    Unknown users take as long as known ones, so that timing reveals nothing: their passwords are checked
    against a dummy hash with the cost of one of the users (always the same for a name). Results are cached
    under a keyed hash of name, hash and password; correct and wrong ones separately, so that guesses do not
    evict those of scrapers. `check` is `bcrypt.checkpw`; it runs in `threads` threads, with at most `waiting`
    passwords at a time. Used by the event loop's thread only.
    """

    check: Callable[[bytes, bytes], bool] | None = None
    _: KW_ONLY
    threads: int = 2
    waiting: int = 16
    remembered: int = 128
    _secret: bytes = field(default_factory=lambda: os.urandom(32), init=False)
    _answers: dict[bool, OrderedDict[bytes, None]] = field(
        default_factory=lambda: {True: OrderedDict(), False: OrderedDict()}, init=False
    )
    _running: dict[bytes, asyncio.Future[bool]] = field(default_factory=dict, init=False)
    _jobs: SimpleQueue[_Job] | None = field(default=None, init=False)

    def check_password(
        self, users: Mapping[str, bytes], name: str, password: bytes
    ) -> bool | asyncio.Future[bool]:
        """The result, immediately if cached. Raises CheckerBusy. `users` are hashes by name, at least one."""
        known = users.get(name)
        stored = known if known is not None else self._dummy_hash(users, name)
        key = self._keyed(name.encode("utf-8", "surrogatepass"), stored, password)
        for answer, remembered in self._answers.items():
            if key in remembered:
                remembered.move_to_end(key)
                return answer
        if key in self._running:
            return self._running[key]
        if len(self._running) >= self.waiting:
            raise CheckerBusy
        jobs = self._queue()
        loop = asyncio.get_running_loop()
        future = self._running[key] = loop.create_future()

        def done(matches: bool) -> None:
            self._end(key, matches and known is not None)

        def report(matches: bool) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(done, matches)

        jobs.put((password[:_LONGEST], stored, report))
        return future

    def _end(self, key: bytes, answer: bool) -> None:
        remembered = self._answers[answer]
        remembered[key] = None
        if len(remembered) > self.remembered:
            remembered.popitem(last=False)
        future = self._running.pop(key)
        if not future.done():
            future.set_result(answer)

    def _keyed(self, *parts: bytes) -> bytes:
        digest = blake2b(key=self._secret, digest_size=32)
        for part in parts:
            digest.update(len(part).to_bytes(8, "big") + part)
        return digest.digest()

    def _dummy_hash(self, users: Mapping[str, bytes], name: str) -> bytes:
        digest = self._keyed(name.encode("utf-8", "surrogatepass"))
        costs = sorted(hashed[4:6] for hashed in users.values())
        cost = costs[int.from_bytes(digest[:8], "big") % len(costs)]
        letters = digest.hex().encode()
        return b"$2b$" + cost + b"$" + letters[:21] + b"e" + letters[21:52]

    def _queue(self) -> SimpleQueue[_Job]:
        if self._jobs is None:
            jobs: SimpleQueue[_Job] = SimpleQueue()
            arguments = (jobs, self.check or _bcrypt())
            for number in range(self.threads):
                # Daemon threads: a running check does not delay the exit. A start may raise, for lack of
                # memory: then the next password tries again, or one thread does the work.
                Thread(target=_work, args=arguments, name=f"password-{number}", daemon=True).start()
                self._jobs = jobs
            return jobs
        return self._jobs


def _bcrypt() -> Callable[[bytes, bytes], bool]:
    from bcrypt import checkpw

    return checkpw


def _work(jobs: SimpleQueue[_Job], check: Callable[[bytes, bytes], bool]) -> None:
    while True:
        password, stored, report = jobs.get()
        matches = False
        try:
            matches = check(password, stored)
        except ValueError:
            # bcrypt rejects some input, such as a zero byte: it matches no password.
            pass
        except Exception:  # noqa: BLE001  (the thread must survive for the next password)
            _LOG.exception("bcrypt failed")
        report(matches)
