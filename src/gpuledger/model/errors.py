"""The whole error vocabulary: who must act, and what the one line says."""

from __future__ import annotations

from collections.abc import Iterable

from gpuledger.model.text import in_one_line


class GpuledgerError(Exception):
    """An error whose text is one line for the user: it names the thing and the remedy.

    What it quotes may come from a stranger: a line break or another control character in it is spelled out.
    """

    exit_code = 1

    def __str__(self) -> str:
        return in_one_line(super().__str__())


class UsageError(GpuledgerError):
    """The user asked for something that is not there or cannot be honoured. Exit code 2."""

    exit_code = 2


class SourceUnavailable(GpuledgerError):
    """The machine cannot be read now: no driver, library gone, command missing. Worth another try later.

    `reason` is short and stable (`LIBRARY_NOT_FOUND`), fit for a label; the text carries the remedy.
    """

    def __init__(self, text: str, reason: str = "unavailable") -> None:
        super().__init__(text)
        self.reason = reason


def unknown(kind: str, given: str, valid: Iterable[str], place: str = "") -> UsageError:
    """`unknown KIND 'given'; did you mean 'nearest'?`, or the valid ones when none is near.

    `place` stands before a name and is no part of it: with it, everything would be near.
    """
    return UsageError(f"unknown {kind} '{place}{given}'; {hint(given, valid, place)}")


def hint(given: str, valid: Iterable[str], place: str = "") -> str:
    """What may have been meant: the name nearest to the one given, or all when none is near."""
    # Only the unlucky pay for it.
    from difflib import get_close_matches

    names = sorted(valid)
    near = get_close_matches(given, names, n=1, cutoff=0.5)
    return f"did you mean '{place}{near[0]}'?" if near else f"valid: {', '.join(names)}"
