"""Which of the fields takes seconds: found by timing ever smaller parts of the query, one part a tick.

Some drivers need seconds for a single field, and the answer comes only when all are told.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

log = logging.getLogger("gpuledger.smi")


class SlowFields:
    """Fields that take longer than `limit` seconds, of those that were timed; a limit of 0 times nothing.

    `known` are those found, by the seconds they took.
    """

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self.known: dict[str, float] = {}
        self._bare = 0.0
        self._is_timed = False
        self._suspects: list[tuple[str, ...]] = []

    def suspect(self, fields: Iterable[str], seconds: float) -> None:
        """Note that a query of these fields took so long; a search begins where that is too long, beside what
        the command took by itself when that was last looked at.
        """
        if self._limit and seconds - self._bare > self._limit and not self._suspects:
            self._is_timed = False
            self._suspects.append(tuple(fields))

    def next(self) -> tuple[str, ...] | None:
        """Fields to time, none of them for the time that the command takes by itself; None: no search."""
        if not self._suspects:
            return None
        return self._suspects[-1] if self._is_timed else ()

    def took(self, fields: tuple[str, ...], seconds: float) -> None:
        """What `next` gave took so many seconds."""
        if not fields:
            self._bare, self._is_timed = seconds, True
            return
        self._suspects.pop()
        own = seconds - self._bare
        if own <= self._limit:
            return
        if len(fields) > 1:
            half = len(fields) // 2
            self._suspects += [fields[half:], fields[:half]]
            return
        self.known[fields[0]] = own
        log.warning(
            "nvidia-smi takes %.1f s for %s alone: left out from now on; name it by --query-field-names, or "
            "raise --nvidia-smi-slow-field, to have it all the same",
            own,
            fields[0],
        )
