"""A Block as it lies in the queue: compressed, behind a header by which it can be found and checked.

    magic 4 | crc 4 | length 4 | raw 4 | shard 4 | samples 4 | accepted 8 | newest 8 | body (length)

Numbers are little endian; the crc (zlib's) is of everything behind it. A sealed segment ends with a Seal,
which sums up what is in it, so that opening a long queue reads a few bytes of each file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Final, NamedTuple
from zlib import crc32

import cramjam

from gpuledger.exposition.remote_write import varint


class Block(NamedTuple):
    """Some samples as an uncompressed WriteRequest.

    `shard` is a hash of whose samples these are (the target), 0 to 2^32 - 1: blocks with the same one are
    delivered in the order in which they were accepted, so a series must always have the same one. `samples`
    counts them; `oldest` and `newest` are their timestamps in unix milliseconds.
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
_SEAL: Final = Struct("<4sIQQQqq")
_SUMS: Final = Struct("<QQQqq")
HEADER_BYTES: Final = _HEADER.size
SEAL_BYTES: Final = _SEAL.size
# No Block comes near it: a length above it is a broken header.
LONGEST: Final = 256 << 20


class Record(NamedTuple):
    """`body` is a snappy block without the length that it begins with, which is `raw`; times in unix ms."""

    shard: int
    samples: int
    raw: int
    accepted: int
    newest: int
    body: bytes


class Sums(NamedTuple):
    """What some records are together; `first` and `last` are when they were accepted, 0 if there are none."""

    blocks: int = 0
    samples: int = 0
    bytes: int = 0
    first: int = 0
    last: int = 0

    def plus(self, record: Record) -> Sums:
        """With one more."""
        return Sums(
            self.blocks + 1,
            self.samples + record.samples,
            self.bytes + len(record.body),
            self.first or record.accepted,
            max(self.last, record.accepted),
        )


def record_of(block: Block, accepted: int) -> Record:
    """The Block, compressed."""
    packed = bytes(cramjam.snappy.compress_raw(block.payload))
    raw = len(block.payload)
    return Record(block.shard, block.samples, raw, accepted, block.newest, packed[len(varint(raw)) :])


def joined(records: Sequence[Record]) -> bytes:
    """One snappy block of all payloads in a row, not compressed anew.

    What follows the length in a snappy block is literals, and copies of bytes that lie so far back: all that
    a record copies lies within itself, so records stand behind each other as well as alone.
    """
    bodies = [record.body for record in records]
    return varint(sum(record.raw for record in records)) + b"".join(bodies)


def header_of(record: Record) -> bytes:
    """What stands before the body."""
    shard, samples, raw, accepted, newest, body = record
    checked = _CHECKED.pack(len(body), raw, shard, samples, accepted, newest)
    return b"%b%b%b" % (MAGIC, crc32(body, crc32(checked)).to_bytes(4, "little"), checked)


def length_at(buffer: bytes, at: int) -> int:
    """How long the record that seems to begin here is, header included; 0 where none does."""
    if buffer[at : at + 4] != MAGIC:
        return 0
    length = int.from_bytes(buffer[at + 8 : at + 12], "little")
    return HEADER_BYTES + length if length <= LONGEST else 0


def record_at(buffer: bytes, at: int) -> Record | None:
    """The record that begins here, all of it in the buffer; None when it is not whole."""
    magic, crc, length, raw, shard, samples, accepted, newest = _HEADER.unpack_from(buffer, at)
    end = at + HEADER_BYTES + length
    if magic != MAGIC or end > len(buffer) or crc32(memoryview(buffer)[at + 8 : end]) != crc:
        return None
    return Record(shard, samples, raw, accepted, newest, buffer[at + HEADER_BYTES : end])


def seal_of(sums: Sums) -> bytes:
    """The last bytes of a segment to which nothing will be added."""
    checked = _SUMS.pack(*sums)
    return b"%b%b%b" % (_SEAL_MAGIC, crc32(checked).to_bytes(4, "little"), checked)


def sums_of(seal: bytes) -> Sums | None:
    """What a Seal says; None for bytes that are none."""
    if len(seal) != SEAL_BYTES or seal[:4] != _SEAL_MAGIC:
        return None
    if crc32(seal[8:]).to_bytes(4, "little") != seal[4:8]:
        return None
    return Sums(*_SUMS.unpack(seal[8:]))


def cut(block: Block, most: int) -> Iterator[Block]:
    """Parts of at most `most` top-level fields, in order; with one sample a series that is as many samples.

    Raises ValueError when the payload is no WriteRequest.
    """
    payload = block.payload
    start, at, fields, left = 0, 0, 0, block.samples
    while at < len(payload):
        at = _after_field(payload, at)
        fields += 1
        if fields == most and at < len(payload):
            samples = min(fields, left)
            yield block._replace(payload=payload[start:at], samples=samples)
            start, fields, left = at, 0, left - samples
    yield block._replace(payload=payload[start:], samples=left)


def _after_field(payload: bytes, at: int) -> int:
    """Behind the length-delimited field that begins here."""
    length = shift = 0
    at += 1
    try:
        while (byte := payload[at]) > 127:
            length |= (byte & 127) << shift
            shift += 7
            at += 1
    except IndexError:
        raise ValueError("a payload that is no WriteRequest") from None
    at += 1 + (length | byte << shift)
    if at > len(payload):
        raise ValueError("a payload that is no WriteRequest")
    return at
