"""An owner as plain words, for JSON: what is known of it, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from gpuledger.model.workload import UNKNOWN, Workload

_NAMES = tuple(item.name for item in fields(Workload))


def owner_words(owner: Workload) -> dict[str, object]:
    """Field by name, without those of which nothing is known."""
    return {name: word for name in _NAMES if (word := getattr(owner, name)) != getattr(UNKNOWN, name)}


def owner_from(words: Mapping[str, Any]) -> Workload:
    """What `owner_words` said, also after JSON, which has lists for tuples."""
    if not words:
        return UNKNOWN
    labels = tuple((name, value) for name, value in words.get("labels", ()))
    return Workload(**{**words, "labels": labels})
