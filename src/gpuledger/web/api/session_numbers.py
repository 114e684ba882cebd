"""Numbers of sessions as a reader of own rows gets them: the gaps between real ones count those of others."""

from __future__ import annotations

import os
from typing import Final

from gpuledger.model.hashing import blake2b

# Of this run of the program: after a restart, a session has another number.
_SECRET: Final = os.urandom(32)
_HALF_BITS: Final = 26
_HALF: Final = (1 << _HALF_BITS) - 1
_ROUNDS: Final = (0, 1, 2, 3)


def masked_number(number: int) -> int:
    """A number below 2^52 that says nothing about the session's number, and is of no other session."""
    left, right = number >> _HALF_BITS & _HALF, number & _HALF
    for turn in _ROUNDS:
        left, right = right, left ^ _mix(turn, right)
    return left << _HALF_BITS | right


def unmasked_number(masked: int) -> int:
    """The inverse of `masked_number`."""
    left, right = masked >> _HALF_BITS & _HALF, masked & _HALF
    for turn in reversed(_ROUNDS):
        left, right = right ^ _mix(turn, left), left
    return left << _HALF_BITS | right


def _mix(turn: int, half: int) -> int:
    """The round function of a Feistel network."""
    digest = blake2b(bytes([turn]) + half.to_bytes(4, "big"), key=_SECRET, digest_size=4).digest()
    return int.from_bytes(digest, "big") & _HALF
