"""Prometheus remote write 1.0: samples as bytes of its `WriteRequest`, in parts that can be kept and joined.

A WriteRequest is a plain concatenation of `timeseries` fields, so requests can be joined like texts. A
series costs its labels once: everything before the eight bytes of the value never changes, and everything
after them is the same for all samples of one moment.

    timeseries (1): labels (1): name (1), value (2) ...   samples (2): value (1), timestamp (2)

The field numbers are those of prompb's types.proto and remote.proto.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import Final

# What Prometheus takes for "this series has ended": one NaN among many, told apart by its bits.
STALE: Final = (0x7FF0000000000002).to_bytes(8, "little")

_DOUBLE: Final = Struct("<d")
_VARINT_64: Final = (1 << 64) - 1
# A timestamp in milliseconds takes six bytes from February 1971 to May 2109.
_SIX_BYTES: Final = range(1 << 35, 1 << 42)
# Length of a Sample with such a timestamp: tag and double, tag and varint.
_SAMPLE_BYTES: Final = 16


def labels_bytes(labels: Iterable[tuple[str, str]]) -> bytes:
    """The `labels` fields of one series, sorted by the bytes of their names; an empty value is no label.

    Raises ValueError for a name that is empty or there twice, and for text that is not Unicode.
    """
    pairs = sorted((name.encode(), value.encode()) for name, value in labels)
    found = []
    before = b""
    for name, value in pairs:
        if name == before:
            raise ValueError(f"the label {name.decode()!r} is there twice" if name else "a label has no name")
        before = name
        if value:
            found.append(_bytes_field(1, _bytes_field(1, name) + _bytes_field(2, value)))
    return b"".join(found)


def series_prefix(labels: bytes) -> bytes:
    """All of a `timeseries` field that stands before the value, for a timestamp of six bytes.

    Followed by the eight bytes of a little-endian double and a `timestamp_tail`, it is a whole field.
    """
    size = len(labels) + 2 + _SAMPLE_BYTES
    return b"\x0a%b%b\x12\x10\x09" % (varint(size), labels)


def timestamp_tail(milliseconds: int) -> bytes:
    """What follows the value. Raises ValueError before February 1971 and after May 2109: `series_bytes`."""
    if milliseconds not in _SIX_BYTES:
        raise ValueError(f"{milliseconds} ms is no timestamp of six bytes")
    return b"\x10" + varint(milliseconds)


def series_bytes(labels: bytes, value: bytes, milliseconds: int) -> bytes:
    """One whole `timeseries` field: eight value bytes, and any timestamp of 64 bits (negative ones too)."""
    sample = b"\x09%b\x10%b" % (value, varint(milliseconds & _VARINT_64))
    return _bytes_field(1, labels + _bytes_field(2, sample))


def value_bytes(value: float) -> bytes:
    """A double, little endian."""
    return _DOUBLE.pack(value)


def varint(number: int) -> bytes:
    """A number from 0 on in protobuf's base 128, least first; also what a snappy block begins with."""
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    found.append(number)
    return bytes(found)


def _bytes_field(number: int, content: bytes) -> bytes:
    return b"%c%b%b" % (number << 3 | 2, varint(len(content)), content)
