"""Text from outside, made safe to carry: any bytes in, short printable Unicode out."""

from __future__ import annotations

from collections.abc import Callable
from re import Match
from re import compile as pattern
from typing import Final

from gpuledger.model.settings import text

_ESCAPES = pattern(r"(?:\\x[0-9a-f]{2})+")
LONGEST_NAME = 128


def from_bytes(raw: bytes) -> str:
    """Decode as UTF-8; a byte that is not UTF-8 becomes `\\xNN`, so different names stay different."""
    return raw.decode("utf-8", "backslashreplace")


def clean_name(text: str, longest: int = LONGEST_NAME) -> str:
    """Cut at `longest` characters and spell out control characters.

    Line feeds and tabs stay (every exposition format escapes the first and allows the second); the rest
    of C0, DEL and lone surrogates become `\\xNN` or `\\uNNNN`: a NUL ends Prometheus's parser, a surrogate
    cannot be encoded.
    """
    cut = text[:longest]
    if cut.isprintable():
        return cut
    return "".join(_spelled(char) for char in cut)[:longest]


def unit_unescaped(name: str) -> str:
    r"""Undo the `\xNN` of systemd-escape(1) in a part of a unit's name."""
    return _ESCAPES.sub(_bytes_of, name)


def _bytes_of(run: Match[str]) -> str:
    return from_bytes(bytes.fromhex(run[0].replace("\\x", "")))


def in_one_line(text: str) -> str:
    """Text for a terminal or a log: what would break the line or command a terminal becomes its escape."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def host_and_port(host: str, port: int | str) -> str:
    """`HOST:PORT`, an address of IPv6 in brackets, as URLs and the Host header have it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_utf8(encoding: str | None) -> bool:
    """Whether a stream of this encoding takes every character."""
    return (encoding or "").lower().replace("-", "") == "utf8"


def _spelled(char: str) -> str:
    code = ord(char)
    if (code < 0x20 and char not in "\n\t") or code == 0x7F:
        return f"\\x{code:02x}"
    if 0xD800 <= code <= 0xDFFF:
        return f"\\u{code:04x}"
    return char


# Milliseconds, and whether the unit is only for what is so many of it and no more.
_UNITS: Final = (
    *(("y", 365 * 86_400_000, True), ("w", 7 * 86_400_000, True), ("d", 86_400_000, False)),
    *(("h", 3_600_000, False), ("m", 60_000, False), ("s", 1000, False), ("ms", 1, False)),
)


def as_prometheus(seconds: float) -> str:
    """`1m30s`, to the millisecond: what `settings.duration` reads, too."""
    left = round(seconds * 1000)
    found = ""
    for unit, size, whole in _UNITS:
        if left >= size and not (whole and left % size):
            found += f"{left // size}{unit}"
            left %= size
    return found or "0s"


def is_wanted(name: str, wanted: tuple[str, ...]) -> bool:
    """Whether `name` is one of the wanted, of which a trailing * stands for any ending."""
    return any(name.startswith(one[:-1]) if one.endswith("*") else name == one for one in wanted)


def wanted_name(wants: str) -> Callable[[object], str]:
    """A parser of one such name; `wants` says in an error what is wanted."""

    def parse(value: object) -> str:
        name = text(value).strip()
        if not name or "*" in name[:-1] or any(char.isspace() for char in name):
            raise ValueError(f"{wants}, a * only at the end")
        return name

    return parse
