"""Parameters of the query: how each is described, and how it is read. What is described is what is taken."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gpuledger.ledger.report.grouping import GROUPINGS, LABEL
from gpuledger.ledger.report.moments import moment
from gpuledger.model.errors import UsageError
from gpuledger.web.api.answers import bad_request

# More than there are parameters: a query with so many is no question.
_MOST = 32
_UNIX: Final = re.compile(r"[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_AGO: Final = re.compile(r"[0-9]{1,4}[smhd]")
# The same moment in both: a date's clock knows microseconds alone.
_NOW: Final = re.compile(r"now|0+[smhd]")
_DATE: Final = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}([Tt][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?([Zz]|[+-][0-9]{2}:[0-9]{2}))?"
)
_WORDS: Final = ("now", "today", "yesterday", "month")
# The year 2096.
_LATEST: Final = 4_000_000_000
_WANTED: Final = (
    "unix seconds, RFC 3339 (2026-11-01T08:00:00Z; a + in it is written %2B), a date, so long ago (36h, 7d), "
    "or now, today, yesterday or month is wanted"
)


@dataclass(frozen=True, slots=True)
class Parameter:
    """`schema` says in JSON Schema what is taken; `read` makes a value of the text, and raises ValueError
    with what is wanted. `default` is for a query without it.
    """

    name: str
    about: str
    schema: Mapping[str, Any]
    read: Callable[[str], Any]
    default: Any = None
    example: Any = None


def read_query(query: str, parameters: Sequence[Parameter]) -> dict[str, Any]:
    """Every parameter's value by name. A cursor knows what was asked for: beside it nothing but `limit` has a
    default. Raises Refused that names the one to blame.
    """
    known = {one.name: one for one in parameters}
    values = {one.name: one.default for one in parameters}
    given = set()
    for name, text in _pairs(query):
        if name not in known:
            there = ", ".join(known) or "none"
            raise bad_request(_shown(name), f"there is no parameter {_shown(name)!r}; there are: {there}")
        if name in given:
            raise bad_request(name, f"{name} is given twice; give it once")
        given.add(name)
        try:
            values[name] = known[name].read(text)
        except ValueError as error:
            raise bad_request(name, f"{name}: {error}") from None
    if "cursor" in given:
        values |= {name: None for name in known if name not in given and name != "limit"}
    return values


def _pairs(query: str) -> list[tuple[str, str]]:
    if not query:
        return []
    # Who only looks at what is now asks without parameters, and does not pay for it.
    from urllib.parse import parse_qsl

    try:
        return parse_qsl(
            query, keep_blank_values=True, strict_parsing=True, errors="strict", max_num_fields=_MOST
        )
    except ValueError:
        message = "the query is not understood; NAME=VALUE pairs in UTF-8, parted by &, are wanted"
        raise bad_request("", message) from None


def _shown(name: str) -> str:
    return name[:64]


def whole_number(lowest: int, highest: int) -> Callable[[str], int]:
    """A reader of whole numbers within bounds, both included."""

    def read(text: str) -> int:
        if re.fullmatch(r"[0-9]{1,9}", text, re.ASCII) and lowest <= int(text) <= highest:
            return int(text)
        raise ValueError(f"a whole number from {lowest} to {highest} is wanted")

    return read


def one_of(*words: str) -> Callable[[str], str]:
    """A reader of a few words."""

    def read(text: str) -> str:
        if text not in words:
            raise ValueError(f"one of {', '.join(words)} is wanted")
        return text

    return read


def _grouping(text: str) -> str:
    if text in GROUPINGS or (text.startswith(LABEL) and text != LABEL):
        return text
    raise ValueError(f"one of {', '.join(GROUPINGS)} or label:NAME is wanted")


@dataclass(frozen=True, slots=True)
class Moment:
    """A time as it was asked: what `7d` and `today` mean is known only when it is known what time it is."""

    name: str
    text: str

    def unix(self, now: float) -> float:
        """Unix seconds. Raises Refused for a day that no calendar has."""
        if _UNIX.fullmatch(self.text):
            return float(self.text)
        if self.is_now:
            return now
        try:
            return max(moment(self.name, self.text.upper() if "-" in self.text else self.text, now), 0.0)
        except UsageError:
            raise bad_request(self.name, f"{self.name}: {_WANTED}") from None

    @property
    def is_now(self) -> bool:
        """Whether it was asked as now, or as no time ago."""
        return _NOW.fullmatch(self.text) is not None

    def means(self, text: str | None, unix: float) -> bool:
        """Whether it is what was asked as this text and taken for these unix seconds."""
        return self.text == text or (_UNIX.fullmatch(self.text) is not None and float(self.text) == unix)


def moment_parameter(name: str, about: str, default: str) -> Parameter:
    """A point in time; `default` is what it is when it is not given."""

    def read(text: str) -> Moment:
        if _UNIX.fullmatch(text):
            if float(text) <= _LATEST:
                return Moment(name, text)
        elif text in _WORDS or _AGO.fullmatch(text) or _DATE.fullmatch(text):
            return Moment(name, text)
        raise ValueError(_WANTED)

    return Parameter(
        name,
        f"{about} Unix seconds, RFC 3339, a date (local midnight), so long ago, or a word.",
        {
            "anyOf": [
                {"type": "number", "minimum": 0, "maximum": _LATEST},
                {"type": "string", "format": "date-time"},
                {"type": "string", "format": "date"},
                {"type": "string", "pattern": f"^{_AGO.pattern}$"},
                {"enum": list(_WORDS)},
            ],
            "default": default,
        },
        read,
        Moment(name, default),
        example=default,
    )


def limit_parameter(default: int) -> Parameter:
    """How many rows."""
    return Parameter(
        "limit",
        "So many rows at most; `next` tells where to go on.",
        {"type": "integer", "minimum": 1, "maximum": 1000, "default": default},
        whole_number(1, 1000),
        default,
        example=100,
    )


def text_parameter(name: str, about: str, example: str) -> Parameter:
    """A name to be met exactly; empty are those that have none."""
    return Parameter(name, about, {"type": "string"}, str, example=example)


CURSOR = Parameter(
    "cursor",
    "`next` of the answer before, to go on after its last row; give the other parameters as before, or none.",
    {"type": "string", "minLength": 1},
    str,
)
STATE = Parameter(
    "state",
    "Only the sessions that run, or only those that have ended.",
    {"enum": ["open", "closed"]},
    one_of("open", "closed"),
    example="open",
)
BY = Parameter(
    "by",
    "By what to add up; `label:NAME` is a pod label.",
    {
        "anyOf": [{"enum": list(GROUPINGS)}, {"type": "string", "pattern": "^label:.+$"}],
        "default": "namespace",
    },
    _grouping,
    "namespace",
    example="namespace",
)
EVENTS = Parameter(
    "limit",
    "End after so many events.",
    {"type": "integer", "minimum": 1, "maximum": 1_000_000},
    whole_number(1, 1_000_000),
    example=10,
)
