"""Replaces the name of a person in texts: as a whole word, in each form in which other programs write it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Any
from unicodedata import normalize

# Fields of an owner that have one of a few values, which can be a person's name, too.
_FIXED = frozenset({"kind", "runtime", "found_by", "missing", "controller_kind"})
# Letters and digits continue a name; an underscore does not, as in train_ann.py.
_BEFORE, _AFTER = r"(?<![^\W_])", r"(?![^\W_])"


class PersonName:
    """The name of a person, which `pseudonym` replaces; `uids` are the numbers of the person's accounts.

    A name within a longer name of `others` (other users) is kept: `ann` in `ann.lee` is no one's name.
    """

    def __init__(
        self, name: str, pseudonym: str, others: Collection[str] = (), uids: Collection[int] = ()
    ) -> None:
        self.forms = name_forms(name)
        self.pseudonym = pseudonym
        self.uids = frozenset(uids)
        forms = {form for other in others for form in name_forms(other)} - set(self.forms)
        longer = [form for form in forms if any(mine in form for mine in self.forms)]
        # Longer alternatives first: a regular expression takes the first that matches.
        self._kept = frozenset(longer)
        words = sorted((*longer, *self.forms), key=len, reverse=True)
        self._pattern = re.compile(f"{_BEFORE}(?:{'|'.join(map(re.escape, words))}){_AFTER}")
        self._numbers = frozenset(map(str, uids))
        numbers = "|".join(map(str, sorted(uids, reverse=True)))
        # Units and directories of a uid: user-1000.slice, user@1000.service, /run/user/1000.
        self._uids = re.compile(rf"(\buser[-@/])(?:{numbers})\b") if numbers else None

    def replaced(self, text: str) -> str:
        """The text with the pseudonym in place of the name and of the uids."""
        found = self._pattern.sub(self._replacement, text)
        if self._uids is not None:
            found = self._uids.sub(lambda match: match[1] + self.pseudonym, found)
        return found

    def _replacement(self, match: re.Match[str]) -> str:
        return match[0] if match[0] in self._kept else self.pseudonym

    def replaced_values(self, value: Any, key: str = "", *, skip_first: bool = False) -> Any:
        """A JSON value with the name replaced in all texts, except those of a fixed set (`_FIXED`).

        `skip_first`: the first text of a list is of a fixed set as well, such as the account. A user of which
        only the uid was known is the person, too.
        """
        if isinstance(value, str):
            if key == "user" and value in self._numbers:
                return self.pseudonym
            return value if key in _FIXED else self.replaced(value)
        if isinstance(value, list):
            return [
                one
                if skip_first and not place and isinstance(one, str)
                else self.replaced_values(one, skip_first=skip_first)
                for place, one in enumerate(value)
            ]
        if isinstance(value, dict):
            return {
                name: self.replaced_values(one, name, skip_first=skip_first) for name, one in value.items()
            }
        return value

    def is_in(self, text: str) -> bool:
        """Whether the text has the name."""
        return self.replaced(text) != text


def name_forms(name: str) -> tuple[str, ...]:
    """The forms of a name in texts: composed and decomposed, and escaped as in units and pod names."""
    forms = dict.fromkeys((name, normalize("NFC", name), normalize("NFD", name)))
    for form in list(forms):
        forms.update(dict.fromkeys(_escaped(form)))
    return tuple(forms)


def _escaped(name: str) -> Iterator[str]:
    """The name in a systemd unit (`\\x2d`), and in a pod of JupyterHub (`-2d`)."""
    raw = name.encode("utf-8", "surrogateescape")
    for prefix, kept in (("\\x", rb"[A-Za-z0-9:_.]"), ("-", rb"[a-z0-9]")):
        yield "".join(
            chr(byte) if re.fullmatch(kept, bytes([byte])) else f"{prefix}{byte:02x}" for byte in raw
        )
