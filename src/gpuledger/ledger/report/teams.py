"""Teams: names that the setting `teams` gives to owners when a report is made. Pure.

The first entry that matches an owner counts. All keys of an entry must match, and of a list any pattern. A
name that an owner does not have matches no pattern.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from operator import attrgetter
from textwrap import shorten
from typing import Final

from gpuledger.ledger.owners import kubernetes_job, user_of
from gpuledger.ledger.report.patterns import pattern_covers
from gpuledger.model.errors import suggest_name
from gpuledger.model.settings import InvalidElement, read_json_list
from gpuledger.model.text import escape_to_one_line
from gpuledger.model.workload import KEY_FACTS, Workload

_TEAM: Final = "team"
_NODE: Final = "node"
_LABEL: Final = "label:"
_EXPECTED: Final = "expected a list of entries, such as [{team: vision, namespace: 'vision-*'}]"
# Characters of a value that a message repeats.
_SHOWN: Final = 60

_NAMES: Final[dict[str, Callable[[Workload], str]]] = {
    "namespace": lambda owner: owner.namespace,
    "pod": lambda owner: owner.pod,
    "controller": lambda owner: owner.controller,
    "user": user_of,
    "job": lambda owner: owner.job or kubernetes_job(owner),
    **{fact: attrgetter(fact) for fact in KEY_FACTS},
    "container": lambda owner: owner.container,
    "unit": lambda owner: owner.unit,
}
_KEYS: Final = (*_NAMES, _NODE)


@dataclass(frozen=True)
class Team:
    """One entry: the name of a team, and patterns (as in a shell; case matters) by key."""

    name: str
    patterns: tuple[tuple[str, tuple[str, ...]], ...]

    def matches(self, owner: Workload, node: str) -> bool:
        """Whether all keys match the owner on this node."""
        for key, patterns in self.patterns:
            name = _name_of(key, owner, node)
            if not name or not any(fnmatchcase(name, pattern) for pattern in patterns):
                return False
        return True

    def __str__(self) -> str:
        keys = (f"{key} {' or '.join(patterns)}" for key, patterns in self.patterns)
        return shorten(", ".join((f"team {self.name}", *keys)), 2 * _SHOWN, placeholder=" ...")


def find_team(teams: Sequence[Team], owner: Workload, node: str = "") -> str:
    """The team of an owner: that of the first entry that matches; empty if none does."""
    return next((team.name for team in teams if team.matches(owner, node)), "")


def unmatched_teams(teams: Sequence[Team], owners: Collection[tuple[Workload, str]]) -> Iterator[str]:
    """One line for each entry that matches none of these owners, each with its node; none without owners."""
    for number, team in enumerate(teams, 1):
        if owners and not any(team.matches(owner, node) for owner, node in owners):
            yield (
                f"teams: entry {number} ({team}) matches no owner of this report and has no effect; "
                f"{_reason(team, owners)}"
            )


def _reason(team: Team, owners: Collection[tuple[Workload, str]]) -> str:
    """The first key of an entry that matches nothing, and the names that there are."""
    for key, patterns in team.patterns:
        names = {_name_of(key, owner, node) for owner, node in owners} - {""}
        if not names and key.startswith(_LABEL):
            label = key.removeprefix(_LABEL)
            return f"no owner has the label {label}, which must be listed in kubernetes.labels"
        if not names:
            return f"no owner has a name for {key}"
        if not any(fnmatchcase(name, pattern) for name in names for pattern in patterns):
            listed = ", ".join(escape_to_one_line(name) for name in sorted(names))
            return f"it has {key} {shorten(listed, 2 * _SHOWN, placeholder=' ...')}"
    return "no owner matches all of its keys"


def _name_of(key: str, owner: Workload, node: str) -> str:
    if key == _NODE:
        return node
    if key.startswith(_LABEL):
        return dict(owner.labels).get(key.removeprefix(_LABEL), "")
    return _NAMES[key](owner)


def parse_teams(value: object) -> tuple[Team, ...]:
    """The entries of a YAML list, or of a JSON text. Raises ValueError; InvalidElement names the entry."""
    if isinstance(value, str) and value.strip():
        value = read_json_list(value, _EXPECTED, twice="write its values as one list")
    if value in ("", None):
        return ()
    if not isinstance(value, list | tuple):
        raise ValueError(_EXPECTED)
    teams = tuple(_parse_entry(number, entry) for number, entry in enumerate(value, 1))
    for number, team in enumerate(teams, 1):
        _refuse_hidden(number, team, teams[: number - 1])
    return teams


def _parse_entry(number: int, value: object) -> Team:
    if not isinstance(value, Mapping):
        raise InvalidElement(f"entry {number} ({_shown(value)}): expected a mapping with team and other keys")
    given = {str(key): content for key, content in value.items()}
    name = _text(given.pop(_TEAM, None))
    shown = f"entry {number} (team {name})" if name else f"entry {number}"
    if not name:
        raise InvalidElement(f"{shown} has no team: add its name, such as team: vision")
    try:
        patterns = tuple((key, tuple(_patterns(key, content))) for key, content in given.items())
    except ValueError as error:
        raise InvalidElement(f"{shown}: {error}") from None
    if not patterns:
        raise InvalidElement(
            f"{shown} would match every owner: add a key, such as namespace or user, or remove the entry"
        )
    return Team(name, patterns)


def _patterns(key: str, value: object) -> Iterator[str]:
    if key not in _KEYS and not (key.startswith(_LABEL) and key != _LABEL):
        raise ValueError(f"unknown key '{_shown(key)}'; {suggest_name(key, (_TEAM, *_KEYS, 'label:NAME'))}")
    values = value if isinstance(value, list | tuple) else [value]
    for one in values:
        pattern = _text(one)
        if not pattern:
            raise ValueError(f"{key}: expected a name or a pattern such as vision-*, or a list of them")
        yield pattern
    if not values:
        raise ValueError(f"{key}: the list is empty, so that the entry matches nothing; add a name")


def _text(value: object) -> str:
    """A name, as text; empty for a value that is none."""
    if value is None or isinstance(value, bool | list | tuple | Mapping):
        return ""
    text = str(value).strip()
    return text if text.isprintable() else ""


def _shown(value: object) -> str:
    return shorten(str(value) or "''", _SHOWN, placeholder=" ...")


def _refuse_hidden(number: int, team: Team, earlier: Sequence[Team]) -> None:
    """Raise InvalidElement for an entry, or one name in it, that earlier entries always match first."""
    for other_number, other in enumerate(earlier, 1):
        patterns = dict(team.patterns)
        # For each key of the earlier entry, the names of this one that it always matches.
        hidden = {
            key: [name for name in patterns.get(key, ()) if any(pattern_covers(wide, name) for wide in wides)]
            for key, wides in other.patterns
        }
        partly = [key for key, names in hidden.items() if len(names) < len(patterns.get(key, (None,)))]
        if len(partly) > 1 or not all(hidden.values()):
            continue
        if partly:
            names = " and ".join(f"{partly[0]} {name}" for name in hidden[partly[0]])
            what = f"{names} never counts" if len(hidden[partly[0]]) == 1 else f"{names} never count"
        else:
            what = "it never counts"
        raise InvalidElement(
            f"entry {number} ({team}): {what}, because entry {other_number} ({other}) matches the same "
            "first; remove it, or move the narrower entry up"
        )
