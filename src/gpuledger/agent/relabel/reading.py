"""Relabel rules out of a configuration file, refused where Prometheus refuses them."""

from __future__ import annotations

from re import ASCII, fullmatch
from typing import Final

from gpuledger.agent.relabel.rule import (
    ACTIONS,
    DEFAULT_REGEX,
    DEFAULT_REPLACEMENT,
    DEFAULT_SEPARATOR,
    LABEL_NAME,
    Relabelling,
    Rule,
    compiled,
)
from gpuledger.host.yaml_nodes import Node
from gpuledger.model.errors import unknown
from gpuledger.model.settings import integer

_KEYS: Final = (
    *("source_labels", "separator", "regex", "modulus"),
    *("target_label", "replacement", "action"),
)
# The forms of prometheus-operator, which stand in the same kind of resource.
_CAMEL: Final = {"sourceLabels": "source_labels", "targetLabel": "target_label"}
_WITH_TARGET: Final = frozenset(
    {"replace", "hashmod", "lowercase", "uppercase", "keepequal", "dropequal"},
)
# A label's name in which groups may be referred to.
_TEMPLATE: Final = r"(?:(?:[a-zA-Z_]|\$(?:\{\w+\}|\w+))+\w*)+"


def read_rules(node: Node) -> Relabelling:
    """The rules of a list, in its order; none where it is absent.

    Raises UsageError naming the place and what is wrong.
    """
    return Relabelling(_rule(element) for element in node.elements())


def _rule(node: Node) -> Rule:
    written = dict(node.items())
    keys = node.section((*_KEYS, *(old for old in _CAMEL if old in written)))
    for old, name in _CAMEL.items():
        if old in written:
            if name in written:
                raise keys[old].wrong(f"is given together with {name}; one of them is wanted")
            keys[name] = keys.pop(old)
    rule = Rule(
        action=keys["action"].text().lower() or "replace",
        source_labels=tuple(_source(name) for name in keys["source_labels"].elements()),
        separator=keys["separator"].literal(DEFAULT_SEPARATOR),
        regex=keys["regex"].literal(DEFAULT_REGEX),
        modulus=keys["modulus"].parsed(integer(0, 2**64 - 1), 0),
        target_label=keys["target_label"].text(),
        replacement=keys["replacement"].literal(DEFAULT_REPLACEMENT),
    )
    if rule.action not in ACTIONS:
        raise keys["action"].wrong(str(unknown("action", rule.action, ACTIONS)))
    try:
        compiled(rule.regex)
    except ValueError as error:
        raise keys["regex"].wrong(f"is no regular expression of RE2: {error}") from None
    _check(rule, node, keys)
    return rule


def _source(node: Node) -> str:
    if not LABEL_NAME.fullmatch(node.text()):
        raise node.wrong("a label name is wanted")
    return node.text()


def _check(rule: Rule, node: Node, keys: dict[str, Node]) -> None:
    action, target = rule.action, rule.target_label
    if action == "hashmod" and not rule.modulus:
        raise node.wrong("hashmod needs a modulus of at least 1")
    if action in _WITH_TARGET and not target:
        raise node.wrong(f"{action} needs a target_label")
    if action in _WITH_TARGET:
        wanted = LABEL_NAME.pattern if action == "hashmod" else _TEMPLATE
        if not fullmatch(wanted, target, ASCII):
            raise keys["target_label"].wrong(f"is no label name for {action}")
    if action in ("lowercase", "uppercase") and rule.replacement != DEFAULT_REPLACEMENT:
        raise keys["replacement"].wrong(f"cannot be set for {action}")
    if action == "labelmap" and not fullmatch(_TEMPLATE, rule.replacement, ASCII):
        raise keys["replacement"].wrong("is no label name for labelmap")
    if action in ("keepequal", "dropequal") and rule != Rule(
        action=action, source_labels=rule.source_labels, target_label=target
    ):
        raise node.wrong(f"{action} takes only source_labels and target_label")
    if action in ("labeldrop", "labelkeep") and rule != Rule(action=action, regex=rule.regex):
        raise node.wrong(f"{action} takes only regex")
