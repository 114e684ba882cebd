"""Files of statements: never overwritten, read with one line for each fault, and chained."""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.app import statements
from gpuledger.app.statements import (
    UnreadableStatement,
    check_chain,
    follow_statement,
    make_statement,
    read_statement,
    require_new_file,
    statement_text,
    write_new_file,
)
from gpuledger.host.time_zone import MachineTimeZone
from gpuledger.ledger.report.statement.content import Statement
from gpuledger.ledger.report.statement.digests import seal_statement
from gpuledger.ledger.report.usage_report import Period
from gpuledger.model.errors import GpuledgerError, UsageError
from money_helpers import prices
from statement_helpers import PRICED, entries, statement_of, written

STATEMENT = statement_of(entries().report(PRICED))
TEXT = statement_text(STATEMENT)
DIGITS = [place for place, sign in enumerate(TEXT) if sign.isdigit()]


@given(place=st.sampled_from(DIGITS), digit=st.sampled_from("0123456789"))
def test_any_altered_digit_of_the_file_is_a_problem_that_has_a_place(
    place: int, digit: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.getbasetemp() / "altered.json"
    file.write_text(f"{TEXT[:place]}{digit}{TEXT[place + 1 :]}")
    problems = read_statement(str(file)).problems
    assert bool(problems) == (TEXT[place] != digit)
    line = TEXT.count("\n", 0, place)
    section = TEXT.splitlines()[line].partition('"')[2].partition('"')[0]
    if section in ("range", "total", "settings", "reconciliation"):
        assert all(problem.startswith(f"{section}.") for problem in problems)


def test_a_digit_that_makes_no_number_of_json_has_a_place(tmp_path: Path) -> None:
    file = tmp_path / "altered.json"
    assert '"gpu_microseconds": 1' in TEXT
    file.write_text(TEXT.replace('"gpu_microseconds": 1', '"gpu_microseconds": 0', 1))
    (problem,) = read_statement(str(file)).problems
    assert problem == "rows[0].gpu_microseconds (pod/ml/train-0) is not as it was written"


def test_a_statement_is_written_whole_and_never_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "october.json"
    require_new_file(str(file))
    write_new_file(str(file), TEXT)
    assert read_statement(str(file)).problems == []
    for write in (require_new_file, lambda name: write_new_file(name, "{}")):
        with pytest.raises(UsageError, match=r"october\.json exists, and a statement is never overwritten"):
            write(str(file))
    assert file.read_text() == TEXT
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("name", ["", "new/", ".", ".."])
def test_a_directory_is_no_new_file(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a directory: add the name of a file"):
        require_new_file(f"{tmp_path}/{name}")
    assert list(tmp_path.iterdir()) == []


def test_a_name_of_any_length_is_written_or_one_line(tmp_path: Path) -> None:
    longest = tmp_path / ("a" * 255)
    require_new_file(str(longest))
    write_new_file(str(longest), TEXT)
    require_new_file(f"{longest}b")
    with pytest.raises(GpuledgerError, match="File name too long"):
        write_new_file(f"{longest}b", TEXT)


@pytest.mark.parametrize("number", ["7" * 5000, "-" + "7" * 5000, "1.5", "1e99999999999999999999", "7e3"])
def test_a_number_that_no_statement_has_is_an_altered_place(number: str, tmp_path: Path) -> None:
    file = tmp_path / "altered.json"
    file.write_text(re.sub(r'"sessions": \d+', f'"sessions": {number}', TEXT, count=1))
    (problem,) = read_statement(str(file)).problems
    assert problem == "rows[0].sessions (pod/ml/train-0) is not as it was written"


def test_an_amount_without_its_quotes_is_an_altered_place(tmp_path: Path) -> None:
    file = tmp_path / "altered.json"
    file.write_text(re.sub(r'"cost": "([\d.]+)"', r'"cost": \1', TEXT, count=1))
    (problem,) = read_statement(str(file)).problems
    assert problem == "rows[0].cost (pod/ml/train-0) is not as it was written"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("nowhere.json", "No such file or directory; check the name and the permissions of the file"),
        (".", "Is a directory; name a file in it"),
    ],
)
def test_a_file_that_cannot_be_read_has_a_remedy(name: str, text: str, tmp_path: Path) -> None:
    with pytest.raises(UnreadableStatement) as error:
        read_statement(str(tmp_path / name))
    assert text in str(error.value)


def test_sums_with_too_many_digits_are_a_contradiction(tmp_path: Path) -> None:
    content = written(STATEMENT)
    row = content["rows"][0]
    content["rows"] = [
        {**row, "name": {**row["name"], "owner": str(number)}, "co2_grams": f"1/{10**398 + number}"}
        for number in range(12)
    ]
    file = tmp_path / "crafted.json"
    sealed = seal_statement({key: part for key, part in content.items() if key not in ("checks", "sha256")})
    file.write_text(json.dumps(sealed))
    assert read_statement(str(file)).problems == ["total cannot be computed: amounts have too many digits"]


def test_a_link_to_nowhere_is_a_file_that_exists(tmp_path: Path) -> None:
    file = tmp_path / "link.json"
    file.symlink_to(tmp_path / "nowhere.json")
    with pytest.raises(UsageError, match="exists"):
        require_new_file(str(file))


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP])
def test_a_file_system_without_hard_links_will_do(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(statements.os, "link", link)
    file = str(tmp_path / "october.json")
    write_new_file(file, TEXT)
    assert read_statement(file).problems == []
    with pytest.raises(UsageError, match="exists"):
        write_new_file(file, TEXT)


def test_a_directory_that_does_not_exist_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(GpuledgerError, match=r"cannot write the statement .*: No such file or directory"):
        write_new_file(str(tmp_path / "no" / "october.json"), TEXT)


@pytest.mark.parametrize("place", ["file/s.json", "loop/s.json", f"{'n' * 300}/s.json", f"{'n' * 300}.json"])
def test_a_statement_without_a_place_says_why_and_leaves_nothing(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to("loop")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(
        GpuledgerError, match=r"^cannot write the statement .*; check the directory and its disk$"
    ):
        write_new_file(str(tmp_path / place), "{}")
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("", "is not JSON"),
        ("[]", "has no statement_schema"),
        ('{"version": 2}', "has no statement_schema"),
        (TEXT[:-40], "is not JSON"),
        (TEXT.replace('"zone"', '"zone": 1, "zone"'), "an object has zone twice"),
        (TEXT.replace('"uncut_microseconds": 0', '"uncut_microseconds": NaN'), "NaN is no number"),
        ("[" * 200_000, "is not JSON"),
        ("\x00\xff", "is not JSON"),
    ],
)
def test_what_is_no_statement_is_one_line(content: str, text: str, tmp_path: Path) -> None:
    file = tmp_path / "october.json"
    file.write_bytes(content.encode("latin-1"))
    with pytest.raises(UnreadableStatement) as error:
        read_statement(str(file))
    assert text in str(error.value)
    assert error.value.exit_code == 2


def test_a_statement_of_a_later_version_names_the_program_that_wrote_it(tmp_path: Path) -> None:
    content = {**written(STATEMENT), "statement_schema": 2, "program": "9.1"}
    later = seal_statement({key: value for key, value in content.items() if key not in ("checks", "sha256")})
    file = tmp_path / "later.json"
    file.write_text(json.dumps(later))
    with pytest.raises(UnreadableStatement, match=r"version 2, and this gpuledger reads version 1.*9\.1"):
        read_statement(str(file))


def test_a_statement_that_this_machine_cannot_read_is_not_altered(tmp_path: Path) -> None:
    content = {**written(STATEMENT), "zone": "Mars/Olympus"}
    other = seal_statement({key: value for key, value in content.items() if key not in ("checks", "sha256")})
    file = tmp_path / "mars.json"
    file.write_text(json.dumps(other))
    with pytest.raises(UnreadableStatement, match=r"is intact, and cannot be read here: its terms .*Mars"):
        read_statement(str(file))


def in_month(number: int) -> Statement:
    """A statement of one hour, the first of it at this quarter."""
    return statement_of(entries(4 * number).report(PRICED))


def test_three_months_are_a_chain(tmp_path: Path) -> None:
    files = [str(tmp_path / f"{number}.json") for number in range(3)]
    for number, file in enumerate(files):
        statement, notes = in_month(number), list[str]()
        if number:
            statement, notes = follow_statement(statement, files[number - 1])
        assert notes == []
        write_new_file(file, statement_text(statement))
    assert check_chain(read_statement(files[1]), files[0]) == ([], [])
    assert check_chain(read_statement(files[2]), files[1]) == ([], [])
    (problem,), _ = check_chain(read_statement(files[2]), files[0])
    assert "it follows the statement with the SHA-256 " in problem
    (problem,), _ = check_chain(read_statement(files[0]), files[1])
    assert "it follows no statement" in problem


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda: in_month(3), ("GAP", "1970-01-01 02:00 +0000", "1970-01-01 03:00 +0000")),
        (
            lambda: in_month(0),
            ("ORDER", "begins at 1970-01-01 01:00 +0000", "this one ends at 1970-01-01 01:00 +0000", "later"),
        ),
        (lambda: replace(in_month(2), nodes={"GPU-0": "b"}), ("nodes node-1, this one b",)),
        (
            lambda: statement_of(entries(8).report(prices(gpu_hour="1", currency="USD"))),
            ("currency EUR, this one USD",),
        ),
    ],
)
def test_what_does_not_join_is_said_in_the_notes(
    change: Callable[[], Any], words: tuple[str, ...], tmp_path: Path
) -> None:
    first = tmp_path / "first.json"
    write_new_file(str(first), statement_text(in_month(1)))
    statement, (note,) = follow_statement(change(), str(first))
    assert all(word in note for word in words)
    assert note in statement.report.notes


@pytest.mark.parametrize(
    ("before", "now", "sentence"),
    [
        (
            (0, 2),
            (4, 6),
            "GAP: the previous statement ends at 02 and this one begins at 04: the time between",
        ),
        ((0, 2), (2, 4), ""),
        ((0, 3), (2, 4), "OVERLAP: the time from 02 to 03 is in"),
        ((0, 4), (2, 4), "OVERLAP: the time from 02 to 04 is in"),
        ((0, 6), (2, 4), "OVERLAP: the time from 02 to 04 is in"),
        ((2, 3), (2, 4), "OVERLAP: the time from 02 to 03 is in"),
        ((2, 4), (2, 4), "OVERLAP: the time from 02 to 04 is in"),
        ((2, 6), (2, 4), "OVERLAP: the time from 02 to 04 is in"),
        ((3, 4), (2, 5), "OVERLAP: the time from 03 to 04 is in"),
        ((3, 4), (2, 4), "OVERLAP: the time from 03 to 04 is in"),
        ((3, 6), (2, 4), "OVERLAP: the time from 03 to 04 is in"),
        ((4, 6), (2, 4), "ORDER: the previous statement begins at 04 and this one ends at 04: the previous"),
        ((6, 8), (2, 4), "ORDER: the previous statement begins at 06 and this one ends at 04: the previous"),
    ],
)
def test_how_two_ranges_join_is_said(
    before: tuple[int, int], now: tuple[int, int], sentence: str, tmp_path: Path
) -> None:
    def within(since: int, until: int) -> Statement:
        statement = in_month(1)
        period = Period(since * 3600, until * 3600, 0, 100 * 3600.0)
        return replace(statement, report=replace(statement.report, period=period))

    first = tmp_path / "first.json"
    write_new_file(str(first), statement_text(within(*before)))
    _, notes = follow_statement(within(*now), str(first))
    short = [re.sub(r"1970-01-01 (\d\d):00 \+0000", r"\1", note) for note in notes]
    assert len(short) == bool(sentence)
    assert "".join(short).startswith(sentence)


def test_a_chain_needs_an_intact_statement(tmp_path: Path) -> None:
    first = tmp_path / "first.json"
    first.write_text(TEXT.replace("train-0", "train-1"))
    with pytest.raises(GpuledgerError, match=r"rows\[0\]\.name .* is not as it was written; a chain needs"):
        follow_statement(in_month(2), str(first))


def test_a_time_zone_without_a_name_is_utc_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    report = replace(entries().report(PRICED), zone=MachineTimeZone("/etc/localtime"))
    made = statements.MadeReport(report, statements.RequestedRange(0, 1, "a", "b"), "ledger", "x")
    monkeypatch.setattr(MachineTimeZone, "utcoffset", lambda *_: statements.timedelta(0))
    assert make_statement(made, "owner", "", ()).terms.zone_name == "UTC"
    monkeypatch.setattr(MachineTimeZone, "utcoffset", lambda *_: statements.timedelta(hours=1))
    with pytest.raises(UsageError, match=r"set report\.timezone"):
        make_statement(made, "owner", "", ())
