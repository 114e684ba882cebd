"""`gpuledger doctor`: check what works on this machine and what fails, why, and how to fix it."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from os import environ
from pathlib import Path
from typing import Any

from gpuledger import __version__
from gpuledger.app.diagnosis import exit_code, findings_json, findings_table, run_checks
from gpuledger.app.flags import parse_command
from gpuledger.app.node_assembly import build_dialects, read_snapshot
from gpuledger.config.commands import NODE_GROUPS
from gpuledger.config.node import configured_node_name
from gpuledger.dialects.catalogue import ONCE_DIALECTS, check_dialect_names
from gpuledger.dialects.settings import DialectSettings
from gpuledger.host.checks import host_checks
from gpuledger.host.clock import SystemClock
from gpuledger.host.procfs import RemoteHost
from gpuledger.host.settings import HostSettings
from gpuledger.host.users import PASSWD_KEY
from gpuledger.http.settings import HttpSettings
from gpuledger.ledger.report.settings import FleetSettings
from gpuledger.ledger.report.tokens.settings import TokenSettings
from gpuledger.ledger.settings import LedgerSettings, StoreSettings
from gpuledger.ledger.store.checks import ledger_checks
from gpuledger.model.checks import Check, Finding, Verdict
from gpuledger.model.devices import Device
from gpuledger.model.gpu_problems import (
    HEALTH_CHECK,
    find_problems,
    health_findings,
)
from gpuledger.model.problem_quantities import PROBLEM_QUANTITIES
from gpuledger.model.quantities import CLOCK_EVENT_REASONS
from gpuledger.model.settings import build_settings, choice, setting
from gpuledger.model.snapshot import Snapshot
from gpuledger.model.throttle_reasons import throttling_now
from gpuledger.node.settings import NodeSettings
from gpuledger.outputs.checks import output_checks
from gpuledger.outputs.settings import TextfileSettings
from gpuledger.outputs.textfile_neighbours import NeighbourFiles
from gpuledger.sources.checks import source_checks
from gpuledger.sources.settings import SourceSettings
from gpuledger.sources.smi.settings import SmiSettings
from gpuledger.sources.source_factory import open_source
from gpuledger.workloads.checks import owner_checks
from gpuledger.workloads.owner_index_setup import owner_index_checks

_ABOUT = """\
Check everything that `gpuledger serve` with the same flags uses. For each item it prints whether it works
and, if not, the reason and the remedy. It changes nothing. Run it where gpuledger runs: in the same
container, as the same user.
"""
_EXAMPLES = """\
verdicts:
  works      no problem found
  fails      gpuledger loses data; the line below says what to do
  warning    works, with a limitation that may be acceptable
  unknown    could not be checked
  skipped    does not apply here, or another line names the cause

exit code: 1 when anything fails, else 0; 2 when a flag or the configuration is wrong

next: `gpuledger selftest` tests on this machine's GPUs whether the numbers are right

examples:
  gpuledger doctor
  gpuledger doctor --config /etc/gpuledger.yaml           check for a service with this file
  gpuledger doctor --textfile-dir /var/lib/node_exporter/textfile_collector
  gpuledger doctor --format json | jq '.findings[] | select(.verdict == "fails")'
  docker exec CONTAINER gpuledger doctor
  kubectl exec POD -- gpuledger doctor
  gpuledger doctor --prometheus http://prometheus:9090    instead of this machine: do energy and the tokens of
                                                          inference servers meet in Prometheus?
"""


# Without these there are no processes to find owners for.
_OWNER_NEEDS = ("driver.library", "driver.kernel", "driver.nodes", "driver.answers", "drm.gpus")


# A single reading shows throttling by its reasons, not by counters.
_JUDGED = PROBLEM_QUANTITIES | {CLOCK_EVENT_REASONS}


@dataclass(frozen=True, slots=True)
class DoctorSettings:
    """The output format of the findings."""

    format: str = setting("format", choice("table", "json"), "table", "table or json", metavar="FORM")


def run(arguments: Sequence[str]) -> int:
    """Print the findings; returns 1 when anything fails."""
    groups = {
        "output": DoctorSettings,
        "Prometheus of a fleet": FleetSettings,
        "tokens of inference servers": TokenSettings,
        **NODE_GROUPS,
        "textfile": TextfileSettings,
    }
    given, read = parse_command("doctor", _ABOUT, _EXAMPLES, groups, arguments)
    values = read()
    # A finding says the same.
    logging.getLogger("gpuledger.source.devices").addHandler(logging.NullHandler())
    # With the flag, this machine need not have a GPU.
    is_prometheus = "prometheus.url" in given.flags
    findings = run_checks(_checks_of_prometheus(values) if is_prometheus else _checks(values, environ))
    if build_settings(DoctorSettings, values).format == "json":
        sys.stdout.write(findings_json(findings, __version__))
    else:
        sys.stdout.write(findings_table(findings, sys.stdout, environ))
        if any(one.check == "driver.answers" and one.verdict is Verdict.WORKS for one in findings):
            sys.stdout.write("Whether the numbers are right: gpuledger selftest\n")
    return exit_code(findings)


def _checks_of_prometheus(values: Mapping[str, Any]) -> tuple[Check, ...]:
    # Imported lazily: it needs an HTTP client.
    from gpuledger.app.token_diagnosis import prometheus_checks

    fleet, tokens = build_settings(FleetSettings, values), build_settings(TokenSettings, values)
    return prometheus_checks(fleet, tokens, time.time())


def _checks(values: Mapping[str, Any], environment: Mapping[str, str]) -> tuple[Check, ...]:
    """The Checks of all packages, with the settings that `serve` would use. Raises UsageError."""
    source, smi = build_settings(SourceSettings, values), build_settings(SmiSettings, values)
    host, http = build_settings(HostSettings, values), build_settings(HttpSettings, values)
    procfs = Path(host.procfs)
    # Only a configured directory is checked; the default one need not exist.
    textfile = str(values["textfile.dir"]) if "textfile.dir" in values else ""
    opened = open_source(source, smi, RemoteHost(), SystemClock())
    simulated = opened.info.simulated
    opened.close()
    # The first check that needs the snapshot reads it; the others reuse it.
    once = cache(lambda: read_snapshot(values, _JUDGED if simulated else frozenset()))
    node = configured_node_name(values, environment)
    owner_indexes: tuple[Check, ...] = ()
    if not simulated:
        owner_indexes = owner_index_checks(
            values, node, environment, SystemClock(), lambda: _devices_of(once()), _OWNER_NEEDS
        )
    return (
        *source_checks(source, smi, environment, procfs=procfs, sysfs=Path(host.sysfs), pids=host.pids),
        *host_checks(
            host,
            environment,
            local=not simulated,
            has_passwd_file=PASSWD_KEY in values,
            encoding=sys.stdout.encoding,
        ),
        *((Check(HEALTH_CHECK, "GPU health", lambda: _check_health(once())),) if simulated else ()),
        *owner_indexes,
        *owner_checks(once, _OWNER_NEEDS),
        *ledger_checks(
            build_settings(StoreSettings, values),
            environment,
            made_up=simulated,
            interval=build_settings(NodeSettings, values).interval,
            speed=source.speed if simulated else 1.0,
            hold=build_settings(LedgerSettings, values).zero_hold,
        ),
        *output_checks(http, textfile, lambda: _textfile_neighbours(values), procfs=procfs),
    )


def _check_health(snapshot: Snapshot | None) -> Iterator[Finding]:
    """What is wrong with simulated or recorded GPUs. Sources that read a driver check theirs."""
    if snapshot is None:
        return
    for reading in snapshot.readings:
        now = throttling_now(reading.values, snapshot.unix)
        found = find_problems(reading, now, (), snapshot.unix)
        yield from health_findings(reading.device.gpu.index, found)


def _textfile_neighbours(values: Mapping[str, Any]) -> NeighbourFiles:
    """The check of the other files beside the one that `collect` would write with these settings."""
    settings, available = build_settings(TextfileSettings, values), build_dialects(values)
    once = settings.every is None and "dialect" not in values
    names = ONCE_DIALECTS if once else build_settings(DialectSettings, values).dialect
    names = check_dialect_names(names, available)
    families = {spec.name for name in names for spec in available[name].specs}
    return NeighbourFiles(Path(settings.directory, settings.file), families)


def _devices_of(snapshot: Snapshot | None) -> tuple[Device, ...] | None:
    """The Devices of a Snapshot; None without one."""
    return None if snapshot is None else tuple(reading.device for reading in snapshot.readings)
