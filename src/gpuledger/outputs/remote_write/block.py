"""What is handed over to be delivered: samples of one target at one moment, already encoded."""

from __future__ import annotations

from typing import NamedTuple


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
