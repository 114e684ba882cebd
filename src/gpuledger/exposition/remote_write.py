"""Encodes samples for Prometheus remote write 1.0, as parts of a `WriteRequest` that can be cached.

A WriteRequest is a concatenation of `timeseries` fields, so encoded parts can be concatenated. Labels are
encoded once per series: the bytes before the eight bytes of the value never change, and those after them are
the same for all samples of one timestamp.

    timeseries (1): labels (1): name (1), value (2) ...   samples (2): value (1), timestamp (2)

The field numbers are those of prompb's types.proto and remote.proto.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import Final, NamedTuple

# Prometheus's staleness marker, which ends a series: the NaN with these bits.
STALE: Final = (0x7FF0000000000002).to_bytes(8, "little")

# The little-endian double of a value.
encode_value: Final = Struct("<d").pack
_VARINT_64: Final = (1 << 64) - 1
# Timestamps in milliseconds from February 1971 to May 2109, which have six bytes.
_SIX_BYTES: Final = range(1 << 35, 1 << 42)
# Length of a Sample with such a timestamp: tag and double, tag and varint.
_SAMPLE_BYTES: Final = 16
# By the words of OpenMetrics' TYPE; all others, such as untyped, are 0.
METRIC_TYPES: Final = {
    word: number
    for number, word in enumerate(
        ("counter", "gauge", "histogram", "gaugehistogram", "summary", "info", "stateset"), 1
    )
}


class FamilyMetadata(NamedTuple):
    """HELP, TYPE and UNIT of a metric family; `kind` is a number of METRIC_TYPES, 0 if unknown."""

    family: str
    kind: int = 0
    help: str = ""
    unit: str = ""


def encode_label_fields(labels: Iterable[tuple[str, str]]) -> bytes:
    """Encodes the `labels` fields of one series, sorted by the bytes of their names; omits empty values.

    Raises ValueError for an empty or repeated name, and for text that cannot be encoded.
    """
    pairs = sorted((name.encode(), value.encode()) for name, value in labels)
    fields = []
    previous = b""
    for name, value in pairs:
        if name == previous:
            raise ValueError(f"the label {name.decode()!r} is repeated" if name else "a label has no name")
        previous = name
        if value:
            fields.append(encode_bytes_field(1, encode_bytes_field(1, name) + encode_bytes_field(2, value)))
    return b"".join(fields)


def encode_series_prefix(labels: bytes) -> bytes:
    """Encodes the part of a `timeseries` field before the value, for a timestamp of six bytes.

    With an `encode_value` and an `encode_timestamp` appended, it is a complete field.
    """
    size = len(labels) + 2 + _SAMPLE_BYTES
    return b"\x0a%b%b\x12\x10\x09" % (encode_varint(size), labels)


def encode_timestamp(milliseconds: int) -> bytes:
    """Encodes the part after the value.

    Raises ValueError before February 1971 and after May 2109; use `encode_series` for such timestamps.
    """
    if milliseconds not in _SIX_BYTES:
        raise ValueError(f"{milliseconds} ms is not a timestamp of six bytes")
    return b"\x10" + encode_varint(milliseconds)


def encode_series(labels: bytes, value: bytes, milliseconds: int) -> bytes:
    """Encodes a complete `timeseries` field with eight value bytes and any signed 64-bit timestamp."""
    sample = b"\x09%b\x10%b" % (value, encode_varint(milliseconds & _VARINT_64))
    return encode_bytes_field(1, labels + encode_bytes_field(2, sample))


def encode_metadata(metadata: FamilyMetadata) -> bytes:
    """Encodes a complete `metadata` field (3): type (1), metric_family_name (2), help (4), unit (5)."""
    texts = ((2, metadata.family), (4, metadata.help), (5, metadata.unit))
    fields = [b"\x08%c" % metadata.kind] if metadata.kind else []
    fields += [encode_bytes_field(number, text.encode()) for number, text in texts if text]
    return encode_bytes_field(3, b"".join(fields))


def encode_varint(number: int) -> bytes:
    """Encodes a non-negative integer as a protobuf varint; a snappy block begins with one, too."""
    encoded = bytearray()
    while number > 127:
        encoded.append(number & 127 | 128)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def encode_bytes_field(number: int, content: bytes) -> bytes:
    """Encodes a length-delimited field with a number below 16."""
    return b"%c%b%b" % (number << 3 | 2, encode_varint(len(content)), content)
