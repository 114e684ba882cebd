"""Checks of flags: one period or its ends, no empty value."""

from __future__ import annotations

import pytest

from gpuledger.app.flag_checks import choose_period
from gpuledger.model.errors import UsageError

CHOSEN = [
    ({"report.in": "2026-11"}, (), "2026-11"),
    ({"report.since": "30d"}, (), ""),
    ({"report.in": "2026-11", "report.since": "30d"}, ("report.in",), "2026-11"),
    ({"report.in": "2026-11", "report.since": "30d"}, ("report.since",), ""),
    ({"report.in": "", "report.since": "30d"}, (), ""),
    ({}, (), ""),
]


@pytest.mark.parametrize(("values", "flags", "period"), CHOSEN)
def test_a_flag_wins_over_the_other_form_in_the_file(
    values: dict[str, str], flags: tuple[str, ...], period: str
) -> None:
    assert choose_period(values, dict.fromkeys(flags, ("x",))) == period


@pytest.mark.parametrize("flags", [(), ("report.in", "report.until")])
@pytest.mark.parametrize(
    ("ends", "names"), [(("until",), "--until"), (("since", "until"), "--since and --until")]
)
def test_a_period_and_an_end_in_the_same_place_are_refused(
    flags: tuple[str, ...], ends: tuple[str, ...], names: str
) -> None:
    given = dict.fromkeys(("report.in", *(f"report.{end}" for end in ends)), "now")
    with pytest.raises(UsageError, match=f"^--in and {names} exclude each other: give a whole period or its"):
        choose_period(given, dict.fromkeys((*flags, *given) if flags else (), ("now",)))


@pytest.mark.parametrize("section", ["report", "explain", "receipt", "books"])
@pytest.mark.parametrize("word", ["", " "])
@pytest.mark.parametrize(("name", "what"), [("in", "period"), ("since", "time"), ("until", "time")])
def test_an_empty_flag_is_no_default(section: str, name: str, what: str, word: str) -> None:
    """A shell variable that is not set must not choose another range."""
    key = f"{section}.{name}"
    with pytest.raises(UsageError, match=f"^--{name}: expected a {what}, not '{word}'; is a shell variable"):
        choose_period({key: word}, {key: [word]}, section)
