"""User names from the machine's name service (LDAP, SSSD, systemd), in a thread because it can hang."""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from threading import Condition, Thread
from time import monotonic
from typing import Final, NamedTuple

from gpuledger.model.text import clean_name

# In seconds. A directory that was down, or a user created meanwhile, is found at the next try.
_NAME_GOOD_FOR: Final = 3600.0
_MISS_GOOD_FOR: Final = 60.0
# A tick waits this long for the first answer, which a local cache (SSSD, nscd) gives in less than a
# millisecond; it never waits while another answer is due.
_PATIENCE: Final = 0.01
_MOST_NAMES: Final = 1024


def read_name_service(uid: int) -> str:
    """The name of a user by getpwuid(3), empty if there is none. Blocks as long as the directory does."""
    import pwd

    try:
        return clean_name(pwd.getpwuid(uid).pw_name)
    except (KeyError, OSError, OverflowError):
        return ""


class _Answer(NamedTuple):
    name: str
    until: float


class NameService:
    """Caches names of users, and looks up unknown ones in a thread, which it starts for the first.

    `changes` grows whenever a name became known after `name` had returned none.
    """

    def __init__(
        self,
        look_up: Callable[[int], str] = read_name_service,
        *,
        elapsed: Callable[[], float] = monotonic,
        patience: float = _PATIENCE,
    ) -> None:
        self.changes = 0
        self._look_up = look_up
        self._elapsed = elapsed
        self._patience = patience
        self._answers: dict[int, _Answer] = {}
        self._pending: set[int] = set()
        self._queue: SimpleQueue[int] = SimpleQueue()
        self._answered = Condition()
        self._thread: Thread | None = None

    def name(self, uid: int) -> str:
        """The user's name; empty if there is none, or as long as it is not known."""
        with self._answered:
            known = self._answers.get(uid)
            if (known is None or known.until <= self._elapsed()) and uid not in self._pending:
                is_first = not self._pending
                self._ask(uid)
                if known is None and is_first:
                    self._answered.wait_for(lambda: uid in self._answers, self._patience)
            found = self._answers.get(uid)
            return found.name if found else ""

    def _ask(self, uid: int) -> None:
        self._pending.add(uid)
        self._queue.put(uid)
        if self._thread is None:
            self._thread = Thread(target=self._run, name="user names", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            uid = self._queue.get()
            name = self._look_up(uid)
            with self._answered:
                before = self._answers.get(uid)
                if len(self._answers) >= _MOST_NAMES:
                    self._answers.clear()
                # A directory that is down for a while takes no name away.
                kept = name or (before.name if before else "")
                until = self._elapsed() + (_NAME_GOOD_FOR if name else _MISS_GOOD_FOR)
                self._answers[uid] = _Answer(kept, until)
                self._pending.discard(uid)
                self.changes += bool(name)
                self._answered.notify_all()
