"""Names that a user lists, of which a trailing * stands for any ending."""

from __future__ import annotations

from collections.abc import Callable

from gpuledger.model.settings import text


def is_wanted(name: str, wanted: tuple[str, ...]) -> bool:
    """Whether `name` is one of the wanted, of which a trailing * stands for any ending."""
    return any(name.startswith(one[:-1]) if one.endswith("*") else name == one for one in wanted)


def wanted_name(wants: str) -> Callable[[object], str]:
    """A parser of one such name; `wants` says in an error what is wanted."""

    def parse(value: object) -> str:
        name = text(value).strip()
        if not name or "*" in name[:-1] or any(char.isspace() for char in name):
            raise ValueError(f"{wants}, a * only at the end")
        return name

    return parse
