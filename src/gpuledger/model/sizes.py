"""Sizes that people write, in bytes: `512MB`, `2GiB`, `1.5 GB`, or a bare number of bytes.

What MB is, the key decides: 1000 kB with `size`, as everywhere here; 1024 KB with `binary_size`, as in
Prometheus's configuration, for its keys and for those of ours that stand among them. MiB is always 1024 KiB.
"""

from __future__ import annotations

from re import ASCII, IGNORECASE
from re import compile as pattern
from typing import Final

_PREFIXES: Final = " kmgtpe"
_SIZE: Final = pattern(r"(\d{1,18})(?:\.(\d{1,18}))?\s*(?:([kmgtpe])(i?))?b?", ASCII | IGNORECASE)


def size(value: object) -> int:
    """Bytes; kB, MB, GB are 1000s, KiB, MiB, GiB are 1024s. Raises ValueError with what is wanted."""
    return _bytes(value, 1000)


def binary_size(value: object) -> int:
    """Bytes; KB, MB, GB are 1024s as KiB, MiB, GiB are. Raises ValueError with what is wanted."""
    return _bytes(value, 1024)


def _bytes(value: object, thousand: int) -> int:
    match = None if isinstance(value, bool) else _SIZE.fullmatch(str(value).strip())
    if match is None:
        raise ValueError("a size such as 512MB or 2GiB is wanted")
    whole, part, prefix, binary = match.groups("")
    unit: int = (1024 if binary else thousand) ** _PREFIXES.index(prefix.lower() or " ")
    # Exact: no float has all bytes of a large size.
    scale: int = 10 ** len(part)
    return (2 * int(whole + part) * unit + scale) // (2 * scale)
