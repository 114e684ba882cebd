"""Run the checks of `doctor` and of the health API, and format their findings as a table or as JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from threading import Thread
from typing import Any, Final, TextIO

from gpuledger.config.node import configured_node_name
from gpuledger.host.checks import host_checks
from gpuledger.host.clock import SystemClock
from gpuledger.host.settings import HostSettings
from gpuledger.host.users import PASSWD_KEY
from gpuledger.http.settings import HttpSettings
from gpuledger.ledger.settings import StoreSettings
from gpuledger.ledger.store.checks import ledger_checks
from gpuledger.model.checks import Check, Finding, Verdict, caused_by, fails, skipped, split_remedy, unknown
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.settings import build_settings
from gpuledger.model.text import is_utf8
from gpuledger.node.settings import NodeSettings
from gpuledger.outputs.checks import web_config_checks
from gpuledger.sources.settings import SourceSettings
from gpuledger.workloads.owner_index_setup import owner_index_checks

_SYMBOLS: Final = {
    Verdict.WORKS: ("✓", "+", "32"),
    Verdict.FAILS: ("✗", "x", "31;1"),
    Verdict.WARNING: ("!", "!", "33"),
    Verdict.UNKNOWN: ("?", "?", "36"),
    Verdict.SKIPPED: ("-", "-", "2"),
}
_WORD: Final = max(len(verdict.value) for verdict in Verdict)
_WIDEST_NAME: Final = 28


def run_checks(checks: Iterable[Check]) -> list[Finding]:
    """Run the checks one after the other and return their Findings in order. Never raises.

    Each check runs in a thread that can be abandoned, because reads of files or the driver can hang.
    """
    found: list[Finding] = []
    for check in checks:
        cause = _cause(check, found)
        found += [skipped(check.name, check.what, caused_by(cause))] if cause else _run_check(check)
    return found


def _cause(check: Check, found: Sequence[Finding]) -> str:
    """The name of the first failed prerequisite of this check; empty if none failed."""
    for finding in found:
        if finding.check in check.needs:
            if finding.verdict is Verdict.FAILS:
                return finding.what
            if finding.verdict is Verdict.SKIPPED and finding.why.startswith(caused_by("")):
                return finding.why.removeprefix(caused_by(""))
    return ""


def _run_check(check: Check) -> list[Finding]:
    found: list[Finding] = []

    def run() -> None:
        try:
            for finding in check.run():
                found.append(finding)  # noqa: PERF402  (a check that hangs keeps what it has found)
        except GpuledgerError as error:
            found.append(fails(check.name, check.what, *split_remedy(error)))
        except Exception as error:  # noqa: BLE001  (a failing check is a finding; the other checks still run)
            why = f"the check itself failed: {type(error).__name__}: {error}"
            found.append(unknown(check.name, check.what, why, "please report this line"))

    thread = Thread(target=run, name=f"check {check.name}", daemon=True)
    thread.start()
    thread.join(check.limit)
    if not thread.is_alive():
        return found
    why = f"the check did not finish within {check.limit:g} s"
    remedy = "a read hangs: look for errors in `dmesg`, and check network mounts"
    return [*found, fails(check.name, check.what, why, remedy)]


def exit_code(findings: Iterable[Finding]) -> int:
    """1 when anything fails, else 0."""
    return int(any(finding.verdict is Verdict.FAILS for finding in findings))


def findings_json(findings: Sequence[Finding], version: str) -> str:
    """One object: `findings` in order, and a `summary` with the number of each verdict."""
    counts = Counter(finding.verdict for finding in findings)
    document = {
        "version": version,
        "findings": [asdict(finding) | {"verdict": finding.verdict.value} for finding in findings],
        "summary": {
            "ok": not exit_code(findings),
            **{verdict.value: counts[verdict] for verdict in Verdict},
        },
    }
    return json.dumps(document, indent=2) + "\n"


def findings_table(findings: Sequence[Finding], to: TextIO, environment: Mapping[str, str]) -> str:
    """Lines for people: symbol, verdict, subject, reason, and the remedy below. Colored on terminals only."""
    colour = to.isatty() and not environment.get("NO_COLOR") and environment.get("TERM") != "dumb"
    plain = not is_utf8(to.encoding)
    rows = _folded(findings)
    width = min(_WIDEST_NAME, max((len(finding.what) for finding in rows), default=0))
    lines: list[str] = []
    for finding in rows:
        mark = _mark(finding.verdict, plain, colour)
        lines.append(f"{mark}  {finding.what:<{width}}  {finding.why}")
        if finding.remedy:
            lines.append(f"{'':{_WORD + 4}}remedy: {finding.remedy}")
    lines += ["", _summary(findings)]
    text = "\n".join(lines) + "\n"
    encoding = to.encoding or "ascii"
    return text.encode(encoding, "backslashreplace").decode(encoding) if plain else text


def _mark(verdict: Verdict, plain: bool, colour: bool) -> str:
    symbol, ascii_symbol, code = _SYMBOLS[verdict]
    mark = f"{ascii_symbol if plain else symbol} {verdict.value:<{_WORD}}"
    return f"\x1b[{code}m{mark}\x1b[0m" if colour else mark


def _folded(findings: Sequence[Finding]) -> list[Finding]:
    """Merge the findings that were skipped for the same cause into the first of them."""
    rows: list[Finding] = []
    places: dict[str, int] = {}
    for finding in findings:
        by_cause = finding.verdict is Verdict.SKIPPED and finding.why.startswith(caused_by(""))
        if by_cause and finding.why in places:
            row = rows[places[finding.why]]
            names = row.what if finding.what in row.what.split(", ") else f"{row.what}, {finding.what}"
            rows[places[finding.why]] = skipped(row.check, names, row.why)
            continue
        if by_cause:
            places[finding.why] = len(rows)
        rows.append(finding)
    return rows


def _summary(findings: Sequence[Finding]) -> str:
    counts = Counter(finding.verdict for finding in findings)
    parts = ", ".join(
        f"{counts[verdict]} {verdict.value}"
        for verdict in Verdict
        if counts[verdict] or verdict is Verdict.FAILS
    )
    first = next((finding for finding in findings if finding.verdict is Verdict.FAILS), None)
    return f"{parts}. Start with: {first.what}." if first else f"{parts}."


def diagnose_serving(
    values: Mapping[str, Any], environment: Mapping[str, str], *, simulated: bool
) -> list[Finding]:
    """Run the checks that a serving program can do itself, with its own settings.

    Omitted are checks that open the driver or the source again (the health of the collectors covers them),
    and checks of the listen addresses, which this program occupies itself.
    """
    host = build_settings(HostSettings, values)
    node = configured_node_name(values, environment)
    owner_indexes = () if simulated else owner_index_checks(values, node, environment, SystemClock())
    web = web_config_checks(build_settings(HttpSettings, values))
    ledger = ledger_checks(
        build_settings(StoreSettings, values),
        environment,
        made_up=simulated,
        interval=build_settings(NodeSettings, values).interval,
        speed=build_settings(SourceSettings, values).speed if simulated else 1.0,
    )
    machine = host_checks(host, environment, local=not simulated, has_passwd_file=PASSWD_KEY in values)
    return run_checks((*machine, *owner_indexes, *ledger, *web))
