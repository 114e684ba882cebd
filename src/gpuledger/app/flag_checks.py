"""Checks of the flags that a command line has, by the keys of their settings."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from gpuledger.config.load import settings_of
from gpuledger.model.errors import UsageError

Flags = Mapping[str, Sequence[str]]

# A remedy for `require_once`, of the commands that show the rows of one node.
ONE_NODE: Final = {"node.url": "name one node; a report of several is `gpuledger report --fleet`"}


def require_words(flags: Flags, kinds: Mapping[str, str]) -> None:
    """Raise UsageError for an empty value of a flag, such as that of a shell variable that is not set.

    `kinds` are what is expected, by key.
    """
    for key, what in kinds.items():
        if key in flags and not flags[key][-1].strip():
            raise UsageError(
                f"{_flag_of(key)}: expected {what}, not '{flags[key][-1]}'; is a shell variable not set?"
            )


def require_once(flags: Flags, remedies: Mapping[str, str]) -> None:
    """Raise UsageError for a flag with several values: all but the last would be left out without a word.

    `remedies` are by key.
    """
    for key, remedy in remedies.items():
        if len(set(flags.get(key, ()))) > 1:
            raise UsageError(f"{_flag_of(key)} has several values: {remedy}")


def refuse_other_flags(flags: Iterable[str], honored: Collection[str], why: str) -> None:
    """Raise UsageError for the first of these flags, by key, that is not honored; `why` follows its name."""
    for key in flags:
        if key not in honored:
            raise UsageError(f"{_flag_of(key)}{why}")


def choose_period(values: Mapping[str, Any], flags: Flags, section: str = "report") -> str:
    """The period of `--in` if it counts, else empty: flags win over the file and the environment.

    Raises UsageError if both it and an end of the range are given in the same place, or if a flag is empty.
    """
    period, ends = f"{section}.in", (f"{section}.since", f"{section}.until")
    kinds = {period: "a period", **dict.fromkeys(ends, "a time"), "state_dir": "a directory"}
    require_words(flags, kinds)
    if not values.get(period):
        return ""
    given = [key for key in ends if key in values]
    if period in flags:
        given = [key for key in given if key in flags]
    elif any(key in flags for key in given):
        return ""
    if given:
        names = " and ".join(map(_flag_of, given))
        raise UsageError(f"--in and {names} exclude each other: give a whole period or its ends")
    return str(values[period])


def _flag_of(key: str) -> str:
    # Imported lazily: only an error names a flag.
    from gpuledger.config.commands import ALL_GROUPS

    return settings_of(ALL_GROUPS)[key].flags[0]
