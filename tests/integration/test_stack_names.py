"""Rules and the series of their tests use families and labels that gpuledger exports."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from alert_page import specs
from gpuledger.ledger.report.tokens.token_sources import CACHED, DEFAULT_SOURCES, INPUT, OUTPUT
from running import gpuledger
from stack import DEPLOY, EXPORTER, RULES

# Labels of targets, of which `node` and `cluster` are optional, and those that rules add.
TARGET = {"job", "instance", "service", "node", "cluster", "endpoint", "priced"}
FAMILY = re.compile(r"(?<![:\w])(?:gpuledger|gpu|my_gpu|nvidia_smi|DCGM)_\w+")
# The counters of inference servers, which gpuledger does not export, and labels of them and of their targets.
TOKENS = {metric.name for source in DEFAULT_SOURCES for metric in source.metrics()}
TOKEN_LABELS = {"model_name", "kind", "prometheus", "prometheus_replica", "replica"}
TESTS = sorted((DEPLOY / "prometheus/tests").glob("*.yml"))


@cache
def catalogue() -> dict[str, set[str]]:
    """Returns the labels of all families by name, from their declarations and from a page."""
    listed = gpuledger("metrics", "--format", "json", "--dialect", "native,process,session,energy,dcgm,smi")
    assert listed.returncode == 0, listed.stderr
    dialects = json.loads(listed.stdout)
    known = {family["name"]: set(family["labels"]) for families in dialects.values() for family in families}
    # The smi dialect has families for all columns of the driver.
    page = gpuledger("collect", "--source", "simulator", "--stdout", "--dialect", "smi,dcgm", *EXPORTER)
    assert page.returncode == 0, page.stderr
    for name, labels in re.findall(r"^(\w+)(?:\{(.*)\})? ", page.stdout, re.MULTILINE):
        known.setdefault(name, set()).update(re.findall(r"(\w+)=\"", labels))
    # Agent and operator.
    return known | {name: set(spec.labels) for name, spec in specs().items()}


def rules_of(file: Path) -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(file.read_text())["groups"] for rule in group["rules"]]


def expressions(file: Path) -> list[str]:
    return [rule["expr"] for rule in rules_of(file)]


@pytest.mark.parametrize("file", RULES, ids=lambda file: file.name)
def test_every_family_of_a_rule_is_exported(file: Path) -> None:
    recorded = {rule.get("record") for each in RULES for rule in rules_of(each)}
    for expression in expressions(file):
        matchers = re.findall(r'__name__=~"([^"]+)"', expression)
        for matcher in matchers:
            assert any(re.fullmatch(matcher, name) for name in catalogue()), matcher
        named = set(FAMILY.findall(re.sub(r'"[^"]*"', "", expression)))
        # A bucket is a series of a histogram.
        named = {name.removesuffix("_bucket") for name in named}
        assert named <= set(catalogue()), named - set(catalogue())
        assert set(re.findall(r"gpuledger:[\w:]+", expression)) <= recorded
        tokens = set(re.findall(r"increase\(([\w:]+)", expression)) & TOKENS
        assert named or matchers or tokens or "gpuledger:" in expression or expression == "up == 0"


@pytest.mark.parametrize("file", RULES, ids=lambda file: file.name)
def test_every_label_of_a_rule_is_a_label_of_a_family(file: Path) -> None:
    known = TARGET.union({"le"}, TOKEN_LABELS, *catalogue().values())
    for expression in expressions(file):
        for words in re.findall(r"(?:on|by|without|group_left|group_right) \(([^)]*)\)", expression):
            assert set(filter(None, re.split(r"[,\s]+", words))) <= known, words


def test_the_token_counters_of_rules_are_those_of_reports() -> None:
    """Rules and the default of tokens.sources are one table."""
    read = re.compile(r"increase\(((?!gpuledger)[\w:]+)(?:\{[^}]*\})?\[5m\]\)")
    found = {
        (rule["labels"]["kind"], name)
        for rule in rules_of(DEPLOY / "prometheus/rules/tokens.yml")
        if rule["record"] == "gpuledger:pod_tokens:rate5m"
        for name in read.findall(rule["expr"])
    }
    metrics = [metric for source in DEFAULT_SOURCES for metric in source.metrics()]
    expected = {(one.kind, one.name) for one in metrics if one.kind in (INPUT, OUTPUT, CACHED)}
    assert found == expected


@pytest.mark.parametrize("file", TESTS, ids=lambda file: file.stem)
def test_the_series_of_rule_tests_are_exported(file: Path) -> None:
    (test,) = yaml.safe_load(file.read_text())["tests"]
    for entry in test["input_series"]:
        name, _, labels = entry["series"].partition("{")
        if name == "up":
            continue
        # Older drivers and DCGM have other names.
        current = name.replace("CLOCK_THROTTLE", "CLOCKS_EVENT").replace("throttle", "event")
        assert current in catalogue(), name
        assert set(re.findall(r"(\w+)=\"", labels)) - TARGET <= catalogue()[current], entry["series"]
