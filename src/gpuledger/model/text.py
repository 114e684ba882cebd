"""Text from outside, made safe to carry: any bytes in, short printable Unicode out."""

from __future__ import annotations

from re import Match
from re import compile as pattern

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
