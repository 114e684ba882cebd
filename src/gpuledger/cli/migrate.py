"""`gpuledger migrate check`: what a move from another exporter would change for dashboards and rules."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuledger.app.flags import build_parser, parse_flags, reject_words
from gpuledger.app.metrics_page_source import read_metrics_page
from gpuledger.config.commands import ALL_GROUPS
from gpuledger.config.load import load_values
from gpuledger.http.client_access import ClientAccessSettings
from gpuledger.migrate.check import check_migration
from gpuledger.migrate.formats import FORMATS
from gpuledger.migrate.page import Page, with_target_labels
from gpuledger.migrate.promql import promql_parser
from gpuledger.migrate.report import KINDS
from gpuledger.migrate.user_queries import read_user_queries
from gpuledger.model.errors import GpuledgerError, UsageError, unknown_name_error
from gpuledger.model.settings import boolean, build_settings, choice, comma_separated, option, text

_KINDS = "\n".join(f"  {kind:<8} {meaning}" for kind, meaning in KINDS.items())
_ABOUT = f"""\
Compare a metrics page of another exporter with one of gpuledger, and evaluate your rules and dashboards on
both: which queries would go empty or change their meaning or unit, with the setting that keeps them or the
query to use instead.

A finding is one of:
{_KINDS}

Exit codes: 0 nothing changes, 1 something does, 2 a flag, a file or a URL is wrong. With rules or
dashboards only what they use counts, without them every metric of the old page.
"""
_EXAMPLES = """\
examples:
  gpuledger migrate check --old http://node1:9400/metrics --new http://node1:9401/metrics/dcgm
  gpuledger migrate check --old old.txt --new new.txt --rules rules/ --dashboards dashboards/
  gpuledger migrate check --old old.txt --new new.txt --rules alerts.yml --format markdown > report.md
  gpuledger migrate check --old old.txt --new new.txt --dashboards gpu.json \\
      --old-target job=dcgm,instance=node1:9400,pod=dcgm-exporter-x1,namespace=gpu-operator

Queries need the package promql-parser: pip install 'gpuledger[migrate]'. More: docs/migrate/check.md
"""


def _target(value: object) -> tuple[str, str]:
    name, equals, content = text(value).partition("=")
    if not equals or not name.strip().isidentifier():
        raise ValueError("expected labels such as job=dcgm,instance=node1:9400")
    return name.strip(), content.strip()


@dataclass(frozen=True, slots=True)
class MigrateSettings:
    """The two pages, and the labels that scrapes add to them."""

    old: str = option("migrate.old", text, "", "page of the other exporter", metavar="URL|FILE")
    new: str = option("migrate.new", text, "", "page of gpuledger", metavar="URL|FILE")
    rules: tuple[str, ...] = option(
        "migrate.rules",
        comma_separated(text),
        (),
        "rules of Prometheus, or PrometheusRules and ConfigMaps that contain them; a directory is all its "
        "YAML files",
        metavar="FILE|DIR",
        repeatable=True,
    )
    dashboards: tuple[str, ...] = option(
        "migrate.dashboards",
        comma_separated(text),
        (),
        "dashboards of Grafana, as JSON or in ConfigMaps; a directory is all its files",
        metavar="FILE|DIR",
        repeatable=True,
    )
    format: str = option(
        "migrate.format", choice(*FORMATS), "table", "table, json or markdown", metavar="FORM"
    )
    old_target: tuple[tuple[str, str], ...] = option(
        "migrate.old_target",
        comma_separated(_target),
        (),
        "labels that the scrape of the old page adds",
        metavar="NAME=VALUE,...",
    )
    new_target: tuple[tuple[str, str], ...] = option(
        "migrate.new_target",
        comma_separated(_target),
        (),
        "labels that the scrape of the new page adds",
        metavar="NAME=VALUE,...",
    )
    old_honor_labels: bool = option(
        "migrate.old_honor_labels", boolean, False, "the old scrape has honor_labels: true"
    )
    new_honor_labels: bool = option(
        "migrate.new_honor_labels", boolean, False, "the new scrape has honor_labels: true"
    )


_GROUPS = {"pages and queries": MigrateSettings, "access to pages": ClientAccessSettings}


def run(arguments: Sequence[str]) -> int:
    """Check; returns 1 if something changes."""
    made = build_parser("migrate", _ABOUT, _EXAMPLES, _GROUPS)
    made.usage = "gpuledger migrate check --old URL|FILE --new URL|FILE [FLAGS]"
    given = parse_flags(made, _GROUPS.values(), arguments, os.environ)
    if given.arguments[:1] != ("check",):
        if given.arguments:
            raise unknown_name_error("migrate command", given.arguments[0], ("check",))
        raise UsageError("migrate needs the command check; see gpuledger migrate --help")
    reject_words("migrate check", given.arguments[1:])
    values = load_values(_GROUPS.values(), given.flags, os.environ, given.config, ALL_GROUPS)
    settings = build_settings(MigrateSettings, values)
    for flag, place in (("--old", settings.old), ("--new", settings.new)):
        if not place:
            raise UsageError(f"migrate check needs {flag} with a URL or a file of metrics")
    user = None
    if settings.rules or settings.dashboards:
        # Before anything is read: the package may be missing.
        promql_parser()
        user = read_user_queries([*map(Path, settings.rules)], [*map(Path, settings.dashboards)])
    old, new = _read_pages(settings, values)
    report = check_migration(old, new, user)
    sys.stdout.write(FORMATS[settings.format](report))
    return int(report.failed)


def _read_pages(settings: MigrateSettings, values: dict[str, Any]) -> tuple[Page, Page]:
    access = build_settings(ClientAccessSettings, values)
    try:
        old = read_metrics_page(settings.old, "--old", access)
        new = read_metrics_page(settings.new, "--new", access)
    except GpuledgerError as error:
        # Exit code 1 means that something changes.
        raise UsageError(str(error)) from None
    return (
        with_target_labels(old, dict(settings.old_target), honor_labels=settings.old_honor_labels),
        with_target_labels(new, dict(settings.new_target), honor_labels=settings.new_honor_labels),
    )
