"""Relabel rules and their actions, with exactly Prometheus's behavior.

https://prometheus.io/docs/prometheus/latest/configuration/configuration/#relabel_config
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from dataclasses import dataclass
from functools import partial
from hashlib import md5
from typing import Final, cast

import re2

# Group names are matched greedily, as in Go: `$1x` is the group named 1x.
_REFERENCE = re.compile(r"\$(?:\$|(?P<bare>\w+)|\{(?P<braced>\w+)\})")

Labels = MutableMapping[str, str]

NAME: Final = "__name__"
LABEL_NAME: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*", re.ASCII)
METRIC_NAME: Final = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class RelabelRule:
    """A relabel rule as written, with Prometheus's defaults."""

    action: str = "replace"
    source_labels: tuple[str, ...] = ()
    separator: str = ";"
    regex: str = "(.*)"
    modulus: int = 0
    target_label: str = ""
    replacement: str = "$1"


# Modifies the labels in place; returns False to drop the target or series.
RelabelStep = Callable[[Labels], bool]


class RelabelRules:
    """A compiled list of relabel rules."""

    def __init__(self, rules: Iterable[RelabelRule] = ()) -> None:
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


def compile_re2(regex: str) -> re.Pattern[str]:
    """Compile an RE2 expression that is anchored at both ends. Raises ValueError with RE2's reason.

    RE2's patterns and matches have the used part of the interface of those in `re`.
    """
    options = re2.Options()
    options.log_errors = False
    try:
        return cast("re.Pattern[str]", re2.compile(f"^(?:{regex})$", options))
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


def _template(rule: RelabelRule, text: str) -> Callable[[re.Match[str]], str]:
    """Return a function that expands the text's references to groups of the rule's regex for one match.

    A reference to a missing or unmatched group expands to nothing; a dollar without a reference is literal.
    """
    parts = list(_template_parts(text, compile_re2(rule.regex)))
    texts = [part for part in parts if isinstance(part, str)]
    if len(texts) == len(parts):
        constant = "".join(texts)
        return lambda _: constant
    return lambda match: "".join(
        [part if isinstance(part, str) else match.group(part) or "" for part in parts]
    )


def _template_parts(text: str, pattern: re.Pattern[str]) -> Iterator[str | int]:
    """Yield texts and group numbers. Go rejects numbers with leading zeros."""
    groups = {name: number for name, number in pattern.groupindex.items() if not name.isdigit()}
    groups |= {str(number): number for number in range(pattern.groups + 1)}
    at = 0
    for reference in _REFERENCE.finditer(text):
        if at < reference.start():
            yield text[at : reference.start()]
        at = reference.end()
        name = reference["bare"] or reference["braced"]
        if name is None:
            yield "$"
        elif name in groups:
            yield groups[name]
    if at < len(text):
        yield text[at:]


def _replace(rule: RelabelRule) -> RelabelStep:
    source, search = _sources(rule), compile_re2(rule.regex).search
    target, replacement = _template(rule, rule.target_label), _template(rule, rule.replacement)

    def step(labels: Labels) -> bool:
        match = search(source(labels))
        if match is None:
            return True
        name, value = target(match), replacement(match)
        if value and LABEL_NAME.fullmatch(name):
            labels[name] = value
        else:
            # Removes the label named as written, without expanding references, as in Prometheus 2.42.
            labels.pop(rule.target_label, None)
        return True

    return step


def _keep(rule: RelabelRule, *, match: bool) -> RelabelStep:
    source, search = _sources(rule), compile_re2(rule.regex).search
    return lambda labels: (search(source(labels)) is not None) is match


def _keep_equal(rule: RelabelRule, *, equal: bool) -> RelabelStep:
    source = _sources(rule)
    return lambda labels: (labels.get(rule.target_label, "") == source(labels)) is equal


def _set_target(rule: RelabelRule, change: Callable[[RelabelRule, str], str]) -> RelabelStep:
    source = _sources(rule)

    def step(labels: Labels) -> bool:
        _set(labels, rule.target_label, change(rule, source(labels)))
        return True

    return step


def hashmod(text: str, modulus: int) -> int:
    """Return Prometheus's `hashmod` of a text: a number below `modulus`."""
    digest = md5(text.encode(), usedforsecurity=False).digest()
    # Prometheus keeps the last eight bytes of the sixteen.
    return int.from_bytes(digest[8:], "big") % modulus


def _labelmap(rule: RelabelRule) -> RelabelStep:
    search, replacement = compile_re2(rule.regex).search, _template(rule, rule.replacement)

    def step(labels: Labels) -> bool:
        # In the order of the old names: if two map to one name, the last wins.
        for name, value in sorted(labels.items()):
            match = search(name)
            if match is not None:
                _set(labels, replacement(match), value)
        return True

    return step


def _drop_labels(rule: RelabelRule, *, match: bool) -> RelabelStep:
    search = compile_re2(rule.regex).search

    def step(labels: Labels) -> bool:
        for name in [name for name in labels if (search(name) is not None) is match]:
            del labels[name]
        return True

    return step


def _change_letters(text: str, change: Callable[[str], str]) -> str:
    # Go maps letter by letter: a letter that Python maps to two is unchanged.
    pairs = zip(text, map(change, text), strict=True)
    return "".join([changed if len(changed) == 1 else letter for letter, changed in pairs])


ACTIONS: Final[dict[str, Callable[[RelabelRule], RelabelStep]]] = {
    "replace": _replace,
    "keep": partial(_keep, match=True),
    "drop": partial(_keep, match=False),
    "keepequal": partial(_keep_equal, equal=True),
    "dropequal": partial(_keep_equal, equal=False),
    "hashmod": partial(_set_target, change=lambda rule, text: str(hashmod(text, rule.modulus))),
    "labelmap": _labelmap,
    "labeldrop": partial(_drop_labels, match=True),
    "labelkeep": partial(_drop_labels, match=False),
    # Python maps this one letter to two, Go to one.
    "lowercase": partial(
        _set_target, change=lambda _, text: _change_letters(text.replace("\u0130", "i"), str.lower)
    ),
    "uppercase": partial(_set_target, change=lambda _, text: _change_letters(text, str.upper)),
}
