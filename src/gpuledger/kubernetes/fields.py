"""Fields of the API's JSON: what is not of its documented type is as if it were not there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gpuledger.model.text import clean_name

# In characters: no name of the API is longer.
_LONGEST: Final = 253


def mapping(told: object, key: str) -> Mapping[str, Any]:
    """A mapping below a key; an empty one where there is none."""
    value = told.get(key) if isinstance(told, Mapping) else None
    return value if isinstance(value, dict) else {}


def elements(told: object, key: str) -> list[dict[str, Any]]:
    """The mappings of a list below a key."""
    value = told.get(key) if isinstance(told, Mapping) else None
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def name(told: object, key: str) -> str:
    """A name below a key, safe to carry; empty where there is none."""
    value = told.get(key) if isinstance(told, Mapping) else None
    return clean_name(value, _LONGEST) if isinstance(value, str) else ""
