"""Every key of a resource has an effect: it changes an object, or is reported as a problem or as ignored."""

from __future__ import annotations

import json
from copy import deepcopy
from functools import cache
from typing import Any

import pytest

from gpuledger.operator.monitor_parser import parse_monitor
from gpuledger.operator.render.objects import render_objects
from gpuledger.operator.render.pods import to_plain
from gpuledger.operator.schema.nodes import BooleanNode, ListNode, ObjectNode, SchemaNode
from gpuledger.operator.spec import SPEC
from gpuledger.operator.whatap_spec import WHATAP_SPEC
from unit.operator.schemas import Path, leaf_fields, sample
from unit.operator.support import Json, context_of, gpu_monitor, whatap

# Other keys that must be set for a key to have an effect.
HOST = {"exporter": {"gpuAccess": {"mode": "host"}, "source": "smi"}}
CRON_JOB: Json = {"exporter": {"mode": "cronjob"}}
MANY: Json = {"exporter": {"mode": "cronjob", "cronJob": {"nodes": [f"n{number}" for number in range(19)]}}}
BESIDE: dict[str, Json] = {
    "exporter.gpuAccess.cdiDevice": {"exporter": {"gpuAccess": {"mode": "cdi"}}},
    "exporter.gpuAccess.driverDir": HOST,
    "exporter.gpuAccess.library": HOST,
    "exporter.gpuAccess.smi": HOST,
    "exporter.followGpuOperator.deployLabel": {"exporter": {"followGpuOperator": {"enabled": True}}},
    "exporter.followGpuOperator.validationsDir": {"exporter": {"followGpuOperator": {"enabled": True}}},
    "agent.prometheusImage": {"agent": {"engine": "prometheus"}},
    "exporter.textfile.directory": {"exporter": {"mode": "collect"}},
    "exporter.textfile.file": {"exporter": {"mode": "collect"}},
    "exporter.textfile.every": {"exporter": {"mode": "collect"}},
    "exporter.cronJob.schedule": CRON_JOB,
    "exporter.cronJob.nodes": CRON_JOB,
    "exporter.cronJob.nodeCount": CRON_JOB,
    "exporter.cronJob.maxNodes": MANY,
    "exporter.cronJob.activeDeadlineSeconds": CRON_JOB,
    "exporter.cronJob.ttlSecondsAfterFinished": CRON_JOB,
    "exporter.cronJob.suspend": MANY,
    "networkPolicy.from": {"networkPolicy": {"enabled": True}},
    "networkPolicy.apiServerPorts": {"networkPolicy": {"enabled": True}},
    "exporter.updateStrategy.maxUnavailable": {"exporter": {"updateStrategy": {"type": "RollingUpdate"}}},
}
# Keys with the default true.
FALSE = {"exporter.enabled", "exporter.hostPID", "exporter.service", "agent.enabled"}
# The spec in which every key of a WhatapAgent is tested: all features are enabled.
ON: Json = {
    "features": {
        "openAgent": {"enabled": True},
        "k8sAgent": {"gpuMonitoring": {"enabled": True, "service": {"enabled": True, "type": "NodePort"}}},
    }
}
WHATAP_BESIDE: dict[str, Json] = {
    "features.openAgent.prometheusImage": {"features": {"openAgent": {"engine": "prometheus"}}},
}
WHATAP_FALSE = {"features.k8sAgent.nodeAgent.hostPID"}


def dotted(path: Path) -> str:
    return ".".join(path).replace(".[]", "[]")


def laid(below: Json, above: Json) -> Json:
    """Both specs merged; `above` wins."""
    found = deepcopy(below)
    for key, value in above.items():
        mine = found.get(key)
        found[key] = laid(mine, value) if isinstance(mine, dict) and isinstance(value, dict) else value
    return found


def with_key(tree: SchemaNode, spec: Json, path: Path, value: Any) -> Json:
    """The spec with a value at a path, and with the required keys of all sections on the path."""
    found = deepcopy(spec)
    at: Any = found
    node = tree
    for step, following in zip(path, (*path[1:], None), strict=True):
        if step == "[]":
            assert isinstance(node, ListNode)
            node = node.item
            if not at:
                at.append(sample(node))
            key: Any = 0
            at = at[0] if following is not None else at
            continue
        assert isinstance(node, ObjectNode)
        node = node.keys[step]
        key = step
        if following is None:
            at[key] = value
        elif following == "[]":
            at = at.setdefault(step, [])
        else:
            at = at.setdefault(step, sample(node))
    return found


def outcome(resource: Json) -> object:
    """The complete result of parsing and rendering a resource. Keys with null count as absent."""
    return _outcome(json.dumps(to_plain(resource), sort_keys=True))


@cache
def _outcome(resource: str) -> object:
    found = parse_monitor(json.loads(resource))
    if found.monitor is None:
        return found.problems
    # Without the agent's own check: it would leave out the incomplete target that holds the key.
    made = render_objects(found.monitor, context_of(found.monitor))
    return found.problems, found.ignored, made


def node_at(tree: SchemaNode, path: Path) -> SchemaNode:
    node = tree
    for step in path:
        if step == "[]":
            assert isinstance(node, ListNode)
            node = node.item
        else:
            assert isinstance(node, ObjectNode)
            node = node.keys[step]
    return node


def by_section(tree: SchemaNode) -> dict[str, list[Path]]:
    """The paths of all keys, by the first two steps of each."""
    found: dict[str, list[Path]] = {}
    for path, _ in leaf_fields(tree):
        found.setdefault(dotted(path[:2]), []).append(path)
    return found


def monitor_key_has_effect(path: Path) -> bool:
    name = dotted(path)
    base = BESIDE.get(name, {})
    value = False if name in FALSE else sample(node_at(SPEC, path), path[-1])
    changed, without = with_key(SPEC, base, path, value), with_key(SPEC, base, path, None)
    return outcome(gpu_monitor(changed)) != outcome(gpu_monitor(without))


def whatap_key_has_effect(path: Path) -> bool:
    name = dotted(path)
    base = laid(ON, WHATAP_BESIDE.get(name, {}))
    node = node_at(WHATAP_SPEC, path)
    off = name.endswith(".enabled") and isinstance(node, BooleanNode) and "[]" not in name
    value = False if off or name in WHATAP_FALSE else sample(node, path[-1])
    changed = with_key(WHATAP_SPEC, base, path, value)
    without = base if off else with_key(WHATAP_SPEC, base, path, None)
    return outcome({**whatap(), "spec": changed}) != outcome({**whatap(), "spec": without})


@pytest.mark.parametrize("paths", by_section(SPEC).values(), ids=by_section(SPEC))
def test_every_key_of_a_gpu_monitor_has_an_effect(paths: list[Path]) -> None:
    assert [dotted(path) for path in paths if not monitor_key_has_effect(path)] == []


@pytest.mark.parametrize("paths", by_section(WHATAP_SPEC).values(), ids=by_section(WHATAP_SPEC))
def test_every_key_of_a_whatap_agent_has_an_effect(paths: list[Path]) -> None:
    assert [dotted(path) for path in paths if not whatap_key_has_effect(path)] == []
