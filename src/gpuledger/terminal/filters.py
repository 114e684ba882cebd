"""Filters of processes and GPUs: words to match, and GPUs by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gpuledger.terminal.snapshot import DeviceRow, ProcessRow

_FIELDS: dict[str, Callable[[ProcessRow], str]] = {
    "gpu": lambda row: row.place,
    "pid": lambda row: "" if row.pid is None else str(row.pid),
    "user": lambda row: row.owner.user,
    "ns": lambda row: row.owner.namespace,
    "namespace": lambda row: row.owner.namespace,
    "pod": lambda row: row.owner.pod,
    "container": lambda row: row.owner.container,
    "job": lambda row: row.owner.job,
    "command": lambda row: f"{row.command} {row.command_line}",
    "cmd": lambda row: f"{row.command} {row.command_line}",
}


@dataclass(frozen=True, slots=True)
class FilterWord:
    """One word of a filter, the field to match (empty: any), and whether the word must be absent."""

    text: str
    field: str = ""
    absent: bool = False

    def matches(self, row: ProcessRow) -> bool:
        """Whether the row matches. Numbers must be equal; other texts match in part, ignoring case."""
        return self._found(row) is not self.absent

    def _found(self, row: ProcessRow) -> bool:
        if self.field in ("gpu", "pid", "job"):
            value = _FIELDS[self.field](row)
            return value == self.text or (self.field == "gpu" and row.gpu == self.text)
        if self.field:
            return self.text in _FIELDS[self.field](row).casefold()
        owner = row.owner
        names = (owner.text, owner.user, owner.container, owner.job, row.command, row.command_line)
        return any(self.text in name.casefold() for name in (*names, row.unresolved)) or (
            row.pid is not None and str(row.pid).startswith(self.text)
        )


@dataclass(frozen=True, slots=True)
class ProcessFilter:
    """A filter of processes: all words must match. `text` is the user's input."""

    text: str = ""
    words: tuple[FilterWord, ...] = ()

    @classmethod
    def of(cls, text: str) -> ProcessFilter:
        """Parse a filter such as `train !test user:ann`; any text is valid."""
        return cls(text.strip(), tuple(_word(part) for part in text.split() if part.strip("!")))

    def matches(self, row: ProcessRow) -> bool:
        """Whether the row is shown."""
        return all(word.matches(row) for word in self.words)


def _word(part: str) -> FilterWord:
    absent = part.startswith("!")
    text = part.removeprefix("!").casefold()
    field, colon, rest = text.partition(":")
    if colon and rest and field in _FIELDS:
        return FilterWord(rest, field, absent)
    return FilterWord(text, "", absent)


def _is_named(row: DeviceRow | ProcessRow, names: Iterable[str]) -> bool:
    """Whether one of the names is the row's device or GPU: `1`, `1/2_0`, `1_2_0` or the start of a UUID."""
    uuid = row.uuid.casefold()
    for name in names:
        if name in (row.gpu, f"{row.gpu}/{row.instance}", f"{row.gpu}_{row.instance}"):
            return True
        low = name.casefold()
        if len(low) >= 4 and uuid.startswith((low, f"gpu-{low}")):
            return True
    return False


def select_devices(devices: Iterable[DeviceRow], names: tuple[str, ...]) -> list[DeviceRow]:
    """The named devices, or all without names; includes the GPU of a named MIG instance as its heading."""
    every = list(devices)
    if not names:
        return every
    chosen = [row for row in every if _is_named(row, names)]
    parents = {row.gpu for row in chosen if row.instance}
    return [row for row in every if row in chosen or (not row.instance and row.gpu in parents)]


def select_processes(rows: Iterable[ProcessRow], names: tuple[str, ...]) -> list[ProcessRow]:
    """The processes on the named devices, or all without names."""
    return [row for row in rows if not names or _is_named(row, names)]


def find_unknown_gpus(devices: Iterable[DeviceRow], names: tuple[str, ...]) -> list[str]:
    """The names that match no device."""
    every = list(devices)
    return [name for name in names if not any(_is_named(row, [name]) for row in every)]
