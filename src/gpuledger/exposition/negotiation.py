"""Content negotiation: format and coding from the headers Accept and Accept-Encoding (RFC 9110, 12.5)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from gpuledger.exposition import text
from gpuledger.model.family import Family


@dataclass(frozen=True, slots=True, eq=False)
class Format:
    """A format of metrics pages. Compared by identity: this module defines both instances."""

    media_type: str
    versions: frozenset[str]
    content_type: str
    encode: Callable[[Iterable[Family]], bytes]


TEXT = Format("text/plain", frozenset({"0.0.4"}), text.TEXT_CONTENT_TYPE, text.encode_text)
# 0.0.1 is Prometheus's name for drafts of the format; its parser also reads 1.0.0.
OPENMETRICS = Format(
    "application/openmetrics-text",
    frozenset({"1.0.0", "0.0.1"}),
    text.OPENMETRICS_CONTENT_TYPE,
    text.encode_openmetrics,
)
FORMATS = (TEXT, OPENMETRICS)


# A small cache is enough: scrapers send few different headers, and headers have a limited length.
@lru_cache(maxsize=16)
def choose_format(accept: str) -> Format:
    """Returns the format that the scraper prefers; text 0.0.4 if it prefers none or the header is invalid.

    The most specific range determines the quality of a format. For equal qualities, the more specific range
    wins, then the first one, then text. Never raises.
    """
    best, best_rank = TEXT, (0.0, 0, 0)
    for offered in FORMATS:
        matches = [
            (specificity, quality, -position)
            for position, (media_type, version, quality) in enumerate(_elements(accept))
            if (specificity := _specificity(offered, media_type, version)) is not None
        ]
        specificity, quality, position = max(matches, default=(0, 0.0, 0))
        if quality > 0 and (quality, specificity, position) > best_rank:
            best, best_rank = offered, (quality, specificity, position)
    return best


def _specificity(offered: Format, media_type: str, version: str) -> int | None:
    """Returns how specifically a range matches the format, 0 to 3, or None if it does not match."""
    if media_type == offered.media_type:
        if not version:
            return 2
        return 3 if version in offered.versions else None
    major = offered.media_type.partition("/")[0]
    return None if version else {"*/*": 0, f"{major}/*": 1}.get(media_type)


@lru_cache(maxsize=16)
def accepts_gzip(accept_encoding: str) -> bool:
    """Returns whether the header allows gzip, by name or by `*`, with a quality above zero. Never raises."""
    qualities = {coding: quality for coding, _, quality in _elements(accept_encoding)}
    return next((qualities[name] > 0 for name in ("gzip", "x-gzip", "*") if name in qualities), False)


def _elements(header: str) -> Iterator[tuple[str, str, float]]:
    """Yields value, version and quality of each element, except elements with an invalid quality."""
    for element in header.split(","):
        value, *parameters = (part.strip().lower() for part in element.split(";"))
        version, quality = "", 1.0
        for parameter in parameters:
            name, _, given = parameter.partition("=")
            if name.strip() == "version":
                version = given.strip().strip('"')
            elif name.strip() == "q":
                quality = _quality(given.strip())
        if value and quality >= 0:
            yield value, version, quality


def _quality(text: str) -> float:
    """Parses a quality from 0 to 1; returns -1 for an invalid one."""
    try:
        quality = float(text)
    except ValueError:
        return -1.0
    return quality if 0 <= quality <= 1 else -1.0
