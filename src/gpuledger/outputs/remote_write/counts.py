"""What a sender has done, as it goes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


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
