"""State and counters of one receiver, for the status page and metrics; and its rate-limited log."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from gpuledger.model.source import Clock

# Reasons for dropped samples: the keys of `ReceiverState.dropped`.
BYTES: Final = "queue_bytes"
AGE: Final = "queue_age"
DISK: Final = "disk_full"
CORRUPT: Final = "corrupt"
REJECTED: Final = "rejected"
STOPPED: Final = "stopped"
REASONS: Final = (BYTES, AGE, DISK, CORRUPT, REJECTED, STOPPED)


@dataclass(kw_only=True)
class ReceiverCounts:
    """Results of one receiver, counted since the start of the program. Times are unix seconds.

    `newest_sent`: newest delivered timestamp. `sent_metadata`: delivered metadata of families, repeatedly.
    `requests`: responses by status (all 2xx as `2xx`) and failures
    by kind. `retried_samples`: samples of failed attempts, counted at every attempt. `busy_seconds`: send
    time of deliveries. `failing`: the last request failed and is retried. `refusing`: the receiver rejected
    the whole last batch, which was dropped.
    """

    accepted_samples: int = 0
    sent_samples: int = 0
    sent_bytes: int = 0
    sent_metadata: int = 0
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


@dataclass(kw_only=True)
class ReceiverState(ReceiverCounts):
    """Snapshot of one receiver: its counts and its queue. Queued samples may be older than the program.

    `queued_*`: accepted and neither delivered nor dropped; `queued_bytes` compressed. `memory_bytes`: queued
    in memory because the disk is not writable. `disk_bytes`: size of the files. `oldest`: acceptance time of
    the oldest queued block in unix seconds. `dropped`: samples by reason, with an entry for each of REASONS.
    `corrupt_records`: skipped parts of the files. `torn_tails`: writes that a crash interrupted.
    `refused_series`: series of which the receiver refused the last sample. `protocol`: version of remote
    write, empty while it is unknown.
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
    corrupt_records: int
    torn_tails: int
    refused_series: int
    protocol: str = ""
    dropped: Mapping[str, int] = field(default_factory=dict)


_LOG = logging.getLogger(__name__)
_INTERVAL: Final = 60.0


class ThrottledLog:
    """Log of one receiver, limited to one message of each kind per minute."""

    def __init__(self, name: str, clock: Clock) -> None:
        self._name = name
        self._clock = clock
        self._logged_at: dict[str, float] = {}

    def warn(self, kind: str, text: str) -> None:
        """Log a warning, unless one of this kind was logged within the last minute."""
        now = self._clock.elapsed()
        if now - self._logged_at.get(kind, -_INTERVAL) >= _INTERVAL:
            self._logged_at[kind] = now
            _LOG.warning("remote write to %s: %s", self._name, text)

    def log_recovery(self, kind: str, text: str) -> None:
        """Log a recovery, if a warning of this kind was logged."""
        if self._logged_at.pop(kind, None) is not None:
            _LOG.warning("remote write to %s: %s", self._name, text)
