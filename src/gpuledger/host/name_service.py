"""User names from the machine's name service (LDAP, SSSD, systemd), in a thread because it can hang."""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from threading import Condition, Thread
from time import monotonic
from typing import Final, NamedTuple

from gpuledger.host.steady_thread import keep_running
from gpuledger.model.text import clean_name

# In seconds. A directory that was down, or a user created meanwhile, is found at the next try.
_NAME_GOOD_FOR: Final = 3600.0
_MISS_GOOD_FOR: Final = 60.0
# All calls together wait this long in each period: a local cache (SSSD, nscd) answers in less than a
# millisecond. None waits while another answer is due.
_PATIENCE: Final = 0.01
_PATIENCE_PERIOD: Final = 1.0
_MOST_NAMES: Final = 1024


def read_name_service(uid: int) -> str:
    """The name of a user by getpwuid(3), empty if there is none. Blocks as long as the directory does."""
    import pwd

    try:
        return clean_name(pwd.getpwuid(uid).pw_name)
    except (KeyError, OSError, OverflowError):
        return ""


def read_uid(name: str) -> int | None:
    """The uid of a user by getpwnam(3), None if there is none. Blocks as long as the directory does."""
    import pwd

    try:
        return pwd.getpwnam(name).pw_uid
    except (KeyError, OSError, ValueError):
        return None


class _Answer(NamedTuple):
    name: str
    until: float


class NameService:
    """Caches names of users, and looks up unknown ones in a thread, which it starts for the first.

    `changes` grows whenever a name became known after `name` had returned none. Thread-safe.
    """

    def __init__(
        self,
        look_up: Callable[[int], str] = read_name_service,
        *,
        elapsed: Callable[[], float] = monotonic,
        patience: float = _PATIENCE,
        period: float = _PATIENCE_PERIOD,
    ) -> None:
        self.changes = 0
        self._look_up = look_up
        self._elapsed = elapsed
        self._patience, self._period = patience, period
        # How long calls may still wait, and when that was last renewed.
        self._patience_left = patience
        self._renewed = elapsed()
        self._answers: dict[int, _Answer] = {}
        # By uid: whether `name` has returned none since the request.
        self._pending: dict[int, bool] = {}
        self._queue: SimpleQueue[int] = SimpleQueue()
        self._answered = Condition()
        self._thread: Thread | None = None

    def name(self, uid: int) -> str:
        """The user's name; empty if there is none, or as long as it is not known."""
        with self._answered:
            known, now = self._answers.get(uid), self._elapsed()
            if (known is None or known.until <= now) and uid not in self._pending:
                is_first = not self._pending
                self._ask(uid)
                if known is None and is_first:
                    self._wait(uid, now)
            found = self._answers.get(uid)
            name = found.name if found else ""
            if uid in self._pending and not name:
                self._pending[uid] = True
            return name

    def _wait(self, uid: int, now: float) -> None:
        if now - self._renewed >= self._period:
            self._renewed, self._patience_left = now, self._patience
        if self._patience_left > 0:
            self._answered.wait_for(lambda: uid in self._answers, self._patience_left)
            self._patience_left -= self._elapsed() - now

    def _ask(self, uid: int) -> None:
        self._pending[uid] = False
        self._queue.put(uid)
        if self._thread is None:
            self._thread = Thread(
                target=keep_running, args=(self._run, lambda: False), name="user names", daemon=True
            )
            self._thread.start()

    def _run(self) -> None:
        while True:
            uid = self._queue.get()
            try:
                self._answer(uid, self._look_up(uid))
            except BaseException:
                # The next call looks it up again.
                self._pending.pop(uid, None)
                raise

    def _answer(self, uid: int, name: str) -> None:
        with self._answered:
            before = self._answers.get(uid)
            if len(self._answers) >= _MOST_NAMES:
                self._answers.clear()
            # A directory that is down for a while takes no name away.
            kept = name or (before.name if before else "")
            until = self._elapsed() + (_NAME_GOOD_FOR if name else _MISS_GOOD_FOR)
            self._answers[uid] = _Answer(kept, until)
            was_missed = self._pending.pop(uid, False)
            self.changes += was_missed and bool(name)
            self._answered.notify_all()
