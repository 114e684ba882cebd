"""What an answer means for what was sent, and how long to wait before it is sent again."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC
from email.utils import parsedate_to_datetime
from enum import Enum
from typing import Final

# A receiver that asks for more patience than this, in seconds, is asked anew by then.
_LONGEST_WAIT: Final = 3600.0


class Verdict(Enum):
    """Delivered; to be sent again; refused for good."""

    DONE = "done"
    AGAIN = "again"
    REFUSED = "refused"


def verdict(status: int, *, retry_429: bool) -> Verdict:
    """As remote write 1.0 wants it: 5xx and 429 may pass, another 4xx would be the same the next time.

    A redirect is not followed and nothing is wrong with the samples: they wait until the URL is set right.
    """
    if 200 <= status < 300:
        return Verdict.DONE
    if 400 <= status < 500 and not (status == 429 and retry_429):
        return Verdict.REFUSED
    return Verdict.AGAIN


def retry_after(value: str, now: float) -> float:
    """Seconds to wait by a `Retry-After` of seconds or of a date; 0 for none and for what is neither.

    `now` is unix seconds.
    """
    text = value.strip()
    seconds = 0.0
    if text.isascii() and text.isdecimal():
        seconds = float(text[:9])
    elif text:
        with suppress(ValueError, OverflowError):
            date = parsedate_to_datetime(text)
            seconds = (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() - now
    return min(max(seconds, 0.0), _LONGEST_WAIT)


class Backoff:
    """Longer from failure to failure, and never the same for two agents whose receiver came back.

    `chance` answers numbers from 0 to 1.
    """

    def __init__(self, lowest: float, highest: float, chance: Callable[[], float]) -> None:
        self._lowest = lowest
        self._highest = max(lowest, highest)
        self._chance = chance
        self._failures = 0

    def reset(self) -> None:
        """All is well again."""
        self._failures = 0

    def next(self) -> float:
        """Seconds to wait after one more failure: half of the step to all of it."""
        step = min(self._highest, self._lowest * 2.0 ** min(self._failures, 60))
        self._failures += 1
        return step * (0.5 + self._chance() / 2)


def wanted_shards(
    now: int, lowest: int, highest: int, seconds_per_sample: float, samples_per_second: float, queued: int
) -> int:
    """How many requests at once keep up with what comes in and catch up with what is queued in a minute.

    `seconds_per_sample` is what a shard takes for one; within a third of the present number it stays.
    """
    wanted = seconds_per_sample * (samples_per_second + queued / 60)
    if not 0.7 * now <= wanted <= 1.3 * now:
        # Rounded up, and with something to spare, or the next peak would change it back.
        now = int(wanted * 1.1) + 1
    return min(max(now, lowest), highest)
