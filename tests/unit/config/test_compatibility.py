"""Flags of other exporters without an equivalent are ignored, or refused with the sentence of the help."""

from __future__ import annotations

import pytest

from gpuledger.app.flags import build_parser, parse_flags
from gpuledger.config.commands import NODE_GROUPS
from gpuledger.config.compatibility import FlagsWithoutEquivalent
from gpuledger.config.load import load_values, settings_of
from gpuledger.config.node import ignored_flags
from gpuledger.model.errors import UsageError
from gpuledger.model.settings import Setting

ITEMS = tuple(settings_of([FlagsWithoutEquivalent]).values())
REFUSED = [item for item in ITEMS if item.help.startswith("not supported: ")]
IGNORED = [item for item in ITEMS if item.help.startswith("no effect: ")]


def settings(*arguments: str, **variables: str) -> dict[str, object]:
    parser = build_parser("serve", "", "", NODE_GROUPS)
    given = parse_flags(parser, NODE_GROUPS.values(), arguments, variables)
    return load_values(NODE_GROUPS.values(), given.flags, variables, given.config)


def test_every_flag_of_the_table_is_ignored_or_refused() -> None:
    assert len(REFUSED) == 27
    assert len(IGNORED) == 11
    assert len(REFUSED) + len(IGNORED) == len(ITEMS)


@pytest.mark.parametrize("item", REFUSED, ids=lambda item: item.key)
def test_a_refused_flag_and_its_variable_are_errors_with_the_sentence_of_the_help(item: Setting) -> None:
    wrong = "true" if item.boolean else "other"
    remedy = item.help.removeprefix("not supported: ")
    for flag in item.flags:
        with pytest.raises(UsageError) as caught:
            settings(flag, wrong)
        assert str(caught.value).startswith(f"{item.flags[0]}: ")
        assert f"not supported ({remedy})" in str(caught.value)
    for variable in item.variables:
        with pytest.raises(UsageError) as caught:
            settings(**{variable: wrong})
        assert str(caught.value).startswith(f"{variable}: ")


@pytest.mark.parametrize("item", REFUSED, ids=lambda item: item.key)
def test_a_refused_flag_is_accepted_with_the_default_of_its_program(item: Setting) -> None:
    for value in item.metavar.strip("'").split("|"):
        found = settings(item.flags[-1], value) if value else settings(f"{item.flags[-1]}=")
        assert set(found) == {item.key}
        assert ignored_flags(found) == []


@pytest.mark.parametrize("item", IGNORED, ids=lambda item: item.key)
def test_an_ignored_flag_and_its_variable_set_nothing_and_are_reported(item: Setting) -> None:
    (flag,), (variable,) = item.flags, item.variables
    value = "true" if item.boolean else "any text"
    bare = settings(flag) if item.boolean else settings(flag, value)
    for found in (bare, settings(f"{flag}=false"), settings(**{variable: value})):
        assert set(found) == {item.key}
        assert ignored_flags(found) == [flag]


def test_flags_that_only_select_a_dialect_are_reported_as_ignored() -> None:
    assert ignored_flags(settings("--kubernetes-gpu-id-type", "uid", "-k")) == ["--kubernetes-gpu-id-type"]
    assert ignored_flags(settings("--collect.compute-apps-mig")) == ["--collect.compute-apps-mig"]
    assert ignored_flags(settings("-r", "localhost", "--interval", "1s")) == ["-r"]
