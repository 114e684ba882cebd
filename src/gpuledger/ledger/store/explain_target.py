"""Finds the row of a report or the process that the user names: `ml/train-0`, `user:dan`, `idle`, `pid:4711`.

The kinds are the keys of reports, `pid`, and `account` for the GPUs' own accounts.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from itertools import chain
from typing import Any

from gpuledger.ledger.ownership import owner_from_fields
from gpuledger.ledger.report.gpu_time import NONE_RUNNING
from gpuledger.ledger.report.grouping import Grouping, Key
from gpuledger.ledger.report.party import Party, party_from_text, party_of
from gpuledger.ledger.report.report_keys import GROUPINGS, LABEL, NODE, TEAM
from gpuledger.ledger.store.history import History
from gpuledger.ledger.store.presence import UNKNOWN_PARTY
from gpuledger.ledger.store.rows import FACT_COLUMNS, facts_from_columns, workload_from_text
from gpuledger.ledger.time.account import DOWN
from gpuledger.model.errors import GpuledgerError, suggest_name
from gpuledger.model.session import IDLE, UNATTRIBUTED, UNOBSERVED
from gpuledger.model.text import escape_to_one_line
from gpuledger.model.workload import UNKNOWN

PID, ACCOUNT = "pid", "account"
_ACCOUNTS = (IDLE, UNATTRIBUTED, UNOBSERVED, DOWN)
# Kinds of a name without a prefix. The others count only if these have no such name: a container is often
# named like its pod, and every owner is also in another grouping.
_FIRST_KINDS = ("job", "pod", "user", "namespace")
_FIRST_KINDS_OF_NUMBERS = (PID, "job", "pod")
# The name of rows without a name.
_NAMELESS = "-"
_MOST_NAMED = 8
# Searching a similar name takes about 20 µs for each.
_MOST_COMPARED = 5000
_SHORTEST_UUID = 8
_CACHED = 10_000
_OWNER_NAMES = ("kind", "namespace", "pod", "container", "job", "unit", "user")
_OWNERS = f"""
SELECT number, device, command, owner_kind, namespace, pod, container, job, unit, owner_user, labels,
    {", ".join(FACT_COLUMNS)} FROM sessions
"""
# Sessions that ended while the file could not be written have shares, but no owner.
_LOST = "SELECT DISTINCT session FROM shares WHERE session NOT IN (SELECT number FROM sessions)"


@dataclass(frozen=True, slots=True)
class ExplainTarget:
    """A row of `report --by KIND` with its key; a process (`pid`); or one of the GPUs' own accounts."""

    kind: str
    key: Key

    def __str__(self) -> str:
        if self.kind == "gpu":
            uuid, index, _ = self.key
            return f"gpu {index} {uuid}"
        name = "/".join(self._words) or "(without a name)"
        if self.kind.startswith(LABEL):
            return f"label {self.kind.removeprefix(LABEL)}={name}"
        return f"{self.kind} {name}"

    @property
    def _words(self) -> Sequence[str]:
        words = [word for word in self.key if word]
        return () if self.kind == "owner" and words == ["unknown"] else words

    @property
    def names(self) -> Sequence[str]:
        """The names of this target, the longest first: `ml/train-0` and `train-0`; empty without a name."""
        if self.kind == "gpu":
            return [name for name in self.key[:2] if name]
        words = self._words
        return ["/".join(words[place:]) for place in range(len(words))]

    def prefixed(self, name: str = "") -> str:
        """A text that names this target; without `name`, one that names no other."""
        full = self.key[0] if self.kind == "gpu" else "/".join(self.key) if self._words else _NAMELESS
        return f"{self.kind}{'=' if self.kind.startswith(LABEL) else ':'}{name or full}"

    def is_named(self, name: str) -> bool:
        """Return whether a name is one of this target."""
        if not self._words:
            return name in (_NAMELESS, *filter(None, self.key))
        if self.kind == "gpu" and len(name) >= _SHORTEST_UUID and self.key[0].startswith(name):
            return True
        full = "/".join(self.key)
        # Reports print names with escapes: a name copied from there means the same row.
        return name in (*self.names, full, *map(escape_to_one_line, self.names), escape_to_one_line(full))

    def is_like(self, pattern: str) -> bool:
        """Return whether a name of this target matches a pattern with * and ?."""
        return any(fnmatchcase(name, pattern) for name in self.names)


@dataclass(slots=True)
class Found:
    """What the ledger has of a target: numbers of sessions, and parties of hours and of allocations."""

    sessions: array[int] = field(default_factory=lambda: array("q"))
    parties: array[int] = field(default_factory=lambda: array("q"))
    allocations: array[int] = field(default_factory=lambda: array("q"))


class OwnerNotFound(GpuledgerError):
    """The ledger has nothing of this name, or nothing in the requested range."""


class ExplainTargetFinder:
    """Finds the targets that a text can mean, in one pass over the owners in the ledger.

    `grouping_of` returns the grouping by one key. With `has_teams`, a name without a kind can be a team.
    """

    def __init__(
        self, history: History, text: str, grouping_of: Callable[[str], Grouping], *, has_teams: bool = False
    ) -> None:
        self._history = history
        self._text = text
        self._grouping_of = grouping_of
        self._kinds_without_prefix = (*GROUPINGS, *((TEAM,) if has_teams else ()))
        kind, colon, rest = text.partition(":")
        label, equals, value = rest.partition("=")
        # Amounts of whole Gpus are for those who read everything.
        self._accounts = (ACCOUNT,) if history.reader.reads_all else ()
        self._name, self._kinds = text, self._plain_kinds()
        if kind in (*GROUPINGS, TEAM, NODE, PID, *self._accounts) and colon:
            self._name, self._kinds = rest, ((kind,),)
        elif kind == "label" and label and equals:
            self._name, self._kinds = value, ((LABEL + label,),)
        self._is_pattern = any(sign in self._name for sign in "*?")
        self._found: dict[ExplainTarget, Found] = {}
        self._others: set[ExplainTarget] = set()

    def _plain_kinds(self) -> tuple[tuple[str, ...], ...]:
        if not self._text:
            return ()
        first = _FIRST_KINDS_OF_NUMBERS if _is_pid(self._text) else (*_FIRST_KINDS, *self._accounts)
        last = ("owner",)
        others = (*self._kinds_without_prefix, *self._accounts)
        return (first, tuple(kind for kind in others if kind not in (*first, *last)), last)

    def find(self) -> tuple[ExplainTarget, Found]:
        """The only target of this name. Raises GpuledgerError that lists those that it can mean."""
        every = [kind for kinds in self._kinds for kind in kinds]
        self._read([kind for kind in every if kind not in (PID, ACCOUNT)])
        if PID in every:
            self._read_pid()
        if ACCOUNT in every:
            self._found |= {ExplainTarget(ACCOUNT, (account,)): Found() for account in _ACCOUNTS}
        for kinds in self._kinds:
            named = [one for one in self._found if one.kind in kinds and self._matches(one)]
            if named:
                return self._only(sorted(named, key=lambda one: (kinds.index(one.kind), one.key)))
        raise self._not_found()

    def _matches(self, target: ExplainTarget) -> bool:
        return target.is_named(self._name) or (self._is_pattern and target.is_like(self._name))

    def _only(self, named: Sequence[ExplainTarget]) -> tuple[ExplainTarget, Found]:
        exact = [one for one in named if one.prefixed() == self._text]
        if len(named) == 1 or len(exact) == 1:
            one = (exact or named)[0]
            return one, self._found[one]
        alone = len({one.kind for one in named}) == len(named) and named[0].is_named(self._name)
        forms = [one.prefixed(self._name if alone else "") for one in named]
        more = "" if len(forms) <= _MOST_NAMED else f" or one of {len(forms) - _MOST_NAMED} others"
        raise GpuledgerError(
            f"'{self._text}' matches several rows: use {' or '.join(forms[:_MOST_NAMED])}{more}"
        )

    def _not_found(self) -> OwnerNotFound:
        expected = (
            "expected KIND:NAME of a row of `gpuledger report --by KIND`, such as user:dan or namespace:ml; "
            "pid:NUMBER; or idle, unattributed, unobserved or down"
        )
        kind, colon, rest = self._text.partition(":")
        kinds = (*GROUPINGS, TEAM, NODE, f"{LABEL}NAME=", PID, ACCOUNT)
        if kind and colon and kind not in (*kinds, LABEL.removesuffix(":")):
            expected = f"{kind} is no kind; the kinds are {', '.join(kinds[:-1])} and {kinds[-1]}"
        # A row without a name is no suggestion: nobody means it by another name.
        named = [one for one in (*self._found, *self._others) if one.names]
        same = [one for one in named if colon and one.prefixed().startswith(f"{kind}:")]
        names = {name for one in named for name in (*one.names, one.prefixed())}
        # A kind that both have would make all names similar: user:root is not user:mira.
        of_kind = {name for one in same for name in (*one.names, one.prefixed().partition(":")[2])}
        if same and len(names) <= _MOST_COMPARED:
            expected = suggest_name(rest, of_kind, f"{kind}:", expected)
        elif names and len(names) <= _MOST_COMPARED:
            expected = suggest_name(self._text, names, otherwise=expected)
        return OwnerNotFound(f"'{self._text}' is not in {self._history.file}: {expected}")

    def _read(self, kinds: Sequence[str]) -> None:
        if not kinds:
            return
        groupings = [self._grouping_of(kind) for kind in kinds]
        # Sessions are in the order of time: most are not the first of their owner.
        targets = lru_cache(_CACHED)(lambda *columns: self._targets(_party(*columns), groupings))
        connection = self._history.connection
        for number, *columns in connection.execute(_OWNERS):
            for found in targets(*columns):
                found.sessions.append(number)
        if self._history.reader.reads_all and any(
            self._matches(ExplainTarget(one.name, one.key(UNKNOWN_PARTY))) for one in groupings
        ):
            for (number,) in connection.execute(_LOST):
                for found in self._targets(UNKNOWN_PARTY, groupings):
                    found.sessions.append(number)
        for number, text in connection.execute("SELECT number, who FROM parties"):
            for found in self._targets(party_from_text(text), groupings):
                found.parties.append(number)
        for number, device, owner in connection.execute("SELECT number, device, owner FROM handovers"):
            holder = party_of(device, workload_from_text(owner) or UNKNOWN)
            # Without a process of the owner, its row has this command.
            parties = (holder, replace(holder, command=NONE_RUNNING))
            for found in chain(*(self._targets(party, groupings) for party in parties)):
                found.allocations.append(number)
        for device, owner, command in connection.execute("SELECT device, owner, command FROM time_owners"):
            self._targets(party_of(device, workload_from_text(owner) or UNKNOWN, command), groupings)

    def _targets(self, party: Party, groupings: Sequence[Grouping]) -> list[Found]:
        """The entries of the party's rows. Some with another name are kept only for suggestions."""
        found = []
        for grouping in groupings:
            target = ExplainTarget(grouping.name, grouping.key(party))
            if self._matches(target):
                found.append(self._found.setdefault(target, Found()))
            elif len(self._others) <= _MOST_COMPARED:
                self._others.add(target)
        return found

    def _read_pid(self) -> None:
        if _is_pid(self._name):
            query = "SELECT number FROM sessions WHERE pid = ?"
            rows = self._history.connection.execute(query, (int(self._name),))
            numbers = array("q", (number for (number,) in rows))
            if numbers:
                self._found[ExplainTarget(PID, (self._name,))] = Found(numbers)


def _party(device: str, command: str, *columns: Any) -> Party:
    names = dict(zip(_OWNER_NAMES, columns, strict=False))
    labels, *facts = columns[len(names) :]
    owner = owner_from_fields({**names, "labels": json.loads(labels), **facts_from_columns(*facts)})
    return Party(device, owner, command)


def _is_pid(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 10
