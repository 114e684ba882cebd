"""What each rule and each panel needs, for each set of dialects."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuledger.agent import families as agent_families
from gpuledger.dialects.catalogue import create_dialects
from gpuledger.dialects.dcgm.collectors import DEFAULT_COLLECTORS, parse_collectors
from gpuledger.dialects.dcgm.dialect import DcgmDialect
from gpuledger.dialects.settings import DcgmSettings, DialectSettings
from gpuledger.model.node_state import Dialect
from gpuledger.operator import families as operator_families
from yaml_files import load_yaml

DEPLOY = Path(__file__).parents[3] / "deploy"
COLLECTORS = DEPLOY / "grafana/dcgm-collectors.csv"
NATIVE = ("process", "session", "energy", "native")
# Dialects, the collectors file of dcgm (empty: the default one), and the prefix of the energy dialect.
SETS: dict[str, tuple[tuple[str, ...], bytes, str]] = {
    "default of the chart": (("native",), b"", "my_gpu_process"),
    "default of serve": (NATIVE, b"", "my_gpu_process"),
    "renamed": (NATIVE, b"", "gpu_process"),
    "dcgm": (("native", "dcgm"), b"", "my_gpu_process"),
    "dcgm of the dashboards": (("native", "dcgm"), COLLECTORS.read_bytes(), "my_gpu_process"),
    "dcgm with one field": (("native", "dcgm"), b"DCGM_FI_DEV_GPU_TEMP, gauge, t\n", "my_gpu_process"),
}
FAMILY = re.compile(r"(?<![:\w])(?:gpuledger|gpu|my_gpu|nvidia_smi|DCGM)_\w+")
RECORD = re.compile(r"gpuledger:[\w:]+")
FILES = [DEPLOY / "prometheus/activity.yml", *sorted((DEPLOY / "prometheus/rules").glob("*.yml"))]
RULES: list[dict[str, Any]] = [
    rule
    for file in FILES
    for group in load_yaml(file.read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
]
RECORDED: dict[str, list[str]] = {}
for _rule in RULES:
    if "record" in _rule:
        RECORDED.setdefault(_rule["record"], []).append(_rule["expr"])
ALERTS = {rule["alert"]: rule["expr"] for rule in RULES if "alert" in rule}
OTHERS = {spec.name for spec in (*agent_families.SPECS, *operator_families.SPECS)}
PANELS: list[tuple[str, dict[str, Any]]] = [
    (file.stem, panel)
    for file in sorted((DEPLOY / "grafana/dashboards").glob("*.json"))
    for panel in json.loads(file.read_text(encoding="utf-8"))["panels"]
    if panel["type"] != "row"
]


def exported(name: str) -> set[str]:
    """The families of a set of dialects."""
    names, collectors, prefix = SETS[name]

    def dcgm() -> Dialect:
        parsed = parse_collectors(collectors, "collectors.csv") if collectors else DEFAULT_COLLECTORS
        return DcgmDialect(DcgmSettings(), parsed)

    dialects = create_dialects(DialectSettings(metric_prefix=prefix), "0", dcgm)
    return {spec.name for each in names for spec in dialects[each].specs}


def needs(expression: str, seen: frozenset[str] = frozenset()) -> Iterator[str]:
    """The families that an expression reads, also through recorded series, without those in `__name__=~`."""
    for name in FAMILY.findall(re.sub(r'"[^"]*"', "", expression)):
        yield name.removesuffix("_bucket")
    for record in set(RECORD.findall(expression)) - seen:
        for recorded in RECORDED[record]:
            yield from needs(recorded, seen | {record})


def is_alternative(family: str) -> bool:
    """Whether rules read it only where the native family is missing."""
    return family.startswith(("nvidia_smi_", "DCGM_"))


@pytest.mark.parametrize("name", SETS)
def test_each_alert_has_its_native_families_in_each_set(name: str) -> None:
    """Scenarios of alerts show that these suffice: their pages are native only."""
    available = exported(name) | OTHERS
    missing = {
        alert: {family for family in needs(expr) if not is_alternative(family)} - available
        for alert, expr in ALERTS.items()
    }
    assert {alert: families for alert, families in missing.items() if families} == {}
    assert all(any(needs(expr)) for expr in ALERTS.values())


def test_no_alert_rests_on_another_dialect_alone() -> None:
    for alert, expr in ALERTS.items():
        assert any(not is_alternative(family) for family in needs(expr)), alert
    for record, expressions in RECORDED.items():
        is_read = any(record in expr for expr in ALERTS.values())
        native = any(not is_alternative(family) for expr in expressions for family in needs(expr))
        assert native or not is_read, record


@pytest.mark.parametrize("name", SETS)
def test_a_panel_without_its_families_says_what_it_needs(name: str) -> None:
    available = exported(name) | OTHERS
    for uid, panel in PANELS:
        queries = [target["expr"] for target in panel["targets"]]
        absent = {family for query in queries for family in needs(query)} - available
        text = panel["fieldConfig"]["defaults"]["noValue"]
        assert not absent or "dialect" in text, f"{uid}, {panel['title']}: {absent}"
        assert not absent or all(family.startswith("DCGM_") for family in absent)


def test_with_the_fields_of_the_dashboards_no_panel_lacks_a_family() -> None:
    available = exported("dcgm of the dashboards") | OTHERS
    assert {
        family for _, panel in PANELS for target in panel["targets"] for family in needs(target["expr"])
    } <= available
