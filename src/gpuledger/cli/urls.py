"""URLs that users give, and what strangers answer, in one line."""

from __future__ import annotations

from urllib.parse import SplitResult, urlsplit

from gpuledger.model.errors import UsageError

_LONGEST = 300


def split_url(url: str, flag: str, example: str) -> SplitResult:
    """The parts of an HTTP URL; `http://` may be left out. Raises UsageError in the words of the flag."""
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        right = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        right = False
    if not right or " " in url or not url.isprintable():
        # What stands before an @ may be a password, in whatever else is wrong with it.
        named = one_line(url.rpartition("@")[2])
        raise UsageError(f"{flag}: a URL such as {example} is wanted, not '{named}'")
    return parts


def one_line(text: object) -> str:
    """In one line, and without what a terminal takes for more than text."""
    shown = "".join(sign if sign.isprintable() else " " for sign in str(text))
    return " ".join(shown.split())[:_LONGEST]
