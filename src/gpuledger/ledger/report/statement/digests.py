"""The digests of a statement: one over all of it, and one of each part, which says where it was altered.

The canonical form is JSON with sorted keys, without spaces, in ASCII: that of `jq -cSa`. The rows of a list
have digests, and so have its fields over all rows: where both differ is the field that was altered.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import sha256
from json import dumps
from typing import Any

CHECKS, HASH = "checks", "sha256"
ROWS, FIELDS = "rows", "fields"
# Hexadecimal digits of the digest of a part.
_SHORT = 16


def seal_statement(content: Mapping[str, Any]) -> dict[str, Any]:
    """The content with the digests of its parts and, over all this, its hash."""
    checked = {**content, CHECKS: _part_digests(content)}
    return {**checked, HASH: statement_hash(checked)}


def statement_hash(statement: Mapping[str, Any]) -> str:
    """The SHA-256 of everything in a statement but this hash itself."""
    return _digest({key: value for key, value in statement.items() if key != HASH})


def find_alterations(statement: Mapping[str, Any]) -> list[str]:
    """The places at which a statement is not as it was written, such as `rows[3].gpu_microseconds`.

    A place is `sha256` only if everything else is as it was written. Digests of parts that do not fit are
    found even if the hash was computed again.
    """
    stored = statement.get(CHECKS)
    content = {key: value for key, value in statement.items() if key not in (CHECKS, HASH)}
    if not isinstance(stored, dict):
        return [CHECKS]
    found: list[str] = []
    checks = _part_digests(content)
    for key in sorted(checks.keys() | stored.keys()):
        if checks.get(key) != stored.get(key):
            found += _places(key, content.get(key), checks.get(key), stored.get(key))
    return found or ([] if statement_hash(statement) == statement.get(HASH) else [HASH])


def _part_digests(content: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _digests_of(value) for key, value in content.items()}


def _digests_of(value: object) -> object:
    if isinstance(value, dict):
        return {key: _short(part) for key, part in value.items()}
    if isinstance(value, list) and value and all(isinstance(row, dict) for row in value):
        names = sorted({name for row in value for name in row})
        return {
            ROWS: list(map(_short, value)),
            FIELDS: {name: _short([row.get(name) for row in value]) for name in names},
        }
    return _short(value)


def _places(key: str, value: object, now: object, stored: object) -> Iterator[str]:
    """The altered places within a section."""
    if not (isinstance(now, dict) and isinstance(stored, dict)):
        yield key
    elif isinstance(value, list):
        yield from _places_in_table(key, now, stored)
    else:
        for name in sorted(now.keys() | stored.keys()):
            if now.get(name) != stored.get(name):
                yield f"{key}.{name}"


def _places_in_table(key: str, now: Mapping[str, Any], stored: Mapping[str, Any]) -> Iterator[str]:
    rows, fields = stored.get(ROWS), stored.get(FIELDS)
    if not isinstance(rows, list) or not isinstance(fields, dict):
        yield f"{CHECKS}.{key}"
        return
    if len(rows) != len(now[ROWS]):
        yield f"{key} (it has {len(now[ROWS])} rows, and was written with {len(rows)})"
        return
    altered = [place for place, (one, other) in enumerate(zip(now[ROWS], rows, strict=True)) if one != other]
    names = [
        name
        for name in sorted(now[FIELDS].keys() | fields.keys())
        if now[FIELDS].get(name) != fields.get(name)
    ]
    for place in altered if names else ():
        yield from (f"{key}[{place}].{name}" for name in names)
    if not names:
        yield from (f"{CHECKS}.{key}.{ROWS}[{place}]" for place in altered)
    if not altered:
        yield from (f"{CHECKS}.{key}.{FIELDS}.{name}" for name in names)


def _short(value: object) -> str:
    return _digest(value)[:_SHORT]


def _digest(value: object) -> str:
    # Numbers that no statement has (`OtherNumber`) are written by `str`, so that altered ones have a digest.
    text = dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return sha256(text.encode()).hexdigest()
