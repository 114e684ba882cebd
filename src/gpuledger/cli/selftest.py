"""`gpuledger selftest`: test on this machine's driver and GPUs whether the numbers are right."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import environ
from pathlib import Path
from typing import Any

from gpuledger import __version__
from gpuledger.app.diagnosis import exit_code, findings_json, findings_table, run_checks
from gpuledger.app.flags import parse_command
from gpuledger.app.node_assembly import build_dialects
from gpuledger.app.node_parts import HostContext
from gpuledger.config.commands import RECORD_GROUPS
from gpuledger.dialects.catalogue import check_dialect_names
from gpuledger.dialects.settings import DialectSettings
from gpuledger.host.settings import HostSettings
from gpuledger.ledger.ledger import Ledger
from gpuledger.model.checks import Finding, skipped
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.quantities import Quantity
from gpuledger.model.settings import boolean, build_settings, choice, duration, option
from gpuledger.selftest.checks import SelfTest
from gpuledger.selftest.observation import Observer
from gpuledger.selftest.report import write_report
from gpuledger.sources.settings import SourceSettings
from gpuledger.sources.smi.settings import SmiSettings
from gpuledger.sources.source_factory import prefers_smi
from gpuledger.workloads.owner_lookup import OwnerLookup

_ABOUT = """\
Test on this machine's driver and GPUs whether the numbers are right: the refresh of the energy counter,
energy against power x time, utilization samples, process lists, profiling metrics, the accounts of the
ledger, every number against nvidia-smi, and the cost of a reading. It starts no GPU work and changes nothing;
a GPU that works meanwhile is tested better than an idle one. Run it where gpuledger runs: in the same
container, as the same user. First, `gpuledger doctor` checks whether everything can be read.
"""
_EXAMPLES = """\
verdicts:
  works      as it should be
  fails      a number is wrong or an account does not balance; the line below says what to do
  warning    works, with a limitation of this GPU or driver
  unknown    could not be measured
  skipped    does not apply here, or another line names the cause

exit code: 1 when anything fails, else 0; 2 when a flag or the configuration is wrong

examples:
  gpuledger selftest
  gpuledger selftest --for 1m --report selftest.md     with all figures; no identifiers: attach it to an issue
  gpuledger selftest --json | jq '.findings[] | select(.verdict != "works")'
  docker exec CONTAINER gpuledger selftest
  kubectl exec POD -- gpuledger selftest
"""


@dataclass(frozen=True, slots=True)
class SelfTestSettings:
    """Duration of the observation, and the output."""

    lasting: float = option(
        "selftest.for", duration("s", lowest=1.0, highest=3600.0), 20.0, "observe the driver for this time"
    )
    format: str = option("selftest.format", choice("table", "json"), "table", "table or json", metavar="FORM")
    json: bool = option("selftest.json", boolean, False, "the same as --format json")
    report: str = option(
        "selftest.report", str, "", "also write a report with all figures (Markdown), replacing the file",
        metavar="FILE",
    )  # fmt: skip


def run(arguments: Sequence[str]) -> int:
    """Print the findings; returns 1 when anything fails."""
    groups = {"test": SelfTestSettings, **RECORD_GROUPS}
    _, read = parse_command("selftest", _ABOUT, _EXAMPLES, groups, arguments, also=(DialectSettings,))
    values = read()
    settings = build_settings(SelfTestSettings, values)
    # The findings say the same.
    logging.getLogger("gpuledger").addHandler(logging.NullHandler())
    test = _build_test(values, settings)
    findings = run_checks(test.checks()) if test else [_no_driver(values)]
    if settings.json or settings.format == "json":
        sys.stdout.write(findings_json(findings, __version__))
    else:
        sys.stdout.write(findings_table(findings, sys.stdout, environ))
    # Afterwards: a report that cannot be written costs no finding.
    if settings.report and test:
        _write(settings.report, write_report(findings, test, __version__))
    return exit_code(findings)


def _build_test(values: Mapping[str, Any], settings: SelfTestSettings) -> SelfTest | None:
    """The test of this machine's driver; None if the source is another one. Raises UsageError."""
    source = build_settings(SourceSettings, values)
    if _other_source(source):
        return None
    host, folders = HostContext.from_values(values), build_settings(HostSettings, values)
    lookup = OwnerLookup(host.users.name, None, lambda: host.users.changes)
    observer = Observer(
        source,
        host.procfs,
        host.clock,
        served_quantities(values),
        settings.lasting,
        pci=host.pci,
        name=lookup.assign_owners,
    )
    smi = build_settings(SmiSettings, values)
    return SelfTest(observer, smi, environ, Path(folders.procfs), Path(folders.sysfs))


def served_quantities(values: Mapping[str, Any]) -> frozenset[Quantity]:
    """What `serve` reads in each tick for the configured dialects."""
    available = build_dialects(values)
    names = check_dialect_names(build_settings(DialectSettings, values).dialect, available)
    return Ledger.required_quantities.union(*(available[name].required_quantities for name in names))


def _other_source(settings: SourceSettings) -> str:
    """What `serve` reads in place of this machine's driver through NVML; empty if it reads NVML."""
    kind = settings.source.partition(":")[0]
    # A command of nvidia-smi that is set here is for the comparison.
    if kind == "auto" and prefers_smi(SmiSettings()):
        return "nvidia-smi, because libnvidia-ml.so.1 cannot be loaded"
    return "" if kind.partition("+")[0] in ("auto", "nvml") else settings.source


def _no_driver(values: Mapping[str, Any]) -> Finding:
    name = _other_source(build_settings(SourceSettings, values))
    why = f"gpuledger reads {name}, not this machine's driver through NVML: there is nothing to measure"
    return skipped("selftest.observation", "observation", why)


def _write(name: str, text: str) -> None:
    try:
        Path(name).write_text(text, "utf-8")
    except OSError as error:
        raise GpuledgerError(f"--report: cannot write {name}: {error.strerror or error}") from None
