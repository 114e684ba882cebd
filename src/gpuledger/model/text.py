"""Text helpers: safe decoding, escaping and formatting of text from outside."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from re import compile as pattern
from typing import Final

from gpuledger.model.settings import text

_ESCAPES = pattern(r"(?:\\x[0-9a-f]{2})+")
MAX_NAME_LENGTH = 128
# Characters of a message of another program that an error quotes.
_SHORT_LINE: Final = 300


def decode_utf8(raw: bytes) -> str:
    """Decodes UTF-8. An invalid byte becomes `\\xNN`, so that different names remain different."""
    return raw.decode("utf-8", "backslashreplace")


def clean_name(text: str, longest: int = MAX_NAME_LENGTH) -> str:
    """Truncates to `longest` characters and escapes control characters.

    Line feeds and tabs are kept: exposition formats escape the former and allow the latter. Other C0
    characters, DEL and lone surrogates become `\\xNN` or `\\uNNNN`: a NUL stops Prometheus's parser, and a
    lone surrogate cannot be encoded.
    """
    cut = text[:longest]
    if cut.isprintable():
        return cut
    return "".join(_escape_control(char) for char in cut)[:longest]


def unescape_unit_name(name: str) -> str:
    r"""Decodes the `\xNN` escapes of systemd-escape(1) in a part of a unit name."""
    return _ESCAPES.sub(lambda run: decode_utf8(bytes.fromhex(run[0].replace("\\x", ""))), name)


def escape_to_one_line(text: str) -> str:
    """Escapes line breaks and control characters, for text in a terminal or a log."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def list_some(names: Iterable[str], most: int = 4, separator: str = ", ") -> str:
    """Returns the first names in one line, and how many more there are: `a, b and 3 more`."""
    listed = list(names)
    more = len(listed) - most
    shown = separator.join(map(escape_to_one_line, listed[:most]))
    return f"{shown}{';' * (separator == '; ')} and {more:,} more" if more > 0 else shown


def to_short_line(value: object) -> str:
    """Returns the text in one line of at most 300 characters, without control characters."""
    shown = "".join(sign if sign.isprintable() else " " for sign in str(value))
    return " ".join(shown.split())[:_SHORT_LINE]


def join_host_port(host: str, port: int | str) -> str:
    """Returns `HOST:PORT` for URLs and Host headers, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_utf8(encoding: str | None) -> bool:
    """Returns whether the encoding of a stream is UTF-8."""
    return (encoding or "").lower().replace("-", "") == "utf8"


def _escape_control(char: str) -> str:
    code = ord(char)
    if (code < 0x20 and char not in "\n\t") or code == 0x7F:
        return f"\\x{code:02x}"
    if 0xD800 <= code <= 0xDFFF:
        return f"\\u{code:04x}"
    return char


# Unit, its milliseconds, and whether it is used only if the rest of the duration is a multiple of it.
_UNITS: Final = (
    *(("y", 365 * 86_400_000, True), ("w", 7 * 86_400_000, True), ("d", 86_400_000, False)),
    *(("h", 3_600_000, False), ("m", 60_000, False), ("s", 1000, False), ("ms", 1, False)),
)


def format_duration(seconds: float) -> str:
    """Formats a duration like Prometheus (`1m30s`), rounded to 1 ms. `settings.duration` parses it."""
    rest = round(seconds * 1000)
    parts = ""
    for unit, size, exact_only in _UNITS:
        if rest >= size and not (exact_only and rest % size):
            parts += f"{rest // size}{unit}"
            rest %= size
    return parts or "0s"


def warn_of_unit(key: str, seconds: float) -> str:
    """Formats the log line about a setting that is a long duration without a unit."""
    # Durations have no exponent: a month is 2592000s.
    amount = f"{seconds:.15g}"
    return (
        f"{key}: {amount} has no unit and means {format_duration(seconds)}; write {amount}ms if you mean "
        f"milliseconds, otherwise {amount}s"
    )


def matches_any(name: str, patterns: tuple[str, ...]) -> bool:
    """Returns whether `name` matches a pattern, in which a trailing * stands for any ending."""
    return any(
        name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern for pattern in patterns
    )


def name_pattern(expected: str) -> Callable[[object], str]:
    """Returns a parser of one such pattern; `expected` begins the error message for an invalid one."""

    def parse(value: object) -> str:
        name = text(value).strip()
        if not name or "*" in name[:-1] or any(char.isspace() for char in name):
            raise ValueError(f"{expected}, with * only at the end")
        return name

    return parse
