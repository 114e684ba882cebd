"""A Block of more samples than fit into one request, in parts that do."""

from __future__ import annotations

from collections.abc import Iterator

from gpuledger.outputs.remote_write.block import Block


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
