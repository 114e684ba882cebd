"""Query parameters: the description and the parser of each, so that both agree."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from typing import Any, Final

from gpuledger.ledger.report.mail_addresses import MAIL_DOMAIN, MAIL_SENDER
from gpuledger.ledger.report.moments import parse_moment, parse_whole_period
from gpuledger.ledger.report.report_keys import DIGEST_KEYS, EVERY, GROUPINGS, LABEL, NODE, TEAM
from gpuledger.model.errors import UsageError
from gpuledger.model.session import ALLOCATION, RESIDENCE
from gpuledger.web.api.responses import bad_request, cursor_mismatch

# More than any endpoint has parameters.
_MOST = 32
_UNIX: Final = re.compile(r"[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_AGO: Final = re.compile(r"[0-9]{1,4}[smhd]")
# Equal to now exactly: resolving `0s` through a datetime would truncate it to microseconds.
_NOW: Final = re.compile(r"now|0+[smhd]")
_DATE: Final = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}([Tt][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?([Zz]|[+-][0-9]{2}:[0-9]{2}))?"
)
# A key of a pod label, as JSON Schema.
_LABEL_KEY: Final = {"type": "string", "pattern": r"^label:[^,\s]+$"}
# Durations that are below the 366 days of the flag in all forms.
_LAST_PART: Final = "[0-9]{1,5}[sm]|[0-9]{1,3}h|[0-9]{1,2}d"
_LEAST_TIME: Final = (
    rf"[0-9]{{1,7}}|[1-4]?[0-9]w|([0-9]{{1,2}}d)?([0-9]{{1,3}}h)?([0-9]{{1,4}}m)?({_LAST_PART})"
)
_WORDS: Final = ("now", "today", "yesterday", "month")
# The year 2096.
_LATEST: Final = 4_000_000_000
_EXPECTED: Final = (
    "expected unix seconds, RFC 3339 (2026-11-01T08:00:00Z; write a + in it as %2B), a date, "
    "a time ago (36h, 7d), or now, today, yesterday or month"
)


@dataclass(frozen=True, slots=True)
class Parameter:
    """A query parameter. `schema` is its JSON Schema; `read` parses the text and raises ValueError with what
    is expected. `default` applies to a query without the parameter.
    """

    name: str
    about: str
    schema: Mapping[str, Any]
    read: Callable[[str], Any]
    default: Any = None
    example: Any = None


def read_query(query: str, parameters: Sequence[Parameter]) -> dict[str, Any]:
    """Parse a query string into values by parameter name.

    A cursor contains the parameters of the first request, so with a cursor only `limit` has a default. Raises
    ApiError with the invalid parameter.
    """
    known = {one.name: one for one in parameters}
    values = {one.name: one.default for one in parameters}
    given = set()
    for name, text in _pairs(query):
        if name not in known:
            available = ", ".join(known) or "none"
            raise bad_request(_shown(name), f"unknown parameter {_shown(name)!r}; available: {available}")
        if name in given:
            raise bad_request(name, f"{name} appears twice; send it once")
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
    # Imported lazily: most requests have no parameters.
    from urllib.parse import parse_qsl

    try:
        return parse_qsl(
            query, keep_blank_values=True, strict_parsing=True, errors="strict", max_num_fields=_MOST
        )
    except ValueError:
        message = "the query cannot be parsed; expected NAME=VALUE pairs in UTF-8, separated by &"
        raise bad_request("", message) from None


def _shown(name: str) -> str:
    return name[:64]


def whole_number(lowest: int, highest: int) -> Callable[[str], int]:
    """A parser of integers within inclusive bounds."""

    def read(text: str) -> int:
        if re.fullmatch(r"[0-9]{1,9}", text, re.ASCII) and lowest <= int(text) <= highest:
            return int(text)
        raise ValueError(f"expected an integer from {lowest} to {highest}")

    return read


def one_of(*words: str) -> Callable[[str], str]:
    """A parser that accepts one of these words."""

    def read(text: str) -> str:
        if text not in words:
            raise ValueError(f"expected one of {', '.join(words)}")
        return text

    return read


# Groups by the first key with several names.
AUTO: Final = "auto"
_KEYS: Final = (*GROUPINGS, TEAM, NODE)


def _grouping(text: str) -> str:
    kinds = text.split(",")
    for place, kind in enumerate(kinds):
        if kind in kinds[:place]:
            raise ValueError(f"{kind[:64]} is given twice")
        if kind not in _KEYS and not (kind.startswith(LABEL) and kind != LABEL) and text != AUTO:
            raise ValueError(
                f"expected {AUTO}, or one or more of {', '.join(_KEYS)} and label:NAME, separated by commas"
            )
    return text


def _whole_period(text: str) -> str:
    # The period itself depends on the time of the request; its form does not.
    try:
        parse_whole_period("in", text, _LATEST / 2)
    except UsageError as error:
        raise ValueError(str(error).removeprefix("in: ").replace("--", "")) from None
    return text


@dataclass(frozen=True, slots=True)
class Moment:
    """A time as requested; relative times such as `7d` and `today` are resolved against the current time.

    `given` is False for the default of a query without the parameter.
    """

    name: str
    text: str
    given: bool = True

    def unix(self, now: float, zone: tzinfo | None = None) -> float:
        """The time in unix seconds; dates are of the zone (None: the machine's).

        Raises ApiError for a date that does not exist.
        """
        if _UNIX.fullmatch(self.text):
            return float(self.text)
        if self.is_now:
            return now
        try:
            text = self.text.upper() if "-" in self.text else self.text
            return max(parse_moment(self.name, text, now, zone), 0.0)
        except UsageError:
            raise bad_request(self.name, f"{self.name}: {_EXPECTED}") from None

    @property
    def is_now(self) -> bool:
        """Whether the text is `now` or a time ago of zero."""
        return _NOW.fullmatch(self.text) is not None

    def means(self, text: str | None, unix: float) -> bool:
        """Whether this equals a time that was requested as `text` and resolved to `unix` seconds."""
        return self.text == text or (_UNIX.fullmatch(self.text) is not None and float(self.text) == unix)


def check_times(parameters: Mapping[str, Any], before: Mapping[str, str], since: float, until: float) -> None:
    """Raise ApiError for a time that differs from the one in the cursor, as requested `before`."""
    for name, unix in (("since", since), ("until", until)):
        if parameters[name] is not None and not parameters[name].means(before.get(name), unix):
            raise cursor_mismatch(name)


def moment_parameter(name: str, about: str, default: str) -> Parameter:
    """A parameter for a point in time."""

    def read(text: str) -> Moment:
        if _UNIX.fullmatch(text):
            if float(text) <= _LATEST:
                return Moment(name, text)
        elif text in _WORDS or _AGO.fullmatch(text) or _DATE.fullmatch(text):
            return Moment(name, text)
        raise ValueError(_EXPECTED)

    return Parameter(
        name,
        f"{about} Unix seconds, RFC 3339, a date (midnight of `report.timezone`), a time ago, or a word.",
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
        Moment(name, default, given=False),
        example=default,
    )


def text_parameter(name: str, about: str, example: str) -> Parameter:
    """A parameter for a name that must match exactly; empty matches rows without a name."""
    return Parameter(name, about, {"type": "string"}, str, example=example)


LIMIT = Parameter(
    "limit",
    "Maximum number of rows; `next` is the cursor of the following rows.",
    {"type": "integer", "minimum": 1, "maximum": 1000, "default": 200},
    whole_number(1, 1000),
    200,
    example=100,
)
CURSOR = Parameter(
    "cursor",
    "`next` of the previous response, to continue after its last row; repeat or omit the other parameters.",
    {"type": "string", "minLength": 1},
    str,
)
STATE = Parameter(
    "state",
    "Only running sessions, or only ended ones.",
    {"enum": ["open", "closed"]},
    one_of("open", "closed"),
    example="open",
)
BY = Parameter(
    "by",
    "What to group by; `label:NAME` is a pod label. Several keys are separated by commas; `team` needs the "
    "setting `teams`. `auto` is the first key of `groupings` with several names.",
    {
        "anyOf": [
            {"enum": [AUTO, *GROUPINGS, NODE]},
            _LABEL_KEY,
        ],
        "default": "namespace",
    },
    _grouping,
    "namespace",
    example="namespace",
)
# Of days that every year has.
_DAY: Final = (
    "((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))"
)
IN = Parameter(
    "in",
    "A whole period in place of `since` and `until`: a month (`2026-11`), a day, a week (`2026-W48`), a "
    "year, `today`, `yesterday`, or `this` or `last` with hour, day, week, month or year.",
    {
        "anyOf": [
            {
                "type": "string",
                "pattern": f"^20[0-9]{{2}}(-(0[1-9]|1[0-2]|{_DAY}|W(0[1-9]|[1-4][0-9]|5[0-2])))?$",
            },
            {"type": "string", "pattern": "^(this|last) (hour|day|week|month|year)$"},
            {"enum": ["today", "yesterday"]},
        ]
    },
    _whole_period,
    example="2026-11",
)
EVERY_PERIOD = Parameter(
    "every", "Separate rows for each of these periods.", {"enum": list(EVERY)}, one_of(*EVERY), example="day"
)
BASIS = Parameter(
    "basis",
    "Who pays for GPU time, by default as `price.basis`: owners with the GPU allocated, or processes there.",
    {"enum": [ALLOCATION, RESIDENCE]},
    one_of(ALLOCATION, RESIDENCE),
    example=RESIDENCE,
)
EVENTS = Parameter(
    "limit",
    "End the stream after this many events.",
    {"type": "integer", "minimum": 1, "maximum": 1_000_000},
    whole_number(1, 1_000_000),
    example=10,
)
OF = text_parameter(
    "of",
    "KIND:NAME of a row, as `gpuledger explain` takes it; a number alone is a job if the ledger has batch "
    "jobs, else a process id. Required without `mine`.",
    "namespace:ml",
)
MINE = Parameter("mine", "All that the caller used.", {"enum": ["true"]}, one_of("true"))
# The range of a receipt, and who pays.
RECEIPT_RANGE = (
    moment_parameter("since", "Beginning of the range, by default a week ago.", "7d"),
    moment_parameter("until", "End of the range.", "now"),
    IN,
    BASIS,
)


def choice_parameter(name: str, about: str, *words: str) -> Parameter:
    """A parameter with one of these words."""
    return Parameter(name, about, {"enum": list(words)}, one_of(*words), example=words[0])


def _count_parameter(name: str, about: str) -> Parameter:
    """A number of lines, as text: it is a flag."""
    highest = 1_000_000
    read = whole_number(0, highest)
    schema = {"type": "integer", "minimum": 0, "maximum": highest}
    return Parameter(name, about, schema, lambda text: str(read(text)), example=20)


def _report_key(text: str) -> str:
    if text == AUTO:
        raise ValueError(f"expected one or more of {', '.join(_KEYS)} and label:NAME, separated by commas")
    return _grouping(text)


def _least_time(text: str) -> str:
    if not re.fullmatch(_LEAST_TIME, text, re.ASCII):
        raise ValueError("expected a duration such as 30m, 4h or 2d12h")
    return text


def _mail_parameter(name: str, about: str, pattern: str, example: str) -> Parameter:
    def read(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(f"expected an address such as {example}")
        return text

    return Parameter(name, about, {"type": "string", "pattern": f"^({pattern})$"}, read, example=example)


def _digest_key(text: str) -> str:
    if text not in (*DIGEST_KEYS, TEAM) and not re.fullmatch(_LABEL_KEY["pattern"], text):
        raise ValueError(f"expected one of {', '.join(DIGEST_KEYS)}, {TEAM} and label:NAME")
    return text


# Flags of commands, as texts in the forms of the command line.
_RANGE_FLAGS = (
    IN,
    text_parameter("since", "Beginning of the range, in the forms of `gpuledger report --since`.", "7d"),
    text_parameter("until", "End of the range.", "now"),
    BASIS,
)
REPORT_FLAGS = (
    Parameter(
        "by",
        "What to group by; several keys are separated by commas, and `team` needs the setting `teams`.",
        {"anyOf": [{"enum": [*GROUPINGS, NODE]}, _LABEL_KEY]},
        _report_key,
        example="user",
    ),
    *_RANGE_FLAGS,
    EVERY_PERIOD,
    _count_parameter("top", "Number of rows of a table; 0 is all."),
    choice_parameter("format", "How the report is written.", "table", "csv", "json", "focus", "focus-1.2"),
    text_parameter("account", "Billing account of FOCUS files.", "lab"),
    choice_parameter("plain", "A table in ASCII.", "true"),
)
EXPLAIN_FLAGS = (
    text_parameter("of", "KIND:NAME of a row, a name, or a process id.", "user:dan"),
    *_RANGE_FLAGS,
    _count_parameter("limit", "Number of lines of each list; 0 is all."),
    choice_parameter("all", "All intervals.", "true"),
    choice_parameter("format", "How the explanation is written.", "text", "json", "csv"),
)
IDLE_FLAGS = (
    Parameter(
        "for",
        "The least time without use, such as 30m; without a unit, in seconds.",
        {"type": "string", "pattern": f"^({_LEAST_TIME})$"},
        _least_time,
        example="4h",
    ),
    Parameter(
        "digest",
        "A digest with an entry for each name of this key; `team` needs the setting `teams`.",
        {"anyOf": [{"enum": list(DIGEST_KEYS)}, _LABEL_KEY]},
        _digest_key,
        example="user",
    ),
    Parameter(
        "in", f"Of a digest: {IN.about[0].lower()}{IN.about[1:]}", IN.schema, IN.read, example="2026-W48"
    ),
    text_parameter("only", "Only the entry of a digest with this name.", "ann"),
    choice_parameter("format", "How it is written.", "table", "json", "text", "mail", "slack-json"),
    _mail_parameter("mail_domain", "Domain of the recipients of mails.", MAIL_DOMAIN, "example.org"),
    _mail_parameter("mail_from", "Sender of mails.", MAIL_SENDER, "gpus@example.org"),
)
