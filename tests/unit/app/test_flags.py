"""The pages of the help, and suggestions for unknown flags."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pytest

from gpuledger.app.flags import build_parser, parse_flags
from gpuledger.cli.main import COMMANDS, main
from gpuledger.config.commands import GROUPS, NODE_GROUPS
from gpuledger.config.help_pages import HelpPage
from gpuledger.config.load import settings_of
from gpuledger.config.node import help_page
from gpuledger.model.errors import UsageError

FLAG = re.compile(r"(?<![\w-])--?[A-Za-z][\w.-]*")


def page(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(words) == 0
    return capsys.readouterr().out


def listed(text: str) -> set[str]:
    """The flags at the beginning of a line, with their other names."""
    return {flag for line in text.splitlines() if re.match(r"  -", line) for flag in FLAG.findall(line)}


def flags_of(groups: Iterable[type]) -> set[str]:
    return {flag for item in settings_of(groups).values() for flag in item.flags}


def on(*pages: HelpPage) -> list[type]:
    return [group for group in NODE_GROUPS.values() if help_page(group) in pages]


def test_the_help_of_serve_fits_three_screens(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert len(page(capsys, "serve", "--help").splitlines()) <= 3 * 50


def test_every_flag_is_on_a_page_of_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    common, every, other = (page(capsys, "serve", flag) for flag in ("--help", "--help-all", "--help-compat"))
    assert flags_of(on(HelpPage.COMMON)) <= listed(common)
    assert flags_of(on(HelpPage.COMMON, HelpPage.RARE)) <= listed(every)
    assert flags_of(on(HelpPage.COMPATIBILITY)) <= listed(other)
    compatibility = flags_of(on(HelpPage.COMPATIBILITY))
    assert not listed(common) & (compatibility | flags_of(on(HelpPage.RARE)))
    assert not listed(every) & compatibility
    assert "--kubernetes-virtual-gpus" in compatibility


def test_help_all_shows_keys_and_help_compat_the_variables_of_the_other_exporter(
    capsys: pytest.CaptureFixture[str],
) -> None:
    every = " ".join(page(capsys, "serve", "--help-all").split())
    assert "[host.pids, GPULEDGER_HOST_PIDS]" in every
    other = " ".join(page(capsys, "serve", "--help-compat").split())
    assert "-f, --collectors FILE --dcgm.collectors [DCGM_EXPORTER_COLLECTORS]" in other
    assert "not supported: use --source simulator [DCGM_EXPORTER_USE_FAKE_GPUS]" in other


@pytest.mark.parametrize("flag", ["-h", "-help", "--help"])
def test_the_help_names_its_other_pages(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = page(capsys, "serve", flag)
    assert "--help-all" in text
    assert "--help-compat" in text


def test_a_command_without_more_flags_has_one_page_of_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--help-all" not in page(capsys, "pause", "--help")
    assert "--help-compat" not in page(capsys, "collect", "--help")
    assert main(("pause", "--help-all")) == 2


def test_each_group_of_settings_is_declared_once_for_existing_commands() -> None:
    groups = [group for _, group, _, _ in GROUPS]
    assert len(groups) == len(set(groups)) == len({title for title, *_ in GROUPS})
    assert {command for _, _, commands, _ in GROUPS for command in commands} <= set(COMMANDS)


@pytest.mark.parametrize(
    ("given", "advice"),
    [
        ("--intervall", "did you mean '--interval'?"),
        ("--sorce=nvml", "did you mean '--source'?"),
        ("--price.pue", "did you mean '--pue'?"),
        ("--price.khw", "did you mean '--price.kwh'?"),
        ("--loglevel", "did you mean '--log-level'?"),
        ("--listen", "did you mean '--listen-address'?"),
        ("--collector", "did you mean '--collectors'?"),
        ("--web.listen-adress", "did you mean '--web.listen-address'?"),
        ("--ports", "see gpuledger serve --help"),
        ("--token", "see gpuledger serve --help"),
        ("--timeout", "see gpuledger serve --help"),
        ("--dcgm.foo", "see gpuledger serve --help"),
        ("--web.limits.foo", "see gpuledger serve --help"),
        ("--web.disable-exporter-metrics", "see gpuledger serve --help"),
        # Flags of other programs that do nothing here, or are refused.
        ("--dump-retentoin", "see gpuledger serve --help"),
        ("--enable-pproff", "see gpuledger serve --help"),
        ("--fake-gpu", "see gpuledger serve --help"),
        ("-q", "see gpuledger serve --help"),
    ],
)
def test_only_a_similar_flag_is_suggested(given: str, advice: str) -> None:
    parser = build_parser("serve", "", "", NODE_GROUPS)
    with pytest.raises(UsageError) as caught:
        parse_flags(parser, NODE_GROUPS.values(), [given], {})
    assert str(caught.value) == f"unknown flag '{given.partition('=')[0]}'; {advice}"


@pytest.mark.parametrize(
    ("command", "words", "advice"),
    [
        ("serve", ["--port", "9500"], "--listen-address :9500"),
        ("serve", ["--port=9500"], "--listen-address :9500"),
        ("serve", ["-port", "9500"], "--listen-address :9500"),
        ("serve", ["--port"], "--listen-address :PORT"),
        ("serve", ["--port", "--once"], "--listen-address :PORT"),
        ("serve", ["--host", "0.0.0.0"], "--listen-address 0.0.0.0:9400"),
        ("agent", ["--port", "9500"], "--listen-address :9500"),
        ("top", ["--port", "9500"], "--url http://localhost:9500"),
        ("serve", ["--verbose"], "--log-level debug"),
        ("report", ["--from", "monday"], "--since monday"),
        ("report", ["--port", "9500"], ""),
    ],
)
def test_a_flag_of_other_programs_names_the_one_of_this_command(
    command: str, words: list[str], advice: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, *words]) == 2
    text = f"gpuledger: unknown flag '--{words[0].partition('=')[0].lstrip('-')}'; did you mean '{advice}'?"
    assert (capsys.readouterr().err.strip() == text) is bool(advice)


def test_a_format_is_a_flag_too(capsys: pytest.CaptureFixture[str]) -> None:
    written = page(capsys, "metrics", "--format", "json")
    assert page(capsys, "metrics", "--json") == written
    assert page(capsys, "metrics", "--table", "--json") == written
    assert page(capsys, "metrics", "--json", "--format", "table") != written
    assert main(["metrics", "--csv"]) == 2
    assert main(["metrics", "--json=true"]) == 2
    assert "--json means --format json" in " ".join(page(capsys, "report", "--help").split())


@pytest.mark.parametrize(("flag", "value"), [("--since", "-1d"), ("--until", "-2026-11-01"), ("--top", "-1")])
def test_a_negative_value_is_named(flag: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--state-dir", "/none", flag, value]) != 0
    assert "expected one argument" not in capsys.readouterr().err
    assert main(["idle", "--for", value]) == 2
    assert f"--for: expected a duration such as 500ms, 10s or 1m30s, not '{value}'" in capsys.readouterr().err
