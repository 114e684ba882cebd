"""Which labels of pods are told: those that the user names, since each is a label of series too."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gpuledger.model.text import clean_name, is_wanted

# A DNS name of 253, a slash, and 63.
_LONGEST_NAME = 317


class LabelAllowlist:
    """Exact names, and beginnings with a trailing `*`; `*` alone allows all."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._wanted = tuple(names)

    def of(self, labels: Mapping[str, object]) -> tuple[tuple[str, str], ...]:
        """The allowed ones of a pod's labels, sorted by name."""
        return tuple(
            sorted(
                (clean_name(name, _LONGEST_NAME), clean_name(value))
                for name, value in labels.items()
                if isinstance(value, str) and is_wanted(name, self._wanted)
            )
        )
