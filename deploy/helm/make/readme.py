"""The README's table of values, between its two marks."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from values import Key

BEGIN = "<!-- values: begin, written by `make chart` -->\n"
END = "<!-- values: end -->\n"


def table(keys: Iterable[Key]) -> str:
    """A row per key, in the order of the file; sections in bold."""
    return "\n".join(["| value | default | meaning |", "|---|---|---|", *_rows(keys)]) + "\n"


def _rows(keys: Iterable[Key]) -> Iterator[str]:
    for key in keys:
        if key.below:
            yield f"| **`{key.path}`** | | {_cell(key.description)} |"
            yield from _rows(key.below)
        else:
            yield f"| `{key.path}` | {_default(key.default)} | {_cell(key.description)} |"


def put(readme: str, rows: str) -> str:
    """The README with these rows. Raises ValueError where a mark is missing."""
    before, found, rest = readme.partition(BEGIN)
    _, closed, after = rest.partition(END)
    if not found or not closed:
        raise ValueError("README.md lacks the marks between which the values stand")
    return f"{before}{BEGIN}{rows}{END}{after}"


def _default(value: object) -> str:
    return f"`{json.dumps(value, ensure_ascii=False)}`".replace("|", "\\|")


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")
