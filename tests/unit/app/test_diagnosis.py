"""Running checks, and printing their findings."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from threading import Event

import pytest

from gpuledger.app.diagnosis import exit_code, findings_json, findings_table, run_checks
from gpuledger.model.checks import Check, Finding, Verdict, fails, skipped, unknown, warning, works
from gpuledger.model.errors import GpuledgerError

EACH = [
    works("a", "alpha", "fine"),
    fails("b", "beta", "broken", "fix it"),
    warning("c", "gamma", "slow", "speed it up"),
    unknown("d", "delta", "hidden"),
    skipped("e", "epsilon", "because of: beta"),
    skipped("f", "zeta", "because of: beta"),
    skipped("g", "eta", "does not apply"),
]


class Output(io.StringIO):
    def __init__(self, encoding: str = "utf-8", terminal: bool = False) -> None:
        super().__init__()
        self._encoding, self._terminal = encoding, terminal

    @property
    def encoding(self) -> str:  # type: ignore[override]  # a StringIO has none
        return self._encoding

    def isatty(self) -> bool:
        return self._terminal


def check(name: str, *findings: Finding, needs: tuple[str, ...] = ()) -> Check:
    return Check(name, f"the {name}", lambda: findings, needs)


def test_a_check_with_a_failed_prerequisite_is_skipped_and_names_the_first_cause() -> None:
    checks = [
        check("a", fails("a", "alpha", "broken", "fix it")),
        check("b", works("b", "beta", "fine"), needs=("a",)),
        check("c", works("c", "gamma", "fine"), needs=("b",)),
    ]
    assert [(finding.verdict, finding.why) for finding in run_checks(checks)[1:]] == [
        (Verdict.SKIPPED, "because of: alpha"),
        (Verdict.SKIPPED, "because of: alpha"),
    ]


@pytest.mark.parametrize(
    "before",
    [works("a", "alpha", ""), warning("a", "alpha", "", ""), skipped("a", "alpha", "does not apply")],
)
def test_only_failed_prerequisites_skip_a_check(before: Finding) -> None:
    found = run_checks([check("a", before), check("b", works("b", "beta", "fine"), needs=("a", "nowhere"))])
    assert found[1].verdict is Verdict.WORKS


def test_a_check_that_raises_keeps_its_findings_and_adds_one() -> None:
    def run() -> Iterable[Finding]:
        yield works("a", "alpha", "fine")
        raise RuntimeError("odd")

    found = run_checks([Check("a", "alpha", run), check("b", works("b", "beta", "fine"))])
    assert [finding.verdict for finding in found] == [Verdict.WORKS, Verdict.UNKNOWN, Verdict.WORKS]
    assert "RuntimeError: odd" in found[1].why


def test_an_error_of_gpuledger_is_a_failure_with_its_remedy() -> None:
    def run() -> Iterable[Finding]:
        raise GpuledgerError("no socket; mount it")

    assert run_checks([Check("a", "alpha", run)]) == [fails("a", "alpha", "no socket", "mount it")]


def test_a_check_that_hangs_is_abandoned_and_keeps_its_findings() -> None:
    done = Event()

    def run() -> Iterable[Finding]:
        yield works("a", "GPU 0", "fine")
        done.wait()

    try:
        found = run_checks([Check("a", "alpha", run, limit=0.2), check("b", works("b", "beta", "fine"))])
    finally:
        done.set()
    assert [finding.verdict for finding in found] == [Verdict.WORKS, Verdict.FAILS, Verdict.WORKS]
    assert "0.2 s" in found[1].why


@pytest.mark.parametrize(
    ("verdicts", "code"),
    [([], 0), (["works"], 0), (["warning", "unknown", "skipped"], 0), (["works", "fails"], 1)],
)
def test_only_a_failure_is_exit_code_1(verdicts: list[str], code: int) -> None:
    assert exit_code(Finding("a", Verdict(word), "", "") for word in verdicts) == code


def test_the_table_has_symbols_and_verdicts_and_remedies_on_separate_lines() -> None:
    assert findings_table(EACH, Output(), {}).splitlines() == [
        "✓ works    alpha          fine",
        "✗ fails    beta           broken",
        "           remedy: fix it",
        "! warning  gamma          slow",
        "           remedy: speed it up",
        "? unknown  delta          hidden",
        "- skipped  epsilon, zeta  because of: beta",
        "- skipped  eta            does not apply",
        "",
        "1 works, 1 fails, 1 warning, 1 unknown, 3 skipped. Start with: beta.",
    ]


def test_the_summary_without_failures_names_none() -> None:
    assert findings_table(EACH[:1], Output(), {}).endswith("\n1 works, 0 fails.\n")


@pytest.mark.parametrize(
    ("terminal", "environment", "coloured"),
    [
        (True, {}, True),
        (True, {"NO_COLOR": ""}, True),
        (True, {"NO_COLOR": "1"}, False),
        (True, {"TERM": "dumb"}, False),
        (False, {}, False),
    ],
)
def test_colors_are_used_on_terminals_that_allow_them(
    terminal: bool, environment: dict[str, str], coloured: bool
) -> None:
    assert ("\x1b[" in findings_table(EACH, Output(terminal=terminal), environment)) is coloured


def test_an_output_that_is_not_unicode_gets_ascii_and_escapes() -> None:
    table = findings_table([fails("a", "alpha", "Gerät", "fix it")], Output("ascii"), {})
    assert table.startswith("x fails    alpha  Ger\\xe4t\n")


def test_json_is_stable() -> None:
    document = json.loads(findings_json(EACH, "1.2.3"))
    assert list(document) == ["version", "findings", "summary"]
    assert document["version"] == "1.2.3"
    assert document["findings"][1] == {
        "check": "b",
        "verdict": "fails",
        "what": "beta",
        "why": "broken",
        "remedy": "fix it",
    }
    assert len(document["findings"]) == len(EACH)
    assert document["summary"] == {
        "ok": False,
        "works": 1,
        "fails": 1,
        "warning": 1,
        "unknown": 1,
        "skipped": 3,
    }
