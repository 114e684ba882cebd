"""Record format of the queue: a compressed block behind a header with magic and checksum.

    magic 4 | crc 4 | length 4 | raw 4 | shard 4 | samples 4 | accepted 8 | newest 8 | body (length)

Numbers are little endian; the crc (zlib's) covers everything after it. A sealed segment ends with a seal that
holds its totals, so that opening a long queue reads only a few bytes of each file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Final, NamedTuple
from zlib import crc32

import cramjam

from gpuledger.exposition.remote_write import encode_varint


class Block(NamedTuple):
    """Samples as an uncompressed WriteRequest.

    `shard` is a hash of the target, 0 to 2^32 - 1. Blocks with the same hash are delivered in the order in
    which they were accepted, so all blocks of a series must have the same one. `samples` is their number;
    `oldest` and `newest` are timestamps in unix milliseconds.
    """

    shard: int
    payload: bytes
    samples: int
    oldest: int
    newest: int


MAGIC: Final = b"gLr1"
_SEAL_MAGIC: Final = b"gLs1"
_HEADER: Final = Struct("<4sIIIIIqq")
_CHECKED: Final = Struct("<IIIIqq")
_TOTALS: Final = Struct("<QQQqq")
HEADER_BYTES: Final = _HEADER.size
SEAL_BYTES: Final = 8 + _TOTALS.size
# Larger than any block: a greater length means a broken header.
MAX_BODY_BYTES: Final = 256 << 20


class Record(NamedTuple):
    """A compressed block. `body` is a snappy block without its length prefix `raw`; times in unix ms."""

    shard: int
    samples: int
    raw: int
    accepted: int
    newest: int
    body: bytes


class RecordTotals(NamedTuple):
    """Totals of some records; `first` and `last` are their acceptance times (unix ms; 0 if none)."""

    blocks: int = 0
    samples: int = 0
    bytes: int = 0
    first: int = 0
    last: int = 0

    def plus(self, record: Record) -> RecordTotals:
        """Return the totals with one more record."""
        return RecordTotals(
            self.blocks + 1,
            self.samples + record.samples,
            self.bytes + len(record.body),
            self.first or record.accepted,
            max(self.last, record.accepted),
        )


def compress_block(block: Block, accepted: int) -> Record:
    """Compress a block that was accepted at `accepted` (unix ms)."""
    packed = bytes(cramjam.snappy.compress_raw(block.payload))
    raw = len(block.payload)
    return Record(block.shard, block.samples, raw, accepted, block.newest, packed[len(encode_varint(raw)) :])


def join_records(records: Sequence[Record]) -> bytes:
    """Concatenate records to one snappy block without recompressing them.

    After its length prefix, a snappy block has only literals and back-references by distance. The references
    of a record stay within that record, so bodies can be concatenated.
    """
    bodies = [record.body for record in records]
    return encode_varint(sum(record.raw for record in records)) + b"".join(bodies)


def decompress_record(record: Record) -> bytes:
    """Return the record's WriteRequest."""
    return bytes(cramjam.snappy.decompress_raw(encode_varint(record.raw) + record.body))


def read_series(payload: bytes) -> Iterator[tuple[bytes, bytes, int]]:
    """Return each series of a WriteRequest: the whole field, its encoded labels, its number of samples."""
    start = 0
    while start < len(payload):
        end = after_field(payload, start)
        first = at = content_offset(payload, start)
        while at < end and payload[at : at + 1] == _LABELS_TAG:
            at = after_field(payload, at)
        labels, samples = payload[first:at], 0
        while at < end:
            at, samples = after_field(payload, at), samples + 1
        yield payload[start:end], labels, samples
        start = end


def decode_labels(labels: bytes) -> dict[str, str]:
    """Return encoded labels as names and values."""
    found, at = {}, 0
    while at < len(labels):
        end = after_field(labels, at)
        pair = labels[content_offset(labels, at) : end]
        middle = after_field(pair, 0)
        found[pair[content_offset(pair, 0) : middle].decode()] = pair[content_offset(pair, middle) :].decode()
        at = end
    return found


def encode_header(record: Record) -> bytes:
    """Return the bytes before the body."""
    shard, samples, raw, accepted, newest, body = record
    checked = _CHECKED.pack(len(body), raw, shard, samples, accepted, newest)
    return b"%b%b%b" % (MAGIC, crc32(body, crc32(checked)).to_bytes(4, "little"), checked)


def record_length(buffer: bytes, at: int) -> int:
    """Return the length, with header, of the record that seems to begin at `at`; 0 if none does."""
    if buffer[at : at + 4] != MAGIC:
        return 0
    length = int.from_bytes(buffer[at + 8 : at + 12], "little")
    return HEADER_BYTES + length if length <= MAX_BODY_BYTES else 0


def decode_record(buffer: bytes, at: int) -> Record | None:
    """Return the record that begins at `at`; None if it is incomplete or damaged."""
    magic, crc, length, raw, shard, samples, accepted, newest = _HEADER.unpack_from(buffer, at)
    end = at + HEADER_BYTES + length
    if magic != MAGIC or end > len(buffer) or crc32(memoryview(buffer)[at + 8 : end]) != crc:
        return None
    return Record(shard, samples, raw, accepted, newest, buffer[at + HEADER_BYTES : end])


def encode_seal(totals: RecordTotals) -> bytes:
    """Return the seal, which ends a complete segment."""
    checked = _TOTALS.pack(*totals)
    return b"%b%b%b" % (_SEAL_MAGIC, crc32(checked).to_bytes(4, "little"), checked)


def decode_seal(seal: bytes) -> RecordTotals | None:
    """Return the totals in a seal; None if the bytes are not a seal."""
    if len(seal) != SEAL_BYTES or seal[:4] != _SEAL_MAGIC:
        return None
    if crc32(seal[8:]).to_bytes(4, "little") != seal[4:8]:
        return None
    return RecordTotals(*_TOTALS.unpack(seal[8:]))


def split_block(block: Block, most: int) -> Iterator[Block]:
    """Split a block into parts of at most `most` series, in order; series with one sample count as samples.

    Raises ValueError if the payload is not a WriteRequest.
    """
    payload = block.payload
    start, at, fields, left = 0, 0, 0, block.samples
    while at < len(payload):
        at = after_field(payload, at)
        fields += 1
        if fields == most and at < len(payload):
            samples = min(fields, left)
            yield block._replace(payload=payload[start:at], samples=samples)
            start, fields, left = at, 0, left - samples
    yield block._replace(payload=payload[start:], samples=left)


# Field 1 of a TimeSeries; field 2 are its samples.
_LABELS_TAG: Final = b"\x0a"


def content_offset(payload: bytes, at: int) -> int:
    """Return the offset of the content of the length-delimited field that begins at `at`."""
    at += 1
    while payload[at] > 127:
        at += 1
    return at + 1


def after_field(payload: bytes, at: int) -> int:
    """Return the offset after the length-delimited field that begins at `at`."""
    length = shift = 0
    at += 1
    try:
        while (byte := payload[at]) > 127:
            length |= (byte & 127) << shift
            shift += 7
            at += 1
    except IndexError:
        raise ValueError("the payload is not a WriteRequest") from None
    at += 1 + (length | byte << shift)
    if at > len(payload):
        raise ValueError("the payload is not a WriteRequest")
    return at
