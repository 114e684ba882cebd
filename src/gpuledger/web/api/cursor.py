"""Where an answer ended, as an opaque word with which the next one begins."""

from __future__ import annotations

import binascii
import json
from collections.abc import Sequence
from math import isfinite

from gpuledger.web.api.answers import Refused, bad_request

_LONGEST = 512


def cursor_of(numbers: Sequence[float]) -> str:
    """A word for these numbers."""
    text = json.dumps(list(numbers), separators=(",", ":")).encode("ascii")
    return binascii.b2a_base64(text, newline=False).decode("ascii").translate(_URL).rstrip("=")


def numbers_in(cursor: str, count: int) -> list[float]:
    """The numbers of a word that `cursor_of` made. Raises Refused."""
    try:
        if len(cursor) > _LONGEST:
            raise ValueError
        padded = cursor.translate(_BASE64) + "=" * (-len(cursor) % 4)
        found = json.loads(binascii.a2b_base64(padded, strict_mode=True))
        whole = isinstance(found, list) and len(found) == count
        # JSON's true is a number in Python.
        if not whole or not all(type(one) in (int, float) and isfinite(one) for one in found):
            raise ValueError
    except (ValueError, RecursionError, OverflowError):
        raise broken() from None
    return list(found)


def broken() -> Refused:
    """What is said of a word that no answer of this node had."""
    return bad_request("cursor", "cursor: the value of `next` in an answer is wanted, as it was")


_URL = str.maketrans("+/", "-_")
_BASE64 = str.maketrans("-_", "+/")
