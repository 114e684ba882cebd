"""`gpuledger doctor`: what works on this machine, what does not, why, and what to do about it."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from os import environ
from pathlib import Path
from typing import Any

from gpuledger import __version__
from gpuledger.app.diagnosis import NEEDED, as_json, as_table, exit_code, map_checks, run_checks
from gpuledger.app.flags import begin
from gpuledger.app.wiring import read_once
from gpuledger.config.node import NODE, owner_index_settings
from gpuledger.host.checks import host_checks
from gpuledger.host.clock import SystemClock
from gpuledger.host.procfs import NoHost
from gpuledger.host.settings import HostSettings
from gpuledger.http.settings import HttpSettings
from gpuledger.ledger.settings import StoreSettings
from gpuledger.ledger.store.checks import books_checks
from gpuledger.model.checks import Check
from gpuledger.model.devices import Device
from gpuledger.model.settings import build, choice, setting
from gpuledger.model.snapshot import Snapshot
from gpuledger.outputs.checks import output_checks
from gpuledger.outputs.settings import TextfileSettings
from gpuledger.sources.checks import source_checks
from gpuledger.sources.open import open_source
from gpuledger.sources.settings import SourceSettings
from gpuledger.sources.smi.settings import SmiSettings
from gpuledger.workloads.checks import owner_checks

_ABOUT = """\
Look at everything that `gpuledger serve` with the same flags would use, and say of each whether it works,
and if not why, and the exact remedy. Nothing is changed. Run it where gpuledger runs: in the same container,
as the same user.
"""
_EXAMPLES = """\
verdicts:
  works      as it should be
  fails      something of what gpuledger tells is lost; the line below says what to do
  warning    it works, at a cost or a loss that you may accept
  unknown    could not be found out
  skipped    does not apply here, or another line names the cause

exit code: 1 when anything fails, else 0; 2 when a flag or the configuration is wrong

examples:
  gpuledger doctor
  gpuledger doctor --config /etc/gpuledger.yaml           what a service with this file would meet
  gpuledger doctor --textfile-dir /var/lib/node_exporter/textfile_collector
  gpuledger doctor --format json | jq '.findings[] | select(.verdict == "fails")'
  docker exec CONTAINER gpuledger doctor
  kubectl exec POD -- gpuledger doctor
"""


@dataclass(frozen=True, slots=True)
class DoctorSettings:
    """How the diagnosis is written."""

    format: str = setting(
        "format",
        choice("table", "json"),
        "table",
        "table or json",
        flags=("--format",),
        metavar="FORM",
    )


def run(arguments: Sequence[str]) -> int:
    """Print the diagnosis; answers 1 when anything fails."""
    groups = {"the diagnosis": DoctorSettings, **NODE, "the textfile": TextfileSettings}
    _, read = begin("doctor", _ABOUT, _EXAMPLES, groups, arguments)
    values = read()
    findings = run_checks(_checks(values, environ))
    if build(DoctorSettings, values).format == "json":
        sys.stdout.write(as_json(findings, __version__))
    else:
        sys.stdout.write(as_table(findings, sys.stdout, environ))
    return exit_code(findings)


def _checks(values: Mapping[str, Any], environment: Mapping[str, str]) -> tuple[Check, ...]:
    """Every package's Checks, with the Settings that `serve` would give it. Raises UsageError as it would."""
    source, smi = build(SourceSettings, values), build(SmiSettings, values)
    host, http = build(HostSettings, values), build(HttpSettings, values)
    procfs = Path(host.procfs)
    # Only a directory that somebody chose is asked for; the usual one need not be there.
    textfile = str(values["textfile.dir"]) if "textfile.dir" in values else ""
    opened = open_source(source, smi, NoHost(), SystemClock())
    simulated = opened.info.simulated
    opened.close()
    # Read by whichever check is the first to ask, and only once.
    once = cache(lambda: read_once(values))
    maps = (
        ()
        if simulated
        else map_checks(owner_index_settings(values), host, environment, lambda: _devices_of(once()))
    )
    return (
        *source_checks(source, smi, environment, procfs=procfs, sysfs=Path(host.sysfs)),
        *host_checks(host, environment, local=not simulated, encoding=sys.stdout.encoding),
        *maps,
        *owner_checks(once, NEEDED),
        *books_checks(build(StoreSettings, values), environment, made_up=simulated),
        *output_checks(http, textfile, procfs=procfs),
    )


def _devices_of(snapshot: Snapshot | None) -> tuple[Device, ...] | None:
    """The Devices that were read; None where nothing was."""
    return None if snapshot is None else tuple(reading.device for reading in snapshot.readings)
