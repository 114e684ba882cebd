"""What is different in settings that were read anew, and what of it a running program can take."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuledger.model.settings import build, declared, reload_of


@dataclass(frozen=True, slots=True)
class Changes:
    """`values` are those to run with: the new ones, but the old ones of `pending`, which need a restart.

    `taken` are the keys that change now. Both are in the order of the groups.
    """

    values: Mapping[str, Any]
    taken: tuple[str, ...] = ()
    pending: tuple[str, ...] = ()


def changes(
    groups: Iterable[type],
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    fixed: Collection[type] = (),
) -> Changes:
    """Parsed values by key compared: a key that says its default is like one that says nothing.

    Groups in `fixed` need a restart here, whatever they say of themselves.
    """
    values = dict(after)
    taken: list[str] = []
    pending: list[str] = []
    for group in groups:
        old: Any = build(group, before)
        new: Any = build(group, after)
        restart = reload_of(group).restart
        for name, item, _ in declared(group):
            if getattr(old, name) == getattr(new, name):
                continue
            if group not in fixed and item.key not in restart:
                taken.append(item.key)
                continue
            pending.append(item.key)
            values.pop(item.key, None)
            if item.key in before:
                values[item.key] = before[item.key]
    return Changes(values, tuple(taken), tuple(pending))


def files_of(groups: Iterable[type], values: Mapping[str, Any]) -> tuple[Path, ...]:
    """The files that these settings name, as their groups declare."""
    found: list[Path] = []
    for group in groups:
        made: Any = build(group, values)
        files = reload_of(group).files
        for name, item, _ in declared(group):
            value = getattr(made, name) if item.key in files else None
            paths = value if isinstance(value, list | tuple) else (value,)
            found += [Path(path) for path in paths if path]
    return tuple(found)
