"""Which of the fields takes seconds: found by timing ever smaller parts of the query, one part a tick.

Some drivers need seconds for a single field, and the answer comes only when all are told.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

log = logging.getLogger("gpuledger.smi")

# What a search times next: none of the fields, all of them, parts of them.
_DONE, _BARE, _ALL, _PARTS = range(4)


class SlowFields:
    """Fields that take longer than `limit` seconds, of those that were timed; a limit of 0 times nothing.

    `known` are those found, by the seconds they took.
    """

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self.known: dict[str, float] = {}
        # What the command takes without them, and with all but the slow ones, when they were last timed.
        self._bare = 0.0
        self._usual = 0.0
        self._stage = _DONE
        self._suspects: list[tuple[str, ...]] = []

    def suspect(self, fields: Iterable[str], seconds: float) -> None:
        """Note that a query of these fields took so long; a search begins where that is too long, beside what
        it usually takes.
        """
        if self._limit and seconds - self._usual > self._limit and self._stage == _DONE:
            self._stage = _BARE
            self._suspects = [tuple(fields)]

    def next(self) -> tuple[str, ...] | None:
        """Fields to time beside those always asked for: none of them for these alone; None is no search."""
        if self._stage == _DONE:
            return None
        return () if self._stage == _BARE else self._suspects[-1]

    def took(self, fields: tuple[str, ...], seconds: float) -> None:
        """What `next` gave took so many seconds."""
        if self._stage == _BARE:
            self._bare, self._stage = seconds, _ALL
            return
        if self._stage == _ALL:
            self._usual, self._stage = seconds, _PARTS
        self._suspects.pop()
        own = seconds - self._bare
        if own > self._limit and len(fields) == 1:
            self._find(fields[0], own)
        elif own > self._limit:
            half = len(fields) // 2
            self._suspects += [fields[half:], fields[:half]]
        if not self._suspects:
            self._stage = _DONE

    def _find(self, field: str, seconds: float) -> None:
        self.known[field] = seconds
        self._usual -= seconds
        log.warning(
            "nvidia-smi takes %.1f s for %s alone: left out from now on; name it by --query-field-names, or "
            "raise --nvidia-smi-slow-field, to have it all the same",
            seconds,
            field,
        )
