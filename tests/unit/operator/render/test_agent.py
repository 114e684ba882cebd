"""The targets of a resource's agent: its own exporters, once, and the configured targets."""

from __future__ import annotations

import pytest

from unit.operator.support import Json, agent_file, gpu_monitor, target

OWN: Json = {
    "targetName": "gpus",
    "type": "PodMonitor",
    "namespaceSelector": {"matchNames": ["gpuledger"]},
    "selector": {
        "matchLabels": {
            "gpuledger.dev/monitor": "gpus",
            "gpuledger.dev/monitor-kind": "GpuMonitor",
            "app.kubernetes.io/component": "exporter",
        }
    },
    "endpoints": [{"port": "metrics", "path": "/metrics", "addNodeLabel": True}],
}


def scraped(agent: Json, exporter: Json | None = None) -> Json:
    """features.openAgent of a GpuMonitor's agent."""
    config = agent_file(gpu_monitor({"agent": agent, "exporter": exporter or {}}))
    return dict(config["features"]["openAgent"])


NO_EXPORTER = {"enabled": False}
USUAL: list[tuple[str, Json, Json, Json]] = [
    ("its own exporters", {}, {}, {"targets": [OWN], "autoTargets": False}),
    (
        "its own beside others",
        {"targets": [target()]},
        {},
        {"targets": [target(), OWN], "autoTargets": False},
    ),
    ("all usual exporters", {"autoTargets": True}, {}, {"targets": [], "autoTargets": True}),
    ("no automatic targets", {"autoTargets": False}, {}, {"targets": [], "autoTargets": False}),
    ("usual exporters, without its own", {}, NO_EXPORTER, {}),
    (
        "only other exporters",
        {"targets": [target()]},
        NO_EXPORTER,
        {"targets": [target()], "autoTargets": False},
    ),
    ("an empty list", {"targets": []}, NO_EXPORTER, {"targets": [], "autoTargets": False}),
]


@pytest.mark.parametrize(
    ("agent", "exporter", "features"), [one[1:] for one in USUAL], ids=[one[0] for one in USUAL]
)
def test_what_an_agent_scrapes(agent: Json, exporter: Json, features: Json) -> None:
    assert scraped(agent, exporter) == features


COMPONENT = {"app.kubernetes.io/component": "exporter"}
COVERING: list[tuple[str, Json, bool]] = [
    ("by label", {"selector": {"matchLabels": COMPONENT}}, True),
    (
        "in its namespace",
        {"namespaceSelector": {"matchNames": ["gpuledger"]}, "selector": {"matchLabels": COMPONENT}},
        True,
    ),
    (
        "in another",
        {"namespaceSelector": {"matchNames": ["x"]}, "selector": {"matchLabels": COMPONENT}},
        False,
    ),
    (
        "by the namespace's name",
        {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "gpuledger"}},
            "selector": {"matchLabels": COMPONENT},
        },
        True,
    ),
    ("by the pods' own label", {"selector": {"matchLabels": {"team": "a"}}}, True),
    (
        "by an expression",
        {"selector": {"matchExpressions": [{"key": "team", "operator": "In", "values": ["a", "b"]}]}},
        True,
    ),
    (
        "by an expression that does not match",
        {"selector": {"matchExpressions": [{"key": "team", "operator": "NotIn", "values": ["a"]}]}},
        False,
    ),
    (
        "by an absent label",
        {"selector": {"matchExpressions": [{"key": "x", "operator": "DoesNotExist"}]}},
        True,
    ),
    ("by a missing label", {"selector": {"matchExpressions": [{"key": "x", "operator": "Exists"}]}}, False),
    ("not enabled", {"enabled": False, "selector": {"matchLabels": COMPONENT}}, True),
    ("everything", {"selector": {}}, False),
    ("their Service", {"type": "ServiceMonitor", "selector": {"matchLabels": COMPONENT}}, True),
    ("another Service", {"type": "ServiceMonitor", "selector": {"matchLabels": {"team": "a"}}}, False),
    ("by the port's number", {"selector": {"matchLabels": COMPONENT}, "endpoints": [{"port": 9400}]}, True),
    ("any port", {"selector": {"matchLabels": COMPONENT}, "endpoints": [{"path": "/metrics"}]}, True),
    (
        "their dialect's page",
        {
            "selector": {"matchLabels": COMPONENT},
            "endpoints": [{"port": "metrics", "path": "/metrics/native"}],
        },
        True,
    ),
    (
        "another dialect's page",
        {
            "selector": {"matchLabels": COMPONENT},
            "endpoints": [{"port": "metrics", "path": "/metrics/dcgm"}],
        },
        False,
    ),
    ("another port", {"selector": {"matchLabels": COMPONENT}, "endpoints": [{"port": "dcgm"}]}, False),
    (
        "another port and theirs",
        {"selector": {"matchLabels": COMPONENT}, "endpoints": [{"port": "dcgm"}, {"port": "metrics"}]},
        True,
    ),
]


@pytest.mark.parametrize(("more", "covers"), [one[1:] for one in COVERING], ids=[one[0] for one in COVERING])
def test_exporters_that_a_target_selects_are_not_scraped_twice(more: Json, covers: bool) -> None:
    listed = scraped({"targets": [target(**more)]}, {"podLabels": {"team": "a"}})["targets"]
    assert [one["targetName"] for one in listed] == ["theirs"] + ([] if covers else ["gpus"])


def test_a_numeric_port_is_written_as_a_string() -> None:
    listed = scraped({"targets": [target(endpoints=[{"port": 9400}])]})["targets"]
    assert listed[0]["endpoints"] == [{"port": "9400"}]


def test_the_exporters_path_does_not_depend_on_the_global_path() -> None:
    found = scraped({"globalPath": "/other"}, {"metricsPath": "/gpus"})
    assert found["globalPath"] == "/other"
    assert found["targets"][0]["endpoints"][0]["path"] == "/gpus"
