"""A round trip for each predecessor: what its dashboards and rules miss on gpuledger's default page, and that
nothing is empty once the advice is followed. The files have the form of the published ones, in our words.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest

from golden_state import golden_state
from gpuledger.app.flags import build_parser, parse_flags
from gpuledger.app.node_assembly import build_dialects
from gpuledger.config.commands import NODE_GROUPS
from gpuledger.config.load import load_values
from gpuledger.dialects.settings import DialectSettings
from gpuledger.exposition.text import encode_text
from gpuledger.migrate.check import check_migration
from gpuledger.migrate.page import Page, parse_page
from gpuledger.migrate.report import MigrationFinding, MigrationReport
from gpuledger.migrate.user_queries import UserQueries, read_user_queries
from gpuledger.model.settings import build_settings

FOLDER = Path(__file__).parents[2] / "fixtures" / "migrate"
# By predecessor: the settings that its files need.
SETTINGS = {
    "dcgm-exporter": ["--dialect process,session,energy,native,dcgm", "--dcgm.collectors FILE"],
    "dcgm-exporter-4.9": ["--dialect process,session,energy,native,dcgm", "--dcgm.schema 4.9"],
    "my-gpu-exporter": ["--metric-total-suffix"],
    "nvidia_gpu_exporter": ["--dialect process,session,energy,native,smi"],
    "process-exporter": [],
    "session-monitor": [],
}


def page_with(*flags: str) -> Page:
    """gpuledger's page with these flags."""
    given = parse_flags(build_parser("serve", "", "", NODE_GROUPS), NODE_GROUPS.values(), flags, {})
    values = load_values(NODE_GROUPS.values(), given.flags, {}, None)
    dialects, state = build_dialects(values), golden_state()
    names = build_settings(DialectSettings, values).dialect
    families = chain.from_iterable(dialects[name].families(state) for name in names)
    return parse_page(encode_text(families), "new")


def followed(report: MigrationReport, folder: Path) -> list[str]:
    """The flags of the settings that a report names; a collectors file with the lines that it names."""
    lines = set(re.findall(r"needs a line (\w+)", " ".join(one.reason for one in report.queries)))
    file = folder / "collectors.csv"
    # Those of the page that are no labels, and those that the report names.
    names = lines | {one.subject for one in report.metrics if one.subject.startswith("DCGM_FI")}
    file.write_text("".join(f"{name}, gauge, x\n" for name in sorted(names)))
    words = [word for setting in report.settings for word in setting.split()]
    return [{"FILE": str(file), "NAME": "node1"}.get(word, word) for word in words]


def unanswered(findings: Sequence[MigrationFinding]) -> list[str]:
    return [f"{one.where}: {one.subject}: {one.reason}" for one in findings if one.kind != "type"]


@pytest.mark.parametrize("name", sorted(SETTINGS))
def test_following_the_advice_leaves_nothing_empty(name: str, tmp_path: Path) -> None:
    folder = FOLDER / name
    old = parse_page((folder / "page.txt").read_bytes(), "old")
    user = read_user_queries([folder / "rules.yml"], [folder / "dashboard.json"])
    first = check_migration(old, page_with(), user)
    assert first.settings == SETTINGS[name]
    second = check_migration(old, page_with(*followed(first, tmp_path)), user)
    # What no setting keeps has a query to use instead, which is not empty.
    instead = {one.where: one.instead for one in second.queries if one.instead}
    queries = [
        replace(query, expression=instead.get(query.where, query.expression)) for query in user.queries
    ]
    new = page_with(*followed(first, tmp_path))
    third = check_migration(new, new, UserQueries(queries))
    assert unanswered([one for one in second.queries if not one.instead]) == []
    absent = {query.where for query in queries if query.expression.startswith("absent(")}
    assert set(third.empty_before) - set(first.empty_before) <= absent


def test_what_no_setting_keeps_is_explained() -> None:
    folder = FOLDER / "my-gpu-exporter"
    old = parse_page((folder / "page.txt").read_bytes(), "old")
    user = read_user_queries([folder / "rules.yml"], [folder / "dashboard.json"])
    found = {one.where.rpartition(": ")[2]: one for one in check_migration(old, page_with(), user).queries}
    assert found["GPU energy"].instead == "sum (rate(gpuledger_device_energy_joules_total[1m]))"
    assert found["alert Crowded"].instead == "gpu_process_count > 4"
    assert found["Energy"].settings == ["--metric-total-suffix"]


def test_a_rate_of_a_rate_is_a_change_of_meaning(tmp_path: Path) -> None:
    folder = FOLDER / "dcgm-exporter"
    old = parse_page((folder / "page.txt").read_bytes(), "old")
    user = read_user_queries([folder / "rules.yml"], [folder / "dashboard.json"])
    report = check_migration(old, page_with("--dialect", "dcgm"), user)
    kinds = {one.where: one.kind for one in report.queries}
    assert kinds["dashboard.json: PCIe"] == "type"
