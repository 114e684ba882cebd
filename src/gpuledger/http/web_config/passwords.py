"""Passwords checked against bcrypt hashes, off the event loop, each only once."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import OrderedDict
from collections.abc import Callable, Mapping
from queue import SimpleQueue
from threading import Thread
from typing import Final

try:
    # hashlib's own, without the 3.6 MiB of OpenSSL that hashlib loads besides.
    from _blake2 import blake2b
except ImportError:
    from hashlib import blake2b

_LOG = logging.getLogger(__name__)

# bcrypt itself ends there; its Python package refuses what Go's cuts.
_LONGEST: Final = 72

_Job = tuple[bytes, bytes, Callable[[bool], None]]


class Busy(Exception):
    """Too many passwords wait to be checked."""


class Passwords:
    """Says whether a password is the user's.

    Every name costs the same: one that is not there is checked against a made-up hash, whose cost is that of
    one of the users (always the same one for the same name). Answers are remembered under a keyed hash of
    name, hash and password, right and wrong ones apart, so that guessing does not push out the scrapers'.
    `check` is `bcrypt.checkpw`; it runs in `threads` threads, and at most `waiting` passwords are on their
    way at a time. Used by the event loop's thread alone.
    """

    def __init__(
        self,
        check: Callable[[bytes, bytes], bool] | None = None,
        *,
        threads: int = 2,
        waiting: int = 16,
        remembered: int = 128,
    ) -> None:
        self._check = check
        self._threads = threads
        self._waiting = waiting
        self._remembered = remembered
        self._secret = os.urandom(32)
        self._answers: dict[bool, OrderedDict[bytes, None]] = {True: OrderedDict(), False: OrderedDict()}
        self._running: dict[bytes, asyncio.Future[bool]] = {}
        self._jobs: SimpleQueue[_Job] | None = None

    def ask(self, users: Mapping[str, bytes], name: str, password: bytes) -> bool | asyncio.Future[bool]:
        """The answer, at once when remembered. Raises Busy. `users` are hashes by name, at least one."""
        known = users.get(name)
        stored = known if known is not None else self._made_up(users, name)
        key = self._keyed(name.encode("utf-8", "surrogatepass"), stored, password)
        for answer, remembered in self._answers.items():
            if key in remembered:
                remembered.move_to_end(key)
                return answer
        if key in self._running:
            return self._running[key]
        if len(self._running) >= self._waiting:
            raise Busy
        loop = asyncio.get_running_loop()
        future = self._running[key] = loop.create_future()

        def done(matches: bool) -> None:
            self._end(key, matches and known is not None)

        def tell(matches: bool) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(done, matches)

        self._queue().put((password[:_LONGEST], stored, tell))
        return future

    def _end(self, key: bytes, answer: bool) -> None:
        remembered = self._answers[answer]
        remembered[key] = None
        if len(remembered) > self._remembered:
            remembered.popitem(last=False)
        future = self._running.pop(key)
        if not future.done():
            future.set_result(answer)

    def _keyed(self, *parts: bytes) -> bytes:
        made = blake2b(key=self._secret, digest_size=32)
        for part in parts:
            made.update(len(part).to_bytes(8, "big") + part)
        return made.digest()

    def _made_up(self, users: Mapping[str, bytes], name: str) -> bytes:
        digest = self._keyed(name.encode("utf-8", "surrogatepass"))
        costs = sorted(hashed[4:6] for hashed in users.values())
        cost = costs[int.from_bytes(digest[:8], "big") % len(costs)]
        letters = digest.hex().encode()
        return b"$2b$" + cost + b"$" + letters[:21] + b"e" + letters[21:52]

    def _queue(self) -> SimpleQueue[_Job]:
        if self._jobs is None:
            self._jobs = SimpleQueue()
            for number in range(self._threads):
                # Daemons: the end of the program does not wait for a check.
                arguments = (self._jobs, self._check or _bcrypt())
                Thread(target=_work, args=arguments, name=f"password-{number}", daemon=True).start()
        return self._jobs


def _bcrypt() -> Callable[[bytes, bytes], bool]:
    from bcrypt import checkpw

    return checkpw


def _work(jobs: SimpleQueue[_Job], check: Callable[[bytes, bytes], bool]) -> None:
    while True:
        password, stored, tell = jobs.get()
        matches = False
        try:
            matches = check(password, stored)
        except ValueError:
            # What bcrypt cannot take, such as a zero byte, is nobody's password.
            pass
        except Exception:  # noqa: BLE001  (the next password needs this thread)
            _LOG.exception("bcrypt failed")
        tell(matches)
