"""A wrong part of a specification costs no other, and every problem is named at once by its path."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpuledger.app.operator_checks import check_agent, check_exporter
from gpuledger.operator.judged_spec import AppliedSpec, JudgedSpec, judge_spec, spec_text
from gpuledger.operator.monitor_parser import parse_monitor
from gpuledger.operator.render.objects import Rendered, render_objects
from gpuledger.operator.schema.nodes import Problem
from gpuledger.operator.spec import GpuMonitor
from unit.operator.support import Json, context_of, gpu_monitor, target, valid_monitor, whatap


def render(_: Json, monitor: GpuMonitor) -> Rendered:
    checks: Json = {"check_agent": check_agent, "check_exporter": check_exporter}
    return render_objects(monitor, context_of(monitor, **checks))


def judge(resource: Json, before: Json | None = None) -> JudgedSpec:
    """The judgement of a resource, of which the specification `before` was applied last."""
    applied = None
    if before is not None:
        earlier = {**resource, "spec": before}
        applied = AppliedSpec(spec_text(earlier), valid_monitor(earlier))
    return judge_spec(resource, parse_monitor(resource), applied, render)


def paths(judged: JudgedSpec) -> list[str]:
    return [problem.path for problem in judged.problems]


def applied_spec(judged: JudgedSpec) -> Any:
    return None if judged.spec is None else json.loads(judged.spec.text)


def kinds(judged: JudgedSpec) -> set[str]:
    assert judged.spec is not None
    assert judged.spec.rendered is not None
    return {one["kind"] for one in judged.spec.rendered.objects} & {"DaemonSet", "StatefulSet"}


GOOD = {"url": "https://good/write"}
BAD = {"url": "https://ann:hunter2@bad/write"}
AGENT: Json = {"targets": [target()]}
# A wrong exporter or agent: by its fields, by the schema, and by the program.
WRONG: dict[str, Json] = {
    "a flag": {"args": ["--unknown"]},
    "a type": {"args": "--log.level=debug"},
    "a request for a device": {"resources": {"limits": {"nvidia.com/gpu": 1}}},
    "a variable": {"env": [{"name": "GPULEDGER_LOG_LEVEL", "value": "loud"}]},
    "two sources of a variable": {"env": [{"name": "A", "valueFrom": {}}]},
    "an unknown key": {"colour": "red"},
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_exporter_does_not_cost_the_agent_at_the_first_apply(case: str) -> None:
    found = judge(gpu_monitor({"exporter": WRONG[case], "agent": AGENT}))
    assert all(path.startswith("spec.exporter.") for path in paths(found))
    assert found.kept == ("spec.exporter is not applied",)
    assert applied_spec(found) == {"exporter": {"enabled": False}, "agent": AGENT}
    assert kinds(found) == {"StatefulSet"}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_exporter_is_kept_as_it_was_applied_last(case: str) -> None:
    before = {"exporter": {"port": 9500}}
    found = judge(gpu_monitor({"exporter": WRONG[case], "agent": AGENT}), before)
    assert found.kept == ("spec.exporter is kept as it was applied last",)
    assert applied_spec(found) == {**before, "agent": AGENT}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_agent_does_not_cost_the_exporters(case: str) -> None:
    found = judge(gpu_monitor({"agent": {**AGENT, **WRONG[case]}, "exporter": {"port": 9500}}))
    assert found.kept == ("spec.agent is not applied",)
    assert applied_spec(found) == {"exporter": {"port": 9500}, "agent": {"enabled": False}}
    assert kinds(found) == {"DaemonSet"}


def test_a_section_that_was_omitted_before_is_omitted_again() -> None:
    found = judge(gpu_monitor({"agent": {"args": ["--unknown"]}, "exporter": {"port": 9500}}), {})
    assert applied_spec(found) == {"exporter": {"port": 9500}}
    assert kinds(found) == {"DaemonSet", "StatefulSet"}


@pytest.mark.parametrize(
    "status", [{"appliedSpec": '{"exporter": {"port": 0}}'}, {"gpuNodes": 3}, {"targetsFound": 0}]
)
def test_nothing_is_changed_if_it_is_not_known_what_runs(status: Json) -> None:
    """A section that is omitted would be deleted, although it ran before the operator restarted."""
    resource = {**gpu_monitor({"agent": {**AGENT, "args": ["--unknown"]}}), "status": status}
    found = judge(resource)
    assert (paths(found), found.spec) == (["spec.agent.args"], None)


def test_an_agent_without_exporters_and_targets_would_scrape_those_of_others() -> None:
    assert judge(gpu_monitor({"exporter": {"args": ["--unknown"]}})).spec is None
    assert judge(gpu_monitor({"exporter": {"args": ["--unknown"]}, "agent": {"targets": []}})).spec is None


def test_what_has_been_applied_in_part_is_judged_the_same_again() -> None:
    resource = gpu_monitor({"exporter": {"port": 0}, "agent": {**AGENT, "remoteWrite": [GOOD, BAD]}})
    first = judge(resource)
    assert applied_spec(judge(resource, applied_spec(first))) == applied_spec(first)


def test_a_wrong_receiver_costs_no_other_at_the_first_apply() -> None:
    found = judge(gpu_monitor({"agent": {**AGENT, "remoteWrite": [BAD, GOOD]}}))
    assert paths(found) == ["spec.agent.remoteWrite[0].url"]
    assert found.kept == ("spec.agent.remoteWrite[0] is left out",)
    assert applied_spec(found) == {"agent": {**AGENT, "remoteWrite": [GOOD]}}


@pytest.mark.parametrize("wrong", [BAD, {"url": "https://bad/write", "headers": {"X-Token": "s3cret"}}])
def test_a_receiver_that_prometheus_cannot_have_costs_no_other(wrong: Json) -> None:
    agent = {**AGENT, "engine": "prometheus"}
    found = judge(gpu_monitor({"agent": {**agent, "remoteWrite": [wrong, GOOD, wrong]}}))
    assert {path.split(".")[2] for path in paths(found)} == {"remoteWrite[0]", "remoteWrite[2]"}
    assert applied_spec(found) == {"agent": {**agent, "remoteWrite": [GOOD]}}


def test_receivers_that_are_wrong_in_different_ways_have_their_own_numbers() -> None:
    """Those of a wrong type are found first; then the others have other numbers among those that remain."""
    wrong_rule = {"url": "https://rule/write", "writeRelabelConfigs": [{"regex": "("}]}
    wrong_header = {"url": "https://header/write", "headers": {"Host": "x"}}
    receivers = [{"url": 5}, wrong_rule, GOOD, "no mapping", wrong_header]
    found = judge(gpu_monitor({"agent": {**AGENT, "remoteWrite": receivers}}))
    assert sorted(paths(found)) == [
        "spec.agent.remoteWrite[0].url",
        "spec.agent.remoteWrite[1].writeRelabelConfigs[0].regex",
        "spec.agent.remoteWrite[3]",
        "spec.agent.remoteWrite[4].headers.Host",
    ]
    assert applied_spec(found) == {"agent": {**AGENT, "remoteWrite": [GOOD]}}


def test_receivers_that_run_are_kept_while_one_is_wrong() -> None:
    """One of them may be the wrong one: its unsent samples must not be lost."""
    before = {"agent": {"remoteWrite": [{"url": "https://bad/write"}, GOOD]}}
    found = judge(gpu_monitor({"agent": {**AGENT, "remoteWrite": [BAD, GOOD]}}), before)
    assert found.kept == ("spec.agent.remoteWrite is kept as it was applied last",)
    assert applied_spec(found) == {"agent": {**AGENT, **before["agent"]}}


def test_without_a_good_receiver_there_is_no_agent() -> None:
    """In place of wrong receivers, those of the operator's configuration would get the samples."""
    found = judge(gpu_monitor({"agent": {**AGENT, "remoteWrite": [BAD]}}))
    assert applied_spec(found) == {"agent": {"enabled": False}}


def test_a_wrong_receiver_of_the_operators_configuration_does_not_cost_the_exporters() -> None:
    def render_with_default(_: Json, monitor: GpuMonitor) -> Rendered:
        context = context_of(monitor, default_remote_write=(BAD,), check_agent=check_agent)
        return render_objects(monitor, context)

    resource = gpu_monitor({"agent": AGENT})
    found = judge_spec(resource, parse_monitor(resource), None, render_with_default)
    assert paths(found) == ["operator.defaultRemoteWrite[0].url"]
    assert kinds(found) == {"DaemonSet"}


@pytest.mark.parametrize("spec", [{"imagePullSecrets": 4}, {"networkPolicy": {"enabled": 4}}, {"other": 4}])
def test_what_concerns_both_sections_refuses_both(spec: Json) -> None:
    found = judge(gpu_monitor({**spec, "agent": {"args": ["--unknown"]}}))
    assert found.spec is None
    assert paths(found) == [
        f"spec.{next(iter(spec))}{'.enabled' * ('networkPolicy' in spec)}",
        "spec.agent.args",
    ]


def test_a_name_that_objects_cannot_have_refuses_the_resource() -> None:
    assert judge(gpu_monitor({"exporter": {"port": 0}}, name="a.b")).spec is None


def test_every_problem_is_named_at_once() -> None:
    exporter = {
        "port": 0,
        "args": ["--unknown"],
        "config": {"intervall": "5s"},
        "env": [{"name": "GPULEDGER_LOG_LEVEL", "value": "loud"}],
        "resources": {"limits": {"nvidia.com/gpu": 1}},
    }
    agent = {
        "args": ["--unknown"],
        "externalLabels": {"a-b": "c", "d-e": "f"},
        "remoteWrite": [BAD, GOOD, {**GOOD, "writeRelabelConfigs": [{"regex": "("}]}],
        "targets": [target(), 4, target(targetName="other", relabelConfigs=[{"action": "retain"}])],
    }
    found = judge(gpu_monitor({"exporter": exporter, "agent": agent}))
    assert sorted(paths(found)) == [
        "spec.agent.args",
        "spec.agent.externalLabels.a-b",
        "spec.agent.externalLabels.d-e",
        "spec.agent.remoteWrite[0].url",
        "spec.agent.remoteWrite[2]",
        "spec.agent.targets[1]",
        "spec.agent.targets[2].relabelConfigs[0].action",
        "spec.exporter.args",
        "spec.exporter.config",
        "spec.exporter.env[0].value",
        "spec.exporter.port",
        "spec.exporter.resources.limits.nvidia.com/gpu",
    ]


def test_a_wrong_mode_is_no_reason_for_problems_of_the_usual_one() -> None:
    exporter = {"mode": "collectt", "args": ["--every=5s"]}
    found = judge(gpu_monitor({"exporter": exporter, "agent": AGENT}))
    assert paths(found) == ["spec.exporter.mode"]


def test_a_wrong_agent_of_a_whatap_agent_does_not_cost_the_exporters() -> None:
    scraping = {"enabled": True, "externalLabels": {"a-b": "c"}}
    found = judge(whatap(openAgent=scraping, k8sAgent={"gpuMonitoring": {"enabled": True}}))
    assert paths(found) == ["spec.features.openAgent.externalLabels.a-b"]
    assert kinds(found) == {"DaemonSet"}


def test_wrong_exporters_of_a_whatap_agent_do_not_cost_the_targets() -> None:
    gpus = {"enabled": True, "service": {"port": 0}}
    found = judge(whatap(openAgent={"enabled": True, **AGENT}, k8sAgent={"gpuMonitoring": gpus}))
    assert paths(found) == ["spec.features.k8sAgent.gpuMonitoring.service.port"]
    assert kinds(found) == {"StatefulSet"}


@pytest.mark.parametrize(
    ("path", "left"),
    [("spec.features.k8sAgent.gpuMonitoring", "StatefulSet"), ("spec.features.openAgent", "DaemonSet")],
)
def test_a_section_of_a_whatap_agent_that_the_api_server_refuses_does_not_cost_the_other(
    path: str, left: str
) -> None:
    gpus = {"gpuMonitoring": {"enabled": True}}
    resource = whatap(openAgent={"enabled": True, **AGENT}, k8sAgent=gpus)
    refused = [Problem(path, "is refused")]
    found = judge_spec(resource, parse_monitor(resource), None, render, refused)
    assert found.problems == tuple(refused)
    assert kinds(found) == {left}
