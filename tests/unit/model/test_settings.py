"""Settings: parsers, precedence and error messages."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from gpuledger.app.flags import build_parser, parse_flags
from gpuledger.config.commands import NODE_GROUPS
from gpuledger.config.load import load_values, settings_of
from gpuledger.model.errors import UsageError
from gpuledger.model.settings import (
    Parser,
    boolean,
    build_settings,
    choice,
    comma_separated,
    declared_settings,
    duration,
    integer,
    number,
    option,
    setting,
    text,
)


@dataclass(frozen=True, slots=True)
class Sample:
    """Settings of each kind."""

    interval: float = setting("interval", duration("s"), 1.0, "h", flags=("--interval", "--old-name"))
    most: int = setting("process.most", integer(1, 10), 5, "h")
    graphics: bool = setting("process.graphics", boolean, False, "h")
    listen: tuple[str, ...] = setting("listen", comma_separated(text), ("a",), "h", repeatable=True)


@pytest.mark.parametrize(
    ("parse_value", "given", "expected"),
    [
        (duration(), "", "DURATION"),
        (integer(0, 9), "", "N"),
        (number(0, 1), "RATIO", "RATIO"),
        (choice("full", "off"), "", "full|off"),
        (comma_separated(text), "", "LIST"),
        (text, "", ""),
    ],
)
def test_a_setting_without_metavar_shows_that_of_its_parser(
    parse_value: Parser, given: str, expected: str
) -> None:
    declared = setting("key", parse_value, None, "h", metavar=given)
    assert cast("Any", declared).metadata["setting"].metavar == expected


def test_the_flag_of_an_option_omits_the_section_of_its_key() -> None:
    @dataclass(frozen=True, slots=True)
    class Command:
        """Settings of one command."""

        since_hour: int = option("report.since_hour", integer(0, 23), 1, "h")

    ((_, declared, default),) = declared_settings(Command)
    assert (declared.key, declared.flags, default) == ("report.since_hour", ("--since-hour",), 1)


@pytest.mark.parametrize(
    ("parse_value", "given", "expected"),
    [
        (duration("s"), "1m30s", 90.0),
        (duration("s"), "500ms", 0.5),
        (duration("s"), "1h2m3.5s", 3723.5),
        (duration("s"), "1w2d", 777_600.0),
        (duration("s"), "1y", 31_536_000.0),
        (duration("s"), "10", 10.0),
        (duration("ms"), "30000", 30.0),
        (duration("s"), 2, 2.0),
        (boolean, "True", True),
        (boolean, "off", False),
        (boolean, False, False),
        (integer(0, 9), " 7 ", 7),
        (number(0, 1), "0.25", 0.25),
        (choice("full", "off"), "full", "full"),
        (choice("full", "off"), False, "off"),
        (comma_separated(text), "a, b,,c", ("a", "b", "c")),
        (comma_separated(text), ["a", 2], ("a", "2")),
        (text, 12, "12"),
    ],
)
def test_values_are_parsed_from_text_and_yaml(parse_value: Parser, given: object, expected: object) -> None:
    assert parse_value(given) == expected


@pytest.mark.parametrize(
    ("parse_value", "given", "expected"),
    [
        (duration("s"), "5x", "expected a duration such as"),
        (duration("s"), "-1s", "expected a duration such as"),
        (duration("s"), True, "expected a duration such as"),
        (duration("s", lowest=0.1), "10ms", "at least 0.1 s"),
        (boolean, "maybe", "true or false"),
        (integer(1, 9), "10", "from 1 to 9"),
        (integer(1, 9), "1.5", "expected an integer"),
        (integer(0, 9), True, "expected an integer"),
        (number(0, 1), "nan", "from 0 to 1"),
        (choice("a", "b"), "c", "one of a, b"),
        (comma_separated(text), None, "expected a list"),
        (comma_separated(text), {"a": 1}, "expected a list"),
        (comma_separated(text), [None], "expected text"),
        (text, ["a"], "expected text"),
        (text, None, "expected text"),
    ],
)
def test_an_invalid_value_raises_an_error_with_the_expected_form(
    parse_value: Parser, given: object, expected: str
) -> None:
    with pytest.raises(ValueError, match=expected):
        parse_value(given)


def values(tmp_path: Path, file: str = "", environment: str = "", flag: str = "") -> Sample:
    config = tmp_path / "c.yaml"
    config.write_text(file)
    variables = {"GPULEDGER_INTERVAL": environment} if environment else {}
    flags = {"interval": [flag]} if flag else {}
    return build_settings(Sample, load_values([Sample], flags, variables, config))


def test_flags_override_environment_then_file_then_defaults(tmp_path: Path) -> None:
    assert values(tmp_path).interval == 1.0
    assert values(tmp_path, "interval: 2s").interval == 2.0
    assert values(tmp_path, "interval: 2s", "3s").interval == 3.0
    assert values(tmp_path, "interval: 2s", "3s", "4s").interval == 4.0


@pytest.mark.parametrize("file", ["process: {most: 7}", "process.most: 7", '{"process": {"most": "7"}}'])
def test_keys_can_be_nested_or_dotted(tmp_path: Path, file: str) -> None:
    assert values(tmp_path, file).most == 7


BAD_FILES = [
    ("intervl: 1s", "unknown key 'intervl'; did you mean 'interval'?"),
    ("process: {mots: 7}", "unknown key 'process.mots'; did you mean 'process.most'?"),
    ("process: {most: 70}", "process.most: expected an integer from 1 to 10, not 70"),
    ("interval: {a: 1}", "interval: expected a duration such as"),
    ("[1, 2]", "expected a mapping of settings at the top level"),
    ("a: [", "is not YAML"),
]


@pytest.mark.parametrize(("file", "line"), BAD_FILES)
def test_an_invalid_file_is_reported_with_file_and_key(tmp_path: Path, file: str, line: str) -> None:
    with pytest.raises(UsageError) as caught:
        values(tmp_path, file)
    assert line in str(caught.value)
    assert str(tmp_path / "c.yaml") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_reported_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read the configuration .*No such file"):
        load_values([Sample], {}, {}, tmp_path / "none.yaml")


def test_keys_of_other_commands_are_allowed_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("interval: 2s\nmetrics_path: /m\n")
    assert load_values([Sample], {}, {}, file, NODE_GROUPS.values()) == {"interval": 2.0}


def test_an_invalid_environment_variable_is_named_in_the_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"GPULEDGER_INTERVAL: expected a duration .* not 'x'"):
        values(tmp_path, environment="x")


def given(*arguments: str) -> Sample:
    made = build_parser("test", "about", "", {"title": Sample})
    return build_settings(
        Sample, load_values([Sample], parse_flags(made, [Sample], arguments, {}).flags, {}, None)
    )


@pytest.mark.parametrize(
    "arguments",
    [["--interval=2s"], ["--interval", "2s"], ["-interval=2s"], ["-interval", "2s"], ["-old-name", "2s"]],
)
def test_flags_accept_one_or_two_dashes_and_equals_or_space(arguments: list[str]) -> None:
    assert given(*arguments).interval == 2.0


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--process.graphics"], True),
        (["-process.graphics"], True),
        (["--process.graphics=false"], False),
        (["--process.graphics=true"], True),
        ([], False),
    ],
)
def test_a_boolean_flag_needs_no_value(arguments: list[str], expected: bool) -> None:
    assert given(*arguments).graphics is expected


def test_a_repeatable_flag_appends_and_other_flags_use_the_last_value() -> None:
    assert given("--listen", "x", "--listen=y").listen == ("x", "y")
    assert given("--interval=1s", "--interval=9s").interval == 9.0


@pytest.mark.parametrize(
    ("argument", "line"),
    [
        ("--intervall=1s", "unknown flag '--intervall'; did you mean '--interval'?"),
        ("-q", "unknown flag '-q'"),
        ("--interval", "expected one argument"),
    ],
)
def test_an_unknown_flag_suggests_the_most_similar_one(argument: str, line: str) -> None:
    with pytest.raises(UsageError) as caught:
        given(argument)
    assert line in str(caught.value)


def test_no_flag_key_or_variable_is_declared_twice() -> None:
    declared = [item for group in NODE_GROUPS.values() for item in settings_of([group]).values()]
    for names in (
        [flag for item in declared for flag in item.flags],
        [item.key for item in declared],
        [item.environment for item in declared],
    ):
        assert len(names) == len(set(names))
