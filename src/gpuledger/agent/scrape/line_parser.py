"""Line parser for text 0.0.4 and OpenMetrics, compatible with the lexers of Prometheus 2.42.

Text 0.0.4 is lenient about blanks and commas, OpenMetrics is not; one bad line rejects a page in both.
Accepted here but rejected by Prometheus, because the formats allow it: blanks before a name, more than one
blank in a TYPE, timestamps before 1970, exemplars of any series. Only this parser rejects a line break
within quotes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from math import isinf, isnan
from struct import Struct
from typing import Final, NamedTuple

_DOUBLE: Final = Struct("<d")
# Prometheus's normal NaN; its bits differ from those of a staleness marker.
NORMAL_NAN: Final = (0x7FF8000000000001).to_bytes(8, "little")

_NAME = rb"[a-zA-Z_:][a-zA-Z0-9_:]*+"
_LABEL = rb"[a-zA-Z_][a-zA-Z0-9_]*+"
_QUOTED = rb'"(?:\\.|[^\\"])*+"'
_BLANK = rb"[ \t]*+"

_TEXT_PAIR = _BLANK + _LABEL + _BLANK + b"=" + _BLANK + _QUOTED + _BLANK + b",?+"
_TEXT_LINE: Final = re.compile(
    _BLANK
    + (b"(?P<series>" + _NAME + b"(?:" + _BLANK + rb"\{(?:" + _TEXT_PAIR + b")*+" + _BLANK + rb"\})?+)")
    + (_BLANK + rb"(?P<value>[^{ \t]++)(?:[ \t]++(?P<time>-?+[0-9]++))?+" + _BLANK)
)

_PAIRS = _LABEL + b"=" + _QUOTED
_LABELS = rb"\{(?:" + _PAIRS + b"(?:," + _PAIRS + rb")*+)?+\}"
_OPEN_LINE: Final = re.compile(
    (b"(?P<series>" + _NAME + b"(?:" + _LABELS + b")?+)")
    + rb" (?P<value>[^ ]++)(?: (?!# \{)(?P<time>[^ ]++))?+"
    + (rb"(?: # (?P<exemplar>" + _LABELS + rb") (?P<seen>[^ ]++)(?: (?P<when>[^ ]++))?+)?+")
)
_OPEN_COMMENT: Final = re.compile(
    rb"# (?P<meta>HELP|TYPE|UNIT) (?P<name>" + _NAME + rb") (?P<text>.*+)", re.DOTALL
)
_ONLY_NAME: Final = re.compile(_NAME)
_OUTSIDE: Final = re.compile(b"(?:" + _LABEL + b'="(?:,' + _LABEL + rb'=")*+)?+\}')
_PAIR: Final = re.compile(b"(" + _LABEL + b")" + _BLANK + b"=" + _BLANK + rb'"((?:\\.|[^\\"])*+)"')
_ESCAPE: Final = re.compile(r'\\([\\"n])')
_NUMBER: Final = re.compile(rb"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_SPECIAL: Final = re.compile(rb"(?i)[+-]?inf(?:inity)?|nan")

# Longer texts are not cached, which bounds the memory that targets can fill.
LONGEST_CACHED: Final = 512

_TEXT_TYPES: Final = frozenset((b"counter", b"gauge", b"histogram", b"summary", b"untyped"))
_OPEN_TYPES: Final = frozenset(
    (b"counter", b"gauge", b"histogram", b"gaugehistogram", b"summary", b"info", b"stateset", b"unknown")
)


class BadLine(ValueError):
    """A line is neither a sample nor a comment of its format; the text says why."""


class BadSeries(BadLine):
    """A sample of an invalid series. It still counts as a scraped sample."""


class ParsedSample(NamedTuple):
    """A parsed sample line.

    `series` is name and labels as written (see `parse_labels`). `time` is the explicit timestamp in
    milliseconds. `plain`: the line is only the series, one blank and the value.
    """

    series: bytes
    value: bytes
    time: int | None
    plain: bool


@dataclass(frozen=True, slots=True)
class PageFormat:
    """A page format. `requires_eof`: a page must end with `# EOF`."""

    name: str
    requires_eof: bool

    def parse_line(self, line: bytes) -> ParsedSample | None:
        """Return the line's sample; None for a comment or a blank line. Raises BadLine."""
        return _usual_sample(line) or (_open_sample(line) if self.requires_eof else _text_sample(line))


TEXT_FORMAT: Final = PageFormat("text 0.0.4", requires_eof=False)
OPENMETRICS: Final = PageFormat("OpenMetrics", requires_eof=True)
EOF_LINE: Final = b"# EOF"


@lru_cache(maxsize=64)
def page_format(content_type: str) -> PageFormat:
    """Return the format for a Content-Type; anything but OpenMetrics is parsed as text 0.0.4."""
    media_type = content_type.partition(";")[0].strip().lower()
    return OPENMETRICS if media_type == "application/openmetrics-text" else TEXT_FORMAT


def parse_number(written: bytes) -> bytes:
    """Return a value as the eight little-endian bytes of its double.

    Raises BadLine for what Go's ParseFloat rejects.
    """
    if _NUMBER.fullmatch(written):
        value = float(written)
        if isinf(value):
            raise BadLine(f"the value {_shown(written)} is out of range")
    elif _SPECIAL.fullmatch(written):
        value = float(written)
        if isnan(value):
            return NORMAL_NAN
    else:
        raise BadLine(f"{_shown(written)} is not a number")
    return _DOUBLE.pack(value)


def parse_labels(series: bytes) -> dict[str, str]:
    """Return the labels of a series, its name as `__name__`; empty values are kept.

    Raises BadLine for text that is not UTF-8, and BadSeries for a duplicate label.
    """
    name, brace, inside = series.partition(b"{")
    labels = {"__name__": name.strip().decode()}
    if not brace:
        return labels
    parts = inside.split(b'"')
    names = _names_outside(parts) if b"\\" not in inside else None
    if names is not None:
        try:
            labels.update(zip(names, b'"'.join(parts[1::2]).decode().split('"'), strict=False))
        except UnicodeDecodeError:
            raise BadLine(f"a label value of {_shown(series)} is not UTF-8") from None
        number = len(names)
    else:
        pairs = _PAIR.findall(inside)
        for label, written in pairs:
            try:
                value = written.decode()
            except UnicodeDecodeError:
                raise BadLine(f"the value of label {label.decode()} is not UTF-8") from None
            if "\\" in value:
                value = _ESCAPE.sub(lambda found: "\n" if found[1] == "n" else found[1], value)
            labels[label.decode()] = value
        number = len(pairs)
    if len(labels) <= number:
        raise BadSeries(f"the series {_shown(series)} has a duplicate label")
    return labels


def _usual_sample(line: bytes) -> ParsedSample | None:
    """Parse the most common line shape without the whole grammar; None for all other lines."""
    series, blank, written = line.rpartition(b" ")
    if not blank or not _NUMBER.fullmatch(written):
        return None
    name, brace, inside = series.partition(b"{")
    if not (_is_name if len(name) <= LONGEST_CACHED else _is_name.__wrapped__)(name):
        return None
    if brace:
        parts = inside.split(b'"')
        # Text behind an unclosed quote would otherwise not be checked.
        if b"\\" in inside or len(parts) % 2 == 0 or _names_outside(parts) is None:
            return None
    return ParsedSample(series, parse_number(written), None, plain=True)


@lru_cache(maxsize=4096)
def _is_name(name: bytes) -> bool:
    return _ONLY_NAME.fullmatch(name) is not None


def _names_outside(parts: list[bytes]) -> tuple[str, ...] | None:
    """Return `_label_names` for a series that was split at its quotes."""
    outside = b'"'.join(parts[::2])
    return (_label_names if len(outside) <= LONGEST_CACHED else _label_names.__wrapped__)(outside)


@lru_cache(maxsize=4096)
def _label_names(outside: bytes) -> tuple[str, ...] | None:
    """Return the label names in the text outside the quotes, as in `gpu=",UUID="}`; None for other shapes."""
    if not _OUTSIDE.fullmatch(outside):
        return None
    return tuple(part.strip(",=") for part in outside.decode().split('"')[:-1])


def _text_sample(line: bytes) -> ParsedSample | None:
    match = _TEXT_LINE.fullmatch(line)
    if match is None:
        if not line.strip(b" \t"):
            return None
        if line.lstrip(b" \t").startswith(b"#"):
            _check_text_comment(line)
            return None
        raise BadLine(f"{_shown(line)} is not a valid sample of {TEXT_FORMAT.name}")
    series, value, time = match.group("series", "value", "time")
    value_bytes = parse_number(value)
    if time is None:
        return ParsedSample(series, value_bytes, None, line == series + b" " + value)
    return ParsedSample(series, value_bytes, _milliseconds(time), plain=False)


def _check_text_comment(line: bytes) -> None:
    words = line.strip(b" \t").replace(b"\t", b" ").split(None, 3)
    if line.lstrip(b" \t")[1:2] not in (b" ", b"\t") or len(words) < 2 or words[1] not in (b"HELP", b"TYPE"):
        return
    if len(words) == 2:
        # A bare `# HELP` without a trailing blank is an ordinary comment.
        if line.endswith((b" ", b"\t")):
            raise BadLine(f"{_shown(line)} has no metric name")
        return
    # In a HELP line only the beginning must be a name.
    if not (re.match if words[1] == b"HELP" else re.fullmatch)(_NAME, words[2]):
        raise BadLine(f"{_shown(line)} has no metric name")
    _check_meta(words[1], words[3] if len(words) > 3 else b"", _TEXT_TYPES, line)


def _open_sample(line: bytes) -> ParsedSample | None:
    match = _OPEN_LINE.fullmatch(line)
    if match is None:
        if line.startswith(b"# "):
            _check_open_comment(line)
            return None
        raise BadLine(f"{_shown(line)} is not a valid sample of {OPENMETRICS.name}")
    series, value, time, exemplar = match.group("series", "value", "time", "exemplar")
    value_bytes = parse_number(value)
    if exemplar is not None:
        parse_labels(exemplar)
        parse_number(match["seen"])
        if match["when"] is not None:
            _seconds(match["when"])
    if time is None:
        return ParsedSample(series, value_bytes, None, exemplar is None)
    return ParsedSample(series, value_bytes, _seconds(time), plain=False)


def _check_open_comment(line: bytes) -> None:
    match = _OPEN_COMMENT.fullmatch(line)
    if match is None:
        raise BadLine(f"{_shown(line)} is not a valid comment of {OPENMETRICS.name}")
    kind, name, text = match.group("meta", "name", "text")
    if kind == b"UNIT":
        if text and not name.endswith(b"_" + text):
            raise BadLine(f"the unit {_shown(text)} is not a suffix of {name.decode()}")
        return
    _check_meta(kind, text, _OPEN_TYPES, line)


def _check_meta(kind: bytes, text: bytes, types: frozenset[bytes], line: bytes) -> None:
    if kind == b"TYPE" and text not in types:
        raise BadLine(f"{_shown(line)} has an unknown metric type")
    if kind == b"HELP":
        try:
            text.decode()
        except UnicodeDecodeError:
            raise BadLine(f"{_shown(line)} is not UTF-8") from None


def _seconds(written: bytes) -> int:
    """Convert a timestamp in seconds to milliseconds, truncated as in Go."""
    if not _NUMBER.fullmatch(written):
        raise BadLine(f"{_shown(written)} is not a timestamp")
    seconds = float(written)
    if isinf(seconds):
        raise BadLine(f"{_shown(written)} is not a timestamp")
    return _milliseconds(seconds * 1000)


def _milliseconds(written: bytes | float) -> int:
    try:
        time = int(written)
    except (OverflowError, ValueError):
        # Python's int() rejects thousands of digits.
        time = 2**63
    if not -(2**63) <= time < 2**63:
        raise BadLine("a timestamp is out of range")
    return time


def _shown(text: bytes) -> str:
    """Quote text for an error, shortened to fit one log line."""
    shown = text if len(text) <= 80 else text[:77] + b"..."
    return repr(shown.decode("utf-8", "backslashreplace"))
