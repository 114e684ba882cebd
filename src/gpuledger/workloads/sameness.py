"""Whether answers still hold: they do while all that they rest on is the very same objects."""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_


def same_objects(one: Sequence[object], other: Sequence[object]) -> bool:
    """True for the very same objects in the same order. Equal ones will not do: a Gpu is equal to its later
    self under another index.
    """
    return len(one) == len(other) and all(map(is_, one, other))
