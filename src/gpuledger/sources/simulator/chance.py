"""Chance without state: every draw is a pure function of numbers, the same on each machine and Python."""

from __future__ import annotations

_WORD = 2**64 - 1


def mix(*parts: int) -> int:
    """64 well-spread bits from whole numbers (the finalizer of splitmix64, folded over the parts).

    Python's own `hash` is not used: it is salted per process for text, and its form is no promise.
    """
    state = 0x9E3779B97F4A7C15
    for part in parts:
        state = (state ^ (part & _WORD)) * 0xBF58476D1CE4E5B9 & _WORD
        state ^= state >> 30
        state = state * 0x94D049BB133111EB & _WORD
        state ^= state >> 31
    return state


def number_of(text: str) -> int:
    """64 bits from text (FNV-1a over its UTF-8 bytes)."""
    state = 0xCBF29CE484222325
    for byte in text.encode("utf-8", "surrogatepass"):
        state = (state ^ byte) * 0x100000001B3 & _WORD
    return state


def hexadecimal(digits: int, *parts: int) -> str:
    """`digits` hexadecimal digits, for serial numbers and container ids."""
    words = range((digits + 15) // 16)
    return "".join(f"{mix(*parts, word):016x}" for word in words)[:digits]


def uuid_text(*parts: int) -> str:
    """Text in the form of a random (version 4) UUID."""
    raw = hexadecimal(32, *parts)
    variant = "89ab"[int(raw[16], 16) % 4]
    return f"{raw[:8]}-{raw[8:12]}-4{raw[13:16]}-{variant}{raw[17:20]}-{raw[20:]}"
