"""Relabel rules and their actions, with exactly Prometheus's behavior.

https://prometheus.io/docs/prometheus/latest/configuration/configuration/#relabel_config
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from hashlib import md5
from re import ASCII
from re import compile as compile_own
from typing import Final, Protocol, cast

import re2

# Group names are matched greedily, as in Go: `$1x` is the group named 1x.
_REFERENCE = re.compile(r"\$(?:(?P<dollar>\$)|(?P<bare>\w+)|\{(?P<braced>\w+)\})")


class Re2Match(Protocol):
    """The used part of a match."""

    def group(self, number: int) -> str | None:
        """Return the text of a group; None if it did not take part in the match."""


class ReplacementTemplate:
    """A text with references to groups of a regular expression.

    A reference to a missing or unmatched group expands to nothing; a dollar without a reference is literal.
    """

    def __init__(self, text: str, names: Mapping[str, int], groups: int) -> None:
        self.text = text
        self._parts = tuple(_parts(text, names, groups))
        self._plain = all(isinstance(part, str) for part in self._parts)
        self._constant = "".join(part for part in self._parts if isinstance(part, str))

    def expand(self, match: Re2Match) -> str:
        """Return the text expanded for one match."""
        if self._plain:
            return self._constant
        return "".join(part if isinstance(part, str) else match.group(part) or "" for part in self._parts)


def _parts(text: str, names: Mapping[str, int], groups: int) -> list[str | int]:
    found: list[str | int] = []
    at = 0
    for reference in _REFERENCE.finditer(text):
        found.append(text[at : reference.start()])
        at = reference.end()
        name = reference["bare"] or reference["braced"]
        if name is None:
            found.append("$")
        else:
            number = _group(name, names)
            if number is not None and number <= groups:
                found.append(number)
    found.append(text[at:])
    return [part for part in found if part != ""]


def _group(name: str, names: Mapping[str, int]) -> int | None:
    """Return the group number of a reference; Go rejects leading zeros."""
    if name.isascii() and name.isdigit():
        return None if len(name) > 1 and name[0] == "0" else int(name)
    return names.get(name)


Labels = MutableMapping[str, str]

NAME: Final = "__name__"
LABEL_NAME: Final = compile_own(r"[a-zA-Z_][a-zA-Z0-9_]*", ASCII)
METRIC_NAME: Final = compile_own(r"[a-zA-Z_:][a-zA-Z0-9_:]*", ASCII)

DEFAULT_SEPARATOR: Final = ";"
DEFAULT_REGEX: Final = "(.*)"
DEFAULT_REPLACEMENT: Final = "$1"


@dataclass(frozen=True, slots=True)
class RelabelRule:
    """A relabel rule as written, with Prometheus's defaults."""

    action: str = "replace"
    source_labels: tuple[str, ...] = ()
    separator: str = DEFAULT_SEPARATOR
    regex: str = DEFAULT_REGEX
    modulus: int = 0
    target_label: str = ""
    replacement: str = DEFAULT_REPLACEMENT


class Re2Pattern(Protocol):
    """The used part of a compiled expression."""

    groups: int
    groupindex: Mapping[str, int]

    def search(self, text: str) -> Re2Match | None:
        """Return the first match."""


# Modifies the labels in place; returns False to drop the target or series.
RelabelStep = Callable[[Labels], bool]


class RelabelRules:
    """A compiled list of relabel rules."""

    def __init__(self, rules: Iterable[RelabelRule]) -> None:
        self.rules = tuple(rules)
        self._steps = tuple(ACTIONS[rule.action](rule) for rule in self.rules)

    def __bool__(self) -> bool:
        return bool(self.rules)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RelabelRules) and other.rules == self.rules

    def __hash__(self) -> int:
        return hash(self.rules)

    def apply(self, labels: Labels) -> bool:
        """Apply the rules to the labels in place; return False if a rule drops them.

        Setting a label to an empty value removes it.
        """
        return all(step(labels) for step in self._steps)


def compile_re2(regex: str) -> Re2Pattern:
    """Compile an RE2 expression that is anchored at both ends. Raises ValueError with RE2's reason."""
    options = re2.Options()
    options.log_errors = False
    try:
        return cast("Re2Pattern", re2.compile(f"^(?:{regex})$", options))
    except re2.error as error:
        reason = error.args[0] if error.args else "cannot be compiled"
        raise ValueError(reason.decode() if isinstance(reason, bytes) else str(reason)) from None


def _set(labels: Labels, name: str, value: str) -> None:
    if value:
        labels[name] = value
    else:
        labels.pop(name, None)


def _sources(rule: RelabelRule) -> Callable[[Labels], str]:
    names, separator = rule.source_labels, rule.separator
    if len(names) == 1:
        (only,) = names
        return lambda labels: labels.get(only, "")
    return lambda labels: separator.join([labels.get(name, "") for name in names])


def _template(rule: RelabelRule, text: str) -> ReplacementTemplate:
    pattern = compile_re2(rule.regex)
    return ReplacementTemplate(text, pattern.groupindex, pattern.groups)


def _replace(rule: RelabelRule) -> RelabelStep:
    source, search = _sources(rule), compile_re2(rule.regex).search
    target, replacement = _template(rule, rule.target_label), _template(rule, rule.replacement)

    def step(labels: Labels) -> bool:
        match = search(source(labels))
        if match is None:
            return True
        name, value = target.expand(match), replacement.expand(match)
        if value and LABEL_NAME.fullmatch(name):
            labels[name] = value
        else:
            # Removes the label named as written, without expanding references, as in Prometheus 2.42.
            labels.pop(rule.target_label, None)
        return True

    return step


def _keep(rule: RelabelRule) -> RelabelStep:
    source, search = _sources(rule), compile_re2(rule.regex).search
    return lambda labels: search(source(labels)) is not None


def _drop(rule: RelabelRule) -> RelabelStep:
    source, search = _sources(rule), compile_re2(rule.regex).search
    return lambda labels: search(source(labels)) is None


def _keep_equal(rule: RelabelRule) -> RelabelStep:
    source = _sources(rule)
    return lambda labels: labels.get(rule.target_label, "") == source(labels)


def _drop_equal(rule: RelabelRule) -> RelabelStep:
    source = _sources(rule)
    return lambda labels: labels.get(rule.target_label, "") != source(labels)


def _changed_case(change: Callable[[str], str]) -> Callable[[RelabelRule], RelabelStep]:
    def build_step(rule: RelabelRule) -> RelabelStep:
        source = _sources(rule)

        def step(labels: Labels) -> bool:
            _set(labels, rule.target_label, change(source(labels)))
            return True

        return step

    return build_step


def hashmod(text: str, modulus: int) -> int:
    """Return Prometheus's `hashmod` of a text: a number below `modulus`."""
    digest = md5(text.encode(), usedforsecurity=False).digest()
    # Prometheus keeps the last eight bytes of the sixteen.
    return int.from_bytes(digest[8:], "big") % modulus


def _hashmod(rule: RelabelRule) -> RelabelStep:
    source = _sources(rule)

    def step(labels: Labels) -> bool:
        _set(labels, rule.target_label, str(hashmod(source(labels), rule.modulus)))
        return True

    return step


def _labelmap(rule: RelabelRule) -> RelabelStep:
    search, replacement = compile_re2(rule.regex).search, _template(rule, rule.replacement)

    def step(labels: Labels) -> bool:
        # In the order of the old names: if two map to one name, the last wins.
        for name, value in sorted(labels.items()):
            match = search(name)
            if match is not None:
                _set(labels, replacement.expand(match), value)
        return True

    return step


def _labels_that(*, match: bool) -> Callable[[RelabelRule], RelabelStep]:
    def build_step(rule: RelabelRule) -> RelabelStep:
        search = compile_re2(rule.regex).search

        def step(labels: Labels) -> bool:
            for name in [name for name in labels if (search(name) is not None) is match]:
                del labels[name]
            return True

        return step

    return build_step


def _lower(text: str) -> str:
    return "".join(map(_lower_letter, text))


def _upper(text: str) -> str:
    return "".join(map(_upper_letter, text))


def _lower_letter(letter: str) -> str:
    # Go maps letter by letter: a letter that Python maps to two keeps its simple mapping or is unchanged.
    return {"\u0130": "i"}.get(letter, letter.lower() if len(letter.lower()) == 1 else letter)


def _upper_letter(letter: str) -> str:
    return letter.upper() if len(letter.upper()) == 1 else letter


ACTIONS: Final[dict[str, Callable[[RelabelRule], RelabelStep]]] = {
    "replace": _replace,
    "keep": _keep,
    "drop": _drop,
    "keepequal": _keep_equal,
    "dropequal": _drop_equal,
    "hashmod": _hashmod,
    "labelmap": _labelmap,
    "labeldrop": _labels_that(match=True),
    "labelkeep": _labels_that(match=False),
    "lowercase": _changed_case(_lower),
    "uppercase": _changed_case(_upper),
}
