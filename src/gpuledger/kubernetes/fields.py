"""Typed access to fields of the API's JSON. A field of an undocumented type counts as absent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gpuledger.model.text import clean_name

# In characters; the API allows no longer names.
_LONGEST: Final = 253


def mapping_at(data: object, key: str) -> Mapping[str, Any]:
    """The mapping at `key`; empty if there is none."""
    value = data.get(key) if isinstance(data, Mapping) else None
    return value if isinstance(value, dict) else {}


def mappings_at(data: object, key: str) -> list[dict[str, Any]]:
    """The mappings in the list at `key`; empty if there is none."""
    value = data.get(key) if isinstance(data, Mapping) else None
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def name_at(data: object, key: str) -> str:
    """The name at `key`, cleaned for labels and logs; empty if there is none."""
    value = data.get(key) if isinstance(data, Mapping) else None
    return clean_name(value, _LONGEST) if isinstance(value, str) else ""
