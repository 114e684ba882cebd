"""Tables in settings: entries with a name, such as those of engines and gateways, and their texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from textwrap import shorten
from typing import Any, Final, Generic, TypeVar

from gpuledger.model.settings import InvalidElement, read_json_list

_SHOWN: Final = 60
Entry = TypeVar("Entry")


@dataclass(frozen=True, slots=True)
class NamedEntries(Generic[Entry]):
    """A reader of entries of this type. `key` is the key, and the field, with their name.

    `parse` makes an entry of its name, its other keys, and the words that begin a message about it.
    """

    type: type[Entry]
    key: str
    expected: str
    parse: Callable[[str, dict[str, Any], str], Entry]

    def read(self, value: object) -> dict[str, Entry]:
        """The entries of a YAML list, or of a JSON text, by name; entries that were read before remain.

        Raises ValueError; InvalidElement names the entry.
        """
        if isinstance(value, str) and value.strip():
            value = read_json_list(value, self.expected, twice="write its values as one list")
        if value in ("", None):
            return {}
        if not isinstance(value, list | tuple):
            raise ValueError(self.expected)
        found: dict[str, Entry] = {}
        for number, content in enumerate(value, 1):
            entry = content if isinstance(content, self.type) else self._parse(number, content)
            name = getattr(entry, self.key)
            if name in found:
                raise InvalidElement(f"entry {number}: {self.key} {name} has two entries; join them")
            found[name] = entry
        return found

    def _parse(self, number: int, content: object) -> Entry:
        if not isinstance(content, Mapping):
            raise InvalidElement(
                f"entry {number} ({shown_entry(content)}): expected a mapping with {self.key} and output"
            )
        given = {str(key): value for key, value in content.items()}
        name = entry_text(given.pop(self.key, None))
        if not name:
            raise InvalidElement(f"entry {number} has no {self.key}: add its name, such as {self.key}: mine")
        return self.parse(name, given, f"entry {number} ({self.key} {name})")


def entry_texts(content: object) -> tuple[str, ...]:
    """The texts of a list, or of one text."""
    return tuple(map(entry_text, content if isinstance(content, list | tuple) else [content]))


def entry_text(value: object) -> str:
    """A text of an entry; empty if it is none."""
    if value is None or isinstance(value, bool | list | tuple | Mapping):
        return ""
    return str(value).strip()


def shown_entry(value: object) -> str:
    """What a user wrote, for messages."""
    return shorten(str(value) or "''", _SHOWN, placeholder=" ...")
