"""No key of a resource is there in vain: each changes an object, or is said to be wrong or not heeded."""

from __future__ import annotations

import json
from copy import deepcopy
from functools import cache
from typing import Any

import pytest

from gpuledger.operator.reading import read
from gpuledger.operator.render.objects import render
from gpuledger.operator.render.pods import plain
from gpuledger.operator.schema.gpu_monitor import SPEC
from gpuledger.operator.schema.nodes import Each, Fields, Node, Switch
from gpuledger.operator.schema.whatap_agent import WHATAP_SPEC
from unit.operator.schemas import Path, leaves, sample
from unit.operator.support import Json, asks_agent, facts_of, gpu_monitor, whatap

# What must stand beside a key for it to mean something.
HOST = {"exporter": {"gpuAccess": {"mode": "host"}, "source": "smi"}}
BESIDE: dict[str, Json] = {
    "exporter.gpuAccess.cdiDevice": {"exporter": {"gpuAccess": {"mode": "cdi"}}},
    "exporter.gpuAccess.driverDir": HOST,
    "exporter.gpuAccess.library": HOST,
    "exporter.gpuAccess.smi": HOST,
    "exporter.followGpuOperator.deployLabel": {"exporter": {"followGpuOperator": {"enabled": True}}},
    "exporter.followGpuOperator.validationsDir": {"exporter": {"followGpuOperator": {"enabled": True}}},
    "agent.prometheusImage": {"agent": {"engine": "prometheus"}},
    "exporter.updateStrategy.maxUnavailable": {"exporter": {"updateStrategy": {"type": "RollingUpdate"}}},
}
# True is what is done without a word.
FALSE = {"exporter.enabled", "exporter.hostPID", "exporter.service", "agent.enabled"}
# Of a WhatapAgent everything is tried with this, whose switches are all on.
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
    """Both, mappings joined."""
    found = deepcopy(below)
    for key, value in above.items():
        mine = found.get(key)
        found[key] = laid(mine, value) if isinstance(mine, dict) and isinstance(value, dict) else value
    return found


def with_key(tree: Node, spec: Json, path: Path, value: Any) -> Json:
    """The specification with a value at a path; on the way there, what is required."""
    found = deepcopy(spec)
    at: Any = found
    node = tree
    for step, following in zip(path, (*path[1:], None), strict=True):
        if step == "[]":
            assert isinstance(node, Each)
            node = node.item
            if not at:
                at.append(sample(node))
            key: Any = 0
            at = at[0] if following is not None else at
            continue
        assert isinstance(node, Fields)
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
    """All that anybody gets to see of a resource; a key that says nothing is as if it were not there."""
    return _outcome(json.dumps(plain(resource), sort_keys=True))


@cache
def _outcome(resource: str) -> object:
    found = read(json.loads(resource))
    if found.monitor is None:
        return found.problems
    made = render(found.monitor, facts_of(found.monitor, check_agent=asks_agent))
    return found.ignored, made


def node_at(tree: Node, path: Path) -> Node:
    node = tree
    for step in path:
        if step == "[]":
            assert isinstance(node, Each)
            node = node.item
        else:
            assert isinstance(node, Fields)
            node = node.keys[step]
    return node


@pytest.mark.parametrize("path", [path for path, _ in leaves(SPEC)], ids=dotted)
def test_every_key_of_a_gpu_monitor_comes_to_something(path: Path) -> None:
    name = dotted(path)
    base = BESIDE.get(name, {})
    value = False if name in FALSE else sample(node_at(SPEC, path), path[-1])
    changed = with_key(SPEC, base, path, value)
    without = with_key(SPEC, base, path, None)
    assert outcome(gpu_monitor(changed)) != outcome(gpu_monitor(without)), changed


@pytest.mark.parametrize("path", [path for path, _ in leaves(WHATAP_SPEC)], ids=dotted)
def test_every_key_of_a_whatap_agent_comes_to_something(path: Path) -> None:
    name = dotted(path)
    base = laid(ON, WHATAP_BESIDE.get(name, {}))
    node = node_at(WHATAP_SPEC, path)
    off = name.endswith(".enabled") and isinstance(node, Switch) and "[]" not in name
    value = False if off or name in WHATAP_FALSE else sample(node, path[-1])
    changed = with_key(WHATAP_SPEC, base, path, value)
    without = base if off else with_key(WHATAP_SPEC, base, path, None)
    assert outcome({**whatap(), "spec": changed}) != outcome({**whatap(), "spec": without}), changed
