"""Allowlist of pod labels. Labels are exported only if listed, because each becomes a label of series."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gpuledger.model.text import clean_name, matches_any

# A DNS name of 253, a slash, and 63.
_LONGEST_NAME = 317


class LabelAllowlist:
    """Exact label names, and prefixes with a trailing `*`; `*` alone allows all labels."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._wanted = tuple(names)

    def select(self, labels: Mapping[str, object]) -> tuple[tuple[str, str], ...]:
        """The allowed labels of a pod, sorted by name."""
        return tuple(
            sorted(
                (clean_name(name, _LONGEST_NAME), clean_name(value))
                for name, value in labels.items()
                if isinstance(value, str) and matches_any(name, self._wanted)
            )
        )
