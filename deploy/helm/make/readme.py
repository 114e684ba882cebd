"""Generates the README's table of values, between its two markers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from values import Key

BEGIN = "<!-- values: begin, written by `make chart` -->\n"
END = "<!-- values: end -->\n"


def values_table(keys: Iterable[Key]) -> str:
    """Markdown table with a row per key in the order of values.yaml; sections are bold."""
    return "\n".join(["| value | default | meaning |", "|---|---|---|", *_rows(keys)]) + "\n"


def _rows(keys: Iterable[Key]) -> Iterator[str]:
    for key in keys:
        if key.children:
            yield f"| **`{key.path}`** | | {_cell(key.description)} |"
            yield from _rows(key.children)
        else:
            yield f"| `{key.path}` | {_default(key.default)} | {_cell(key.description)} |"


def replace_table(readme: str, rows: str) -> str:
    """README with these rows between the markers. Raises ValueError if a marker is missing."""
    before, found, rest = readme.partition(BEGIN)
    _, closed, after = rest.partition(END)
    if not found or not closed:
        raise ValueError(f"README.md: missing marker around the table of values; add {BEGIN!r} and {END!r}")
    return f"{before}{BEGIN}{rows}{END}{after}"


def _default(value: object) -> str:
    return f"`{json.dumps(value, ensure_ascii=False)}`".replace("|", "\\|")


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")
