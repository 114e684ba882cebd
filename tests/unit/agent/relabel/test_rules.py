"""Relabel rules behave as Prometheus documents and are rejected where Prometheus rejects them."""

from __future__ import annotations

import json
from hashlib import md5
from pathlib import Path
from typing import Any

import pytest

from gpuledger.agent.relabel.rule_parser import read_relabel_rules
from gpuledger.agent.relabel.rules import RelabelRules
from gpuledger.host.yaml_nodes import read_yaml_root
from gpuledger.model.errors import UsageError

BASE = {"__name__": "power", "gpu": "0", "node": "a-1", "team": "Ml"}
Rules = list[dict[str, Any]]


def rules_of(folder: Path, rules: Rules) -> RelabelRules:
    file = folder / "rules.yaml"
    file.write_text(json.dumps(rules))
    return read_relabel_rules(read_yaml_root(file))


def bucket(text: str, modulus: int) -> str:
    return str(int.from_bytes(md5(text.encode()).digest()[8:], "big") % modulus)


# name, rules, labels that are different afterwards (None: gone), or None where all are dropped
CASES: list[tuple[str, Rules, dict[str, str | None] | None]] = [
    ("defaults copy", [{"source_labels": ["gpu"], "target_label": "x"}], {"x": "0"}),
    ("constant", [{"target_label": "x", "replacement": "y"}], {"x": "y"}),
    (
        "groups",
        [{"source_labels": ["node"], "regex": "(.+)-(.+)", "target_label": "x", "replacement": "${2}_$1"}],
        {"x": "1_a"},
    ),
    (
        "named group",
        [{"source_labels": ["node"], "regex": "(?P<n>.).*", "target_label": "x", "replacement": "${n}!"}],
        {"x": "a!"},
    ),
    (
        "longest name of a reference",
        [{"source_labels": ["node"], "target_label": "x", "replacement": "$1x"}],
        {"x": None},
    ),
    ("dollar", [{"target_label": "x", "replacement": "$$1 $ $-"}], {"x": "$1 $ $-"}),
    (
        "anchored: no match leaves the label alone",
        [{"source_labels": ["node"], "regex": "a", "target_label": "x"}],
        {},
    ),
    (
        "joined by the separator",
        [{"source_labels": ["gpu", "node"], "target_label": "x"}],
        {"x": "0;a-1"},
    ),
    (
        "joined by nothing",
        [{"source_labels": ["gpu", "node"], "separator": "", "target_label": "x"}],
        {"x": "0a-1"},
    ),
    ("empty result removes", [{"target_label": "gpu", "replacement": ""}], {"gpu": None}),
    (
        "empty result for a name from a group removes nothing",
        [{"source_labels": ["node"], "regex": "a-1()", "target_label": "gp${1}u", "replacement": ""}],
        {},
    ),
    (
        "name from a group",
        [{"source_labels": ["node"], "regex": "(.)-(.)", "target_label": "x_$1", "replacement": "$2"}],
        {"x_a": "1"},
    ),
    ("keep", [{"source_labels": ["gpu"], "regex": "[01]", "action": "keep"}], {}),
    ("keep drops the rest", [{"source_labels": ["gpu"], "regex": "1", "action": "keep"}], None),
    ("drop", [{"source_labels": ["gpu", "node"], "regex": "0;a.*", "action": "drop"}], None),
    ("drop keeps the rest", [{"source_labels": ["gpu"], "regex": "1", "action": "drop"}], {}),
    ("a missing label is empty", [{"source_labels": ["no"], "regex": "", "action": "drop"}], None),
    (
        "hashmod",
        [{"source_labels": ["node"], "modulus": 7, "target_label": "__tmp", "action": "hashmod"}],
        {"__tmp": bucket("a-1", 7)},
    ),
    ("labelmap", [{"regex": "(t.*)", "replacement": "new_$1", "action": "labelmap"}], {"new_team": "Ml"}),
    ("labeldrop", [{"regex": "g.*|team", "action": "labeldrop"}], {"gpu": None, "team": None}),
    (
        "labelkeep",
        [{"regex": "__name__|gpu", "action": "labelkeep"}],
        {"node": None, "team": None},
    ),
    (
        "lowercase",
        [{"source_labels": ["team"], "target_label": "team", "action": "lowercase"}],
        {"team": "ml"},
    ),
    ("uppercase", [{"source_labels": ["team"], "target_label": "x", "action": "uppercase"}], {"x": "ML"}),
    ("keepequal", [{"source_labels": ["gpu"], "target_label": "gpu", "action": "keepequal"}], {}),
    (
        "keepequal drops the rest",
        [{"source_labels": ["gpu"], "target_label": "node", "action": "keepequal"}],
        None,
    ),
    ("dropequal", [{"source_labels": ["gpu"], "target_label": "gpu", "action": "dropequal"}], None),
    ("actions in any case", [{"source_labels": ["gpu"], "regex": "0", "action": "Drop"}], None),
    (
        "rules apply in order",
        [{"target_label": "x", "replacement": "y"}, {"source_labels": ["x"], "regex": "y", "action": "drop"}],
        None,
    ),
]


@pytest.mark.parametrize(("rules", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_rules_relabel_as_prometheus_documents(
    rules: Rules, expected: dict[str, str | None] | None, tmp_path: Path
) -> None:
    labels: dict[str, str] = dict(BASE)
    kept = rules_of(tmp_path, rules).apply(labels)
    assert kept is (expected is not None)
    if expected is not None:
        wanted = {**BASE, **expected}
        assert labels == {name: value for name, value in wanted.items() if value is not None}


WRONG = [
    ({"action": "hashmod", "target_label": "x"}, "hashmod needs a modulus"),
    ({"action": "replace"}, "replace needs a target_label"),
    ({"target_label": "1x"}, "is not a valid label name"),
    ({"action": "lowercase", "target_label": "x", "replacement": "y"}, "cannot be set for lowercase"),
    ({"action": "labelmap", "replacement": "1-$1"}, "is not a valid label name for labelmap"),
    ({"action": "keepequal", "target_label": "x", "regex": "y"}, "takes only source_labels and target_label"),
    ({"action": "labeldrop", "regex": "x", "source_labels": ["y"]}, "takes only regex"),
    ({"action": "dorp"}, "did you mean 'drop'"),
    ({"regex": "(", "target_label": "x"}, "is not a valid RE2 regular expression"),
    ({"regex": "(?=x)", "target_label": "x"}, "is not a valid RE2 regular expression"),
    ({"source_label": ["x"], "target_label": "x"}, r"\[0\].source_label'; did you mean"),
    ({"source_labels": ["x-y"], "target_label": "x"}, "expected a label name"),
]


@pytest.mark.parametrize(("rule", "complaint"), WRONG, ids=[case[1] for case in WRONG])
def test_an_invalid_rule_is_rejected_in_one_line(
    rule: dict[str, Any], complaint: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=complaint):
        rules_of(tmp_path, [rule])
