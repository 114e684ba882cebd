"""Log lines about trouble that lasts: at once, and then once a minute."""

from __future__ import annotations

import logging
from typing import Final

from gpuledger.model.source import Clock

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
