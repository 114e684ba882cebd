"""The memory of answers that clients have taken in part: how much it is, and who is cut off for it."""

from __future__ import annotations

from collections import Counter
from typing import Protocol


class Reader(Protocol):
    """Who takes an answer."""

    @property
    def client(self) -> bytes:
        """Whom limits count it for."""

    def abort(self) -> None:
        """End now, without the rest."""


class Backlog:
    """The bodies that some client has not taken in full, each counted once, however many share it.

    A page is let go of at the next tick; who is slow keeps it. When more than `most` bytes are kept so, the
    client that waits to take most is cut off, its oldest answer first, until they are fewer: whoever is
    quick, and a newcomer, are not asked to pay for the slow ones. The last one is left alone: an answer may
    be as big as it is.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._readers: dict[Reader, bytes] = {}
        # By the identity of a body that is kept alive by its readers here.
        self._shared: Counter[int] = Counter()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._readers)

    def hold(self, reader: Reader, body: bytes) -> None:
        """This reader has yet to take the end of this body."""
        self.release(reader)
        self._readers[reader] = body
        self._shared[id(body)] += 1
        if self._shared[id(body)] == 1:
            self.bytes += len(body)
        while self.bytes > self._most and len(self._readers) > 1:
            slowest = self._slowest()
            self.release(slowest)
            slowest.abort()

    def release(self, reader: Reader) -> None:
        """It has taken all, or has gone. Idempotent."""
        body = self._readers.pop(reader, None)
        if body is None:
            return
        self._shared[id(body)] -= 1
        if not self._shared[id(body)]:
            del self._shared[id(body)]
            self.bytes -= len(body)

    def _slowest(self) -> Reader:
        waiting: Counter[bytes] = Counter()
        for reader, body in self._readers.items():
            waiting[reader.client] += len(body)
        greediest = waiting.most_common(1)[0][0]
        return next(reader for reader in self._readers if reader.client == greediest)
