"""Shell patterns of settings: whether one matches everything that another matches. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import lru_cache


@lru_cache(4096)
def pattern_covers(wide: str, narrow: str) -> bool:
    """Whether `wide` matches every text that `narrow` matches; also False if that is not certain."""
    # Matches the tokens of one pattern as if they were the characters of a text. `places` are the numbers of
    # tokens of `wide` that can stand for the tokens of `narrow` so far.
    tokens = _tokens(wide)
    places = _after_stars({0}, tokens)
    for token in _tokens(narrow):
        stepped = {place for place in places if place < len(tokens) and tokens[place] == "*"}
        stepped |= {
            place + 1 for place in places if place < len(tokens) and _token_covers(tokens[place], token)
        }
        places = _after_stars(stepped, tokens)
    return len(tokens) in places


def _tokens(pattern: str) -> list[str]:
    """The characters, classes and wildcards of a pattern; of neighboring wildcards `*` is last, and one."""
    found: list[str] = []
    place = 0
    while place < len(pattern):
        # As in fnmatch: a ] right after the bracket, or after !, belongs to the class.
        end = pattern.find("]", place + (3 if pattern[place + 1 : place + 2] == "!" else 2))
        token = pattern[place : end + 1] if pattern[place] == "[" and end > 0 else pattern[place]
        place += len(token)
        if found[-1:] == ["*"] and token in ("*", "?"):
            found[-1:] = ["*"] if token == "*" else ["?", "*"]
        else:
            found.append(token)
    return found


def _after_stars(places: set[int], tokens: Sequence[str]) -> set[int]:
    """These places, and those that follow if `*` matches nothing."""
    found = set(places)
    for place, token in enumerate(tokens):
        if place in found and token == "*":
            found.add(place + 1)
    return found


def _token_covers(wide: str, narrow: str) -> bool:
    if wide == "*" or narrow == "*":
        return False
    if wide in ("?", narrow):
        return True
    return wide.startswith("[") and len(narrow) == 1 and narrow != "?" and fnmatchcase(narrow, wide)
