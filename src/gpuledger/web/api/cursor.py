"""Where an answer ended, as an opaque word with which the next one begins."""

from __future__ import annotations

import json
from base64 import b64decode, urlsafe_b64encode
from collections.abc import Mapping, Sequence
from math import isfinite

from gpuledger.web.api.answers import Refused, bad_request

# Texts that were asked for are in it: no longer than a request may be.
_LONGEST = 16_384


def cursor_of(numbers: Sequence[float], asked: Mapping[str, str] | None = None) -> str:
    """A word for these numbers, and for the parameters with which they were `asked` for."""
    text = json.dumps([*numbers, *([asked] if asked else [])], separators=(",", ":")).encode("ascii")
    return urlsafe_b64encode(text).decode("ascii").rstrip("=")


def told_in(cursor: str, count: int) -> tuple[list[float], dict[str, str]]:
    """The numbers of a word that `cursor_of` made, and the parameters. Raises Refused."""
    try:
        if len(cursor) > _LONGEST:
            raise ValueError
        padded = cursor + "=" * (-len(cursor) % 4)
        found = json.loads(b64decode(padded, altchars="-_", validate=True))
        if not isinstance(found, list):
            raise ValueError
        asked = found.pop() if len(found) == count + 1 else {}
        # JSON's true is a number in Python.
        if len(found) != count or not all(type(one) in (int, float) and isfinite(one) for one in found):
            raise ValueError
        if not isinstance(asked, dict) or not all(isinstance(text, str) for text in asked.values()):
            raise ValueError
        # Half a surrogate is no text.
        "".join(asked.values()).encode()
    except (ValueError, RecursionError, OverflowError):
        raise broken() from None
    return found, asked


def another(parameter: str) -> Refused:
    """What is said of a parameter that is not what the cursor was made with."""
    return bad_request(
        parameter, f"{parameter}: the cursor goes on with another; give it as before, or the cursor alone"
    )


def broken() -> Refused:
    """What is said of a word that no answer of this node had."""
    return bad_request("cursor", "cursor: the value of `next` in an answer is wanted, as it was")
