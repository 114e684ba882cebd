"""Which labels of pods are told: those that the user names, since each is a label of series too."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gpuledger.model.text import clean_name


class LabelAllowlist:
    """Exact names, and beginnings with a trailing `*`; `*` alone allows all."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        given = tuple(names)
        self._exact = frozenset(name for name in given if not name.endswith("*"))
        self._beginnings = tuple(name[:-1] for name in given if name.endswith("*"))

    def of(self, labels: Mapping[str, object]) -> tuple[tuple[str, str], ...]:
        """The allowed ones of a pod's labels, sorted by name."""
        if not self._exact and not self._beginnings:
            return ()
        return tuple(
            sorted(
                (name, clean_name(value))
                for name, value in labels.items()
                if isinstance(value, str) and (name in self._exact or name.startswith(self._beginnings))
            )
        )
