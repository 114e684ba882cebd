"""The replacement texts of relabel rules: `$1`, `${name}` and `$$`, expanded as Go's regexp does."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Protocol

# A name is as long as it can be: `$1x` asks for a group called 1x.
_REFERENCE = re.compile(r"\$(?:(?P<dollar>\$)|(?P<bare>\w+)|\{(?P<braced>\w+)\})")


class Match(Protocol):
    """What is used of a match."""

    def group(self, number: int) -> str | None:
        """The text of a group; None when it took no part."""


class Template:
    """A text with references to the groups of a regular expression.

    A reference to a group that is not there or took no part expands to nothing; a dollar that begins no
    reference stands for itself.
    """

    def __init__(self, text: str, names: Mapping[str, int], groups: int) -> None:
        self.text = text
        self._parts = tuple(_parts(text, names, groups))
        self._plain = all(isinstance(part, str) for part in self._parts)
        self._constant = "".join(part for part in self._parts if isinstance(part, str))

    def expand(self, match: Match) -> str:
        """The text, for one match."""
        if self._plain:
            return self._constant
        return "".join(part if isinstance(part, str) else match.group(part) or "" for part in self._parts)


def _parts(text: str, names: Mapping[str, int], groups: int) -> list[str | int]:
    found: list[str | int] = []
    at = 0
    for reference in _REFERENCE.finditer(text):
        found.append(text[at : reference.start()])
        at = reference.end()
        name = reference["bare"] or reference["braced"]
        if name is None:
            found.append("$")
        else:
            number = _group(name, names)
            if number is not None and number <= groups:
                found.append(number)
    found.append(text[at:])
    return [part for part in found if part != ""]


def _group(name: str, names: Mapping[str, int]) -> int | None:
    """The number meant; Go takes no leading zeros."""
    if name.isascii() and name.isdigit():
        return None if len(name) > 1 and name[0] == "0" else int(name)
    return names.get(name)
