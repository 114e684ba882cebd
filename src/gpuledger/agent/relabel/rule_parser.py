"""Parser of relabel configs; rejects what Prometheus rejects."""

from __future__ import annotations

from dataclasses import fields
from re import ASCII, fullmatch
from typing import Final

from gpuledger.agent.relabel.rules import ACTIONS, LABEL_NAME, RelabelRule, RelabelRules, compile_re2
from gpuledger.host.yaml_nodes import YamlNode
from gpuledger.model.errors import UsageError, collect_errors, raise_errors, unknown_name_error
from gpuledger.model.settings import integer

_USUAL: Final = RelabelRule()
_KEYS: Final = tuple(field.name for field in fields(RelabelRule))
# prometheus-operator's spellings, which are used in the same kind of resource.
_CAMEL: Final = {"sourceLabels": "source_labels", "targetLabel": "target_label"}
_WITH_TARGET: Final = frozenset(
    {"replace", "hashmod", "lowercase", "uppercase", "keepequal", "dropequal"},
)
# A label name that may contain group references.
_TEMPLATE: Final = r"(?:(?:[a-zA-Z_]|\$(?:\{\w+\}|\w+))+\w*)+"


def read_relabel_rules(node: YamlNode) -> RelabelRules:
    """Parse a list of rules; empty if it is absent. Raises UsageError naming the keys and the problems."""
    rules: list[RelabelRule] = []
    errors: list[UsageError] = []
    for element in node.elements():
        with collect_errors(errors):
            rules.append(_rule(element))
    raise_errors(errors)
    return RelabelRules(rules)


def _rule(node: YamlNode) -> RelabelRule:
    written = dict(node.items())
    keys = node.section((*_KEYS, *(old for old in _CAMEL if old in written)))
    for old, name in _CAMEL.items():
        if old in written:
            if name in written:
                raise keys[old].error(f"is given together with {name}; give only one of them")
            keys[name] = keys.pop(old)
    rule = RelabelRule(
        action=keys["action"].text().lower() or "replace",
        source_labels=tuple(_source(name) for name in keys["source_labels"].elements()),
        separator=keys["separator"].literal(_USUAL.separator),
        regex=keys["regex"].literal(_USUAL.regex),
        modulus=keys["modulus"].parse(integer(0, 2**64 - 1), 0),
        target_label=keys["target_label"].text(),
        replacement=keys["replacement"].literal(_USUAL.replacement),
    )
    if rule.action not in ACTIONS:
        raise keys["action"].error(str(unknown_name_error("action", rule.action, ACTIONS)))
    try:
        compile_re2(rule.regex)
    except ValueError as error:
        raise keys["regex"].error(f"is not a valid RE2 regular expression: {error}") from None
    _check(rule, node, keys)
    return rule


def _source(node: YamlNode) -> str:
    if not LABEL_NAME.fullmatch(node.text()):
        raise node.error("expected a label name")
    return node.text()


def _check(rule: RelabelRule, node: YamlNode, keys: dict[str, YamlNode]) -> None:
    action, target = rule.action, rule.target_label
    if action == "hashmod" and not rule.modulus:
        raise node.error("hashmod needs a modulus of at least 1")
    if action in _WITH_TARGET and not target:
        raise node.error(f"{action} needs a target_label")
    if action in _WITH_TARGET:
        pattern = LABEL_NAME.pattern if action == "hashmod" else _TEMPLATE
        if not fullmatch(pattern, target, ASCII):
            raise keys["target_label"].error(f"is not a valid label name for {action}")
    if action in ("lowercase", "uppercase") and rule.replacement != _USUAL.replacement:
        raise keys["replacement"].error(f"cannot be set for {action}")
    if action == "labelmap" and not fullmatch(_TEMPLATE, rule.replacement, ASCII):
        raise keys["replacement"].error("is not a valid label name for labelmap")
    if action in ("keepequal", "dropequal") and rule != RelabelRule(
        action=action, source_labels=rule.source_labels, target_label=target
    ):
        raise node.error(f"{action} takes only source_labels and target_label")
    if action in ("labeldrop", "labelkeep") and rule != RelabelRule(action=action, regex=rule.regex):
        raise node.error(f"{action} takes only regex")
