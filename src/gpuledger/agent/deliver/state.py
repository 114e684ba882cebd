"""What one receiver's queue and sender have done so far, for people and for metrics."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from gpuledger.model.source import Clock

# Why samples were dropped, as `ReceiverState.dropped` has them.
BYTES: Final = "queue_bytes"
AGE: Final = "queue_age"
DISK: Final = "disk_full"
CORRUPT: Final = "corrupt"
REJECTED: Final = "rejected"
STOPPED: Final = "stopped"
REASONS: Final = (BYTES, AGE, DISK, CORRUPT, REJECTED, STOPPED)


@dataclass(frozen=True, slots=True)
class ReceiverState:
    """One moment of one receiver. Counts are since the start of the program; what is queued may be older.

    `queued_*` is what was accepted and is neither delivered nor dropped; `queued_bytes` of it are
    compressed, `memory_bytes` wait in memory because the disk does not take them, `disk_bytes` is what the
    files take. `oldest` is when the oldest queued block was accepted and `newest_sent` the youngest
    timestamp that was delivered, both in unix seconds. `requests` counts answers by status (`2xx` as one)
    and failures by their kind; `retried_samples` counts a sample each time that it was sent in vain and will
    be sent again; `dropped` counts samples by reason, one of REASONS, each with an entry. `failing`: the
    last request is to be sent again; `refusing`: nothing of the last batch was taken, and it was dropped.
    `corrupt_records` counts places of the files that could not be read, `torn_tails` writes that a crash had
    cut short.
    """

    name: str
    url: str
    shards: int
    queued_blocks: int
    queued_samples: int
    queued_bytes: int
    memory_bytes: int
    disk_bytes: int
    oldest: float | None
    accepted_samples: int
    sent_samples: int
    sent_bytes: int
    retried_samples: int
    newest_accepted: float | None
    newest_sent: float | None
    last_success: float | None
    last_error: str
    last_error_at: float | None
    failing: bool
    refusing: bool
    corrupt_records: int
    torn_tails: int
    requests: Mapping[str, int] = field(default_factory=dict)
    dropped: Mapping[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Counts:
    """As `ReceiverState` has them; times in unix seconds. `busy_seconds` were spent on what was delivered."""

    accepted_samples: int = 0
    sent_samples: int = 0
    sent_bytes: int = 0
    retried_samples: int = 0
    busy_seconds: float = 0.0
    newest_accepted: float | None = None
    newest_sent: float | None = None
    last_success: float | None = None
    last_error: str = ""
    last_error_at: float | None = None
    failing: bool = False
    refusing: bool = False
    requests: Counter[str] = field(default_factory=Counter)


_LOG = logging.getLogger(__name__)
_EVERY: Final = 60.0


class Sayings:
    """Lines about one receiver. Lines of the same kind are at least a minute apart."""

    def __init__(self, name: str, clock: Clock) -> None:
        self._name = name
        self._clock = clock
        self._said: dict[str, float] = {}

    def say(self, kind: str, text: str) -> None:
        """Warn, unless that was done for this kind within the last minute."""
        now = self._clock.elapsed()
        if now - self._said.get(kind, -_EVERY) >= _EVERY:
            self._said[kind] = now
            _LOG.warning("remote write to %s: %s", self._name, text)

    def over(self, kind: str, text: str) -> None:
        """Say that it is over, if it had been said that it was not."""
        if self._said.pop(kind, None) is not None:
            _LOG.warning("remote write to %s: %s", self._name, text)
