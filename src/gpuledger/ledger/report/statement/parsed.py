"""Reads the content of a statement: the report that it is of, as it was."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, Final, NoReturn

from gpuledger.ledger.report.charges import Charges, Rate
from gpuledger.ledger.report.grouping import Grouping, Key
from gpuledger.ledger.report.party import Party
from gpuledger.ledger.report.ranges import ReportPart
from gpuledger.ledger.report.statement.content import (
    PreviousStatement,
    RequestedPeriod,
    Statement,
    parse_time,
)
from gpuledger.ledger.report.statement.terms import parse_terms
from gpuledger.ledger.report.usage_report import (
    GpuLine,
    Period,
    ReportLine,
    UnbilledTime,
    UsageReport,
)
from gpuledger.ledger.watched_time import MICRO, QUARTER
from gpuledger.model.session import PROCESS

_FRACTION: Final = re.compile(r"-?\d{1,400}(/[1-9]\d{0,400})?", re.ASCII)
# Bounds of plausible amounts, in microseconds and millijoules, and of years.
_MOST: Final = 1 << 80
_YEARS: Final = range(1970, 2200)


class MalformedStatement(ValueError):
    """A statement without something that it must have. The message names the place."""


class _Value:
    """A value of the JSON and its place."""

    def __init__(self, value: object, place: str) -> None:
        self._value, self._place = value, place

    def __getitem__(self, name: str) -> _Value:
        members = self.members()
        if name not in members:
            self._refuse(f"has no {name}")
        return _Value(members[name], f"{self._place}.{name}".lstrip("."))

    def members(self) -> dict[str, Any]:
        """The members of an object."""
        return self._value if isinstance(self._value, dict) else self._refuse("is not an object")

    def items(self) -> Iterator[_Value]:
        """The elements of a list."""
        if not isinstance(self._value, list):
            self._refuse("is not a list")
        return (_Value(one, f"{self._place}[{place}]") for place, one in enumerate(self._value))

    def text(self) -> str:
        """A text."""
        return self._value if isinstance(self._value, str) else self._refuse("is not a text")

    def integer(self) -> int:
        """An integer."""
        value = self._value
        # A Boolean is an integer in Python.
        if not isinstance(value, int) or value is True or value is False:
            self._refuse("is not an integer")
        return value if -_MOST < value < _MOST else self._refuse("is not a plausible number")

    def is_true(self) -> bool:
        """True or false."""
        return self._value if isinstance(self._value, bool) else self._refuse("is not true or false")

    def fraction(self) -> Fraction:
        """An exact amount."""
        text = self.text()
        amount = Fraction(text) if _FRACTION.fullmatch(text) else self._refuse("is not an exact amount")
        return amount if -_MOST < amount < _MOST else self._refuse("is not a plausible number")

    def time(self) -> int:
        """A time in unix microseconds."""
        text = self.text()
        try:
            time = parse_time(text)
        except (ValueError, TypeError):
            self._refuse("is not a time")
        return time if int(text[:4]) in _YEARS else self._refuse("is not a plausible time")

    def texts(self) -> tuple[str, ...]:
        """A list of texts."""
        return tuple(one.text() for one in self.items())

    def integers(self) -> dict[str, int]:
        """An object of integers."""
        return {name: self[name].integer() for name in self.members()}

    def maybe(self, read: Callable[[_Value], Any]) -> Any:
        """None for null, else what `read` reads."""
        return None if self._value is None else read(self)

    def _refuse(self, what: str) -> NoReturn:
        raise MalformedStatement(f"{self._place or 'the statement'} {what}")


def parse_statement(content: Mapping[str, Any]) -> Statement:
    """The statement that `statement_as_json` wrote. Raises MalformedStatement."""
    whole = _Value(dict(content), "")
    try:
        terms = parse_terms(content)
    except (ValueError, KeyError, TypeError) as error:
        raise MalformedStatement(f"its terms cannot be read: {error}") from None
    columns = whole["columns"].texts()
    within = whole["range"]
    lines = [_line(row, _key(row, columns), row["account"].text()) for row in whole["rows"].items()]
    report = UsageReport(
        Grouping(terms.by, columns, _no_key, _no_key, terms.teams),
        terms.prices,
        Period(
            within["since"].time() // MICRO,
            within["cut"].time() // MICRO,
            within["ledger_first"].time() // MICRO,
            within["ledger_last"].time() / MICRO,
        ),
        [line for line in lines if line.account == PROCESS],
        [line for line in lines if line.account != PROCESS],
        _line(whole["total"], ("total",), PROCESS),
        list(map(_gpu, whole["gpus"].items())),
        whole["occupied_seconds"].maybe(_Value.fraction),
        whole["notes"].texts(),
        terms.prices.basis,
        list(map(_part, whole["periods"].items())),
        [_unbilled(one, columns) for one in whole["not_billed"].items()],
        whole["price_list"].text(),
        terms.zone,
    )
    return Statement(
        report,
        terms,
        RequestedPeriod(
            within["requested"].text(),
            within["requested_since"].time(),
            within["requested_until"].maybe(_Value.time),
        ),
        whole["source"]["kind"].text(),
        whole["source"]["name"].text(),
        {gpu["uuid"].text(): gpu["node"].text() for gpu in whole["gpus"].items()},
        whole["program"].text(),
        whole["created"].time(),
        whole["previous"].maybe(_previous),
    )


def _no_key(_: Party | str) -> Key:
    """A statement has the keys of its rows, not those of parties."""
    raise NotImplementedError


def _key(row: _Value, columns: Sequence[str]) -> Key:
    return tuple(row["name"][column].text() for column in columns)


def _line(row: _Value, key: Key, account: str) -> ReportLine:
    def count_of(name: str) -> int | None:
        found: int | None = row[name].maybe(_Value.integer)
        return found

    def seconds(name: str) -> Fraction | None:
        found: Fraction | None = row[f"{name}_seconds"].maybe(_Value.fraction)
        return found

    return ReportLine(
        key,
        account,
        period=row["period"].integer() if "period" in row.members() else 0,
        gpu_microseconds=count_of("gpu_microseconds"),
        estimated_microseconds=row["estimated_microseconds"].integer(),
        uncut_microseconds=row["uncut_microseconds"].integer(),
        methods=row["millijoules_by_method"].integers(),
        high=count_of("high_millijoules"),
        resident=seconds("resident"),
        held=seconds("held"),
        allocated=seconds("allocated"),
        active=seconds("active"),
        unknown=seconds("unknown"),
        sessions=count_of("sessions"),
        time_charges=row["time_charges"].maybe(lambda charges: _charges(charges, "microseconds")),
        energy_charges=row["energy_charges"].maybe(lambda charges: _charges(charges, "millijoules")),
        grams=row["co2_grams"].maybe(_Value.fraction),
        bound=count_of("bound_millijoules"),
        time_bound=count_of("bound_microseconds"),
        unmetered=frozenset(row["unmetered_gpus"].texts()),
        metered=row["metered"].is_true(),
    )


def _charges(charges: _Value, unit: str) -> Charges:
    return {
        Rate(
            one["gpu"].text(),
            one["entry"].text(),
            one["price"].maybe(_Value.fraction),
            one["pue"].fraction(),
        ): one[unit].integer()
        for one in charges.items()
    }


def _part(period: _Value) -> ReportPart:
    begins, ends = (period[name].time() // MICRO // QUARTER for name in ("since", "until"))
    return ReportPart(begins, ends, period["name"].text())


def _unbilled(one: _Value, columns: Sequence[str]) -> UnbilledTime:
    return UnbilledTime(
        one["account"].text(),
        one["gpu_microseconds"].integer(),
        one["time_charges"].maybe(lambda charges: _charges(charges, "microseconds")),
        one["period"].integer(),
        _key(one, columns),
    )


def _gpu(gpu: _Value) -> GpuLine:
    return GpuLine(
        gpu["uuid"].text(),
        gpu["gpu"].text(),
        gpu["model"].text(),
        gpu["millijoules"].maybe(_Value.integer),
        gpu["observed_seconds"].maybe(_Value.fraction),
        gpu["microseconds_by_account"].integers(),
        gpu["unwatched_microseconds"].integer(),
    )


def _previous(previous: _Value) -> PreviousStatement:
    return PreviousStatement(previous["sha256"].text(), previous["since"].time(), previous["until"].time())
