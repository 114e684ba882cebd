"""A bad target or endpoint costs no other: the rest is rendered, and every problem is named by its path."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from gpuledger.app.operator_checks import check_agent
from gpuledger.operator.render.objects import Rendered, render_objects
from unit.operator.support import Json, context_of, gpu_monitor, parse_resource, target, whatap

GOOD: Json = {"targetName": "good", "type": "StaticEndpoints", "endpoints": [{"address": "good:1"}]}
TARGETS = "spec.agent.targets"


def static(*endpoints: Any, **more: Any) -> Json:
    return {"targetName": "bad", "type": "StaticEndpoints", "endpoints": list(endpoints), **more}


def judged(resource: Json, **more: Any) -> tuple[list[str], Rendered]:
    """All problems of a resource, each as a line, and the rendering of the rest."""
    parsed = parse_resource(resource)
    assert parsed.monitor is not None
    found = render_objects(parsed.monitor, context_of(parsed.monitor, check_agent=check_agent, **more))
    return [str(one) for one in (*parsed.problems, *found.problems)], found


def scraped(found: Rendered) -> list[tuple[str, list[str]]]:
    """The names of the rendered targets, each with the addresses or ports of its endpoints."""
    assert not found.refused
    (text,) = (
        text
        for one in found.objects
        if one["kind"] == "ConfigMap"
        for name, text in one["data"].items()
        if name in ("agent.yaml", "scrape_config.yaml")
    )
    listed = yaml.safe_load(text)["features"]["openAgent"]["targets"]
    return [
        (one["targetName"], [end.get("address") or end.get("port") for end in one["endpoints"]])
        for one in listed
    ]


def of_targets(*targets: Any, **agent: Any) -> Json:
    return gpu_monitor({"exporter": {"enabled": False}, "agent": {"targets": list(targets), **agent}})


RULE = {"action": "hashmod", "source_labels": ["a"], "target_label": "b"}
LOGIN = {"username": {"name": "s", "key": "u"}, "password": {"name": "s", "key": "p"}}
# The bad target, the path of its problem below the target, and a part of the message.
BAD: dict[str, tuple[Any, str, str]] = {
    "a scheme in an address": (static({"address": "http://a:1"}), ".endpoints[0]", "expected an address"),
    "no address": (static({"port": 1}), ".endpoints[0]", "has no address"),
    "an invalid port": (static({"address": "a:99999"}), ".endpoints[0]", "expected an address"),
    "no endpoint": (static(), ".endpoints", "is empty"),
    "endpoints of null": (target(endpoints=None), ".endpoints", "is empty"),
    "an interval that is none": (
        static({"address": "a:1", "interval": "often"}),
        ".endpoints[0].interval",
        "expected a duration",
    ),
    "a timeout that is too short": (
        static({"address": "a:1", "interval": "5s", "timeout": "6ms"}),
        ".endpoints[0].timeout",
        "expected a duration of at least",
    ),
    "hashmod without modulus": (
        static({"address": "a:1"}, relabelConfigs=[RULE]),
        ".relabelConfigs[0]",
        "modulus",
    ),
    "a bad regular expression": (
        static({"address": "a:1", "metricRelabelConfigs": [{"action": "keep"}, {"regex": "("}]}),
        ".endpoints[0].metricRelabelConfigs[1].regex",
        "RE2",
    ),
    "an unknown action": (
        static({"address": "a:1"}, metricRelabelConfigs=[{"action": "retain"}]),
        ".metricRelabelConfigs[0].action",
        "unknown action",
    ),
    "an unknown key in a rule": (
        static({"address": "a:1"}, relabelConfigs=[{"regexp": "a"}]),
        ".relabelConfigs[0].regexp",
        "is unknown",
    ),
    "an unknown operator": (
        target(selector={"matchExpressions": [{"key": "a", "operator": "Is", "values": ["b"]}]}),
        ".selector.matchExpressions[0].operator",
        "expected one of In",
    ),
    "no value to compare with": (
        target(selector={"matchExpressions": [{"key": "a", "operator": "In"}]}),
        ".selector.matchExpressions[0].values",
        "is empty",
    ),
    "a misspelled selector": (
        target(selector={"matchlabels": {"a": "b"}}),
        ".selector.matchlabels",
        "is unknown",
    ),
    "no selector": (target(selector=None), ".selector", "is missing"),
    "an unknown type": (target(type="Ingress"), ".type", "expected one of PodMonitor"),
    "no type": (target(type=None), ".type", "is missing"),
    "a number as its name": (target(targetName=7), ".targetName", "expected a string"),
    "a text": ("bad", "", "expected a mapping"),
    "null": (None, "", "expected a mapping"),
    "a list as an endpoint": (static(["a:1"]), ".endpoints[0]", "expected a mapping"),
    "a password over http": (
        static({"address": "a:1", "basicAuth": LOGIN}),
        ".endpoints[0].basicAuth",
        "plain http",
    ),
    "a Secret of another namespace": (
        static(
            {
                "address": "a:1",
                "scheme": "https",
                "authorization": {"credentialsSecret": {"name": "s", "key": "k", "namespace": "theirs"}},
            }
        ),
        ".endpoints[0].authorization.credentialsSecret.namespace",
        "cannot be mounted",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_target_costs_no_other(case: str) -> None:
    bad, path, message = BAD[case]
    (line,), found = judged(of_targets(GOOD, bad, target(targetName="last")))
    assert line.startswith(f"{TARGETS}[1]{path}: ")
    assert message in line
    assert scraped(found) == [("good", ["good:1"]), ("last", ["metrics"])]


def test_all_problems_are_named_at_once() -> None:
    lines, found = judged(of_targets(*(bad for bad, _, _ in BAD.values()), GOOD))
    expected = [f"{TARGETS}[{index}]{path}" for index, (_, path, _) in enumerate(BAD.values())]
    assert sorted(line.partition(": ")[0] for line in lines) == sorted(expected)
    assert scraped(found) == [("good", ["good:1"])]


def test_a_bad_endpoint_costs_no_other_of_its_target() -> None:
    ends = [
        {"address": "a:1"},
        {"address": "http://a:2"},
        {"address": "a:3", "path": "?"},
        {"address": "a:4"},
    ]
    lines, found = judged(of_targets(GOOD, static(*ends)))
    assert [line.partition(": ")[0] for line in lines] == [
        f"{TARGETS}[1].endpoints[2].path",
        f"{TARGETS}[1].endpoints[1]",
    ]
    assert scraped(found) == [("good", ["good:1"]), ("bad", ["a:1", "a:4"])]


def test_a_target_is_left_out_when_the_last_of_its_endpoints_is() -> None:
    lines, found = judged(of_targets(static({"address": "http://a:1"}, {"address": "http://a:2"}), GOOD))
    assert len(lines) == 2
    assert scraped(found) == [("good", ["good:1"])]


def test_of_two_targets_with_the_same_name_the_first_is_scraped() -> None:
    (line,), found = judged(of_targets(target(), target(endpoints=[{"port": "other"}]), GOOD))
    assert line == f"{TARGETS}[1].targetName: duplicate targetName theirs; each must be unique"
    assert scraped(found) == [("theirs", ["metrics"]), ("good", ["good:1"])]


def test_the_name_of_a_bad_target_is_free_for_the_next() -> None:
    (line,), found = judged(of_targets(target(jobLabel=["a"]), target()))
    assert line.startswith(f"{TARGETS}[0].jobLabel: ")
    assert scraped(found) == [("theirs", ["metrics"])]


def test_a_target_with_the_name_of_the_automatic_one_does_not_cost_the_exporters() -> None:
    (line,), found = judged(gpu_monitor({"agent": {"targets": [GOOD, target(targetName="gpus")]}}))
    assert line == f"{TARGETS}[1].targetName: duplicate targetName gpus; each must be unique"
    assert scraped(found) == [("good", ["good:1"]), ("gpus", ["metrics"])]


def test_an_unknown_key_of_a_target_or_endpoint_is_ignored() -> None:
    resource = of_targets(static({"address": "a:1", "intervall": "5s"}, colour="red"))
    parsed = parse_resource(resource)
    assert [one.path for one in parsed.ignored] == [
        f"{TARGETS}[0].endpoints[0].intervall",
        f"{TARGETS}[0].colour",
    ]
    lines, found = judged(resource)
    assert lines == []
    assert scraped(found) == [("bad", ["a:1"])]


def test_an_empty_interval_is_that_of_the_agent() -> None:
    lines, found = judged(
        of_targets(static({"address": "a:1", "interval": "", "scheme": ""}), globalInterval="7s")
    )
    assert lines == []
    assert scraped(found) == [("bad", ["a:1"])]


def test_a_bad_target_beside_a_bad_receiver_is_named_too() -> None:
    receivers = [{"url": "http://store/"}, {"url": "http://b/", "writeRelabelConfigs": [{"regex": "("}]}]
    lines, found = judged(of_targets(static({"address": "http://a:1"}), GOOD, remoteWrite=receivers))
    assert [line.partition(": ")[0] for line in lines] == [
        f"{TARGETS}[0].endpoints[0]",
        "spec.agent.remoteWrite[1].writeRelabelConfigs[0].regex",
    ]
    # What stands outside of the targets is refused.
    assert found.refused


def test_credentials_in_an_endpoint_of_a_whatap_agent_cost_that_endpoint() -> None:
    exposed = {"port": "a", "authorization": {"credentials": "s3cret"}}
    (line,), found = judged(
        whatap(openAgent={"enabled": True, "targets": [target(endpoints=[exposed, {"port": "b"}])]})
    )
    assert "targets[0].endpoints[0].authorization.credentials: exposes the credential" in line
    assert scraped(found) == [("theirs", ["b"])]


def test_a_bad_rule_for_the_exporters_costs_only_their_target() -> None:
    rules = [{"regex": "("}]
    (line,), found = judged(
        whatap(
            openAgent={"enabled": True, "targets": [GOOD]},
            k8sAgent={"gpuMonitoring": {"enabled": True, "relabelConfigs": rules}},
        )
    )
    assert line.startswith("spec.features.k8sAgent.gpuMonitoring.relabelConfigs: is not a valid RE2")
    assert scraped(found) == [("good", ["good:1"])]
    assert "DaemonSet" in {one["kind"] for one in found.objects}


def test_a_bad_target_costs_no_other_of_a_prometheus() -> None:
    by_label = target(namespaceSelector={"matchLabels": {"a": "b"}})
    lines, found = judged(of_targets(by_label, static({"address": "http://a:1"}), GOOD, engine="prometheus"))
    assert [line.partition(": ")[0] for line in lines] == [
        f"{TARGETS}[0].namespaceSelector",
        f"{TARGETS}[1].endpoints[0]",
    ]
    assert scraped(found) == [("good", ["good:1"])]


def test_a_bad_target_does_not_replace_the_automatic_one() -> None:
    """It would have selected the resource's own exporters, which are scraped all the same."""
    own = target(
        selector={"matchLabels": {"app.kubernetes.io/component": "exporter"}},
        relabelConfigs=[{"action": "retain"}],
    )
    (line,), found = judged(gpu_monitor({"agent": {"targets": [own]}}))
    assert line.startswith(f"{TARGETS}[0].relabelConfigs[0].action: ")
    assert scraped(found) == [("gpus", ["metrics"])]


def test_secrets_of_a_target_that_is_left_out_are_not_mounted() -> None:
    _, found = judged(of_targets(static({"address": "a:1", "basicAuth": LOGIN}), GOOD))
    (pods,) = (one for one in found.objects if one["kind"] == "StatefulSet")
    assert "secrets" not in [one["name"] for one in pods["spec"]["template"]["spec"]["volumes"]]
