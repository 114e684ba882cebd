"""Pod Security and OpenShift's constraints admit every rendered pod: of the chart, and of its operator."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest

from chart import MATRIX, Manifest, Values, files, pod_specs
from pod_admission import RESTRICTED_V2, baseline_problems, restricted_problems, scc_problems
from unit.operator.support import gpu_monitor, rendered_objects, whatap
from yaml_files import load_documents

SCC_ROLE = "gpuledger-scc"
# Pods that need neither the node nor its GPUs, by the name of their container.
UNPRIVILEGED = frozenset({"operator", "uninstall", "agent", "ask"})
RESOURCES: dict[str, Manifest] = {
    "GpuMonitor": gpu_monitor({"networkPolicy": {"enabled": True}}),
    "GpuMonitor with Prometheus": gpu_monitor({"agent": {"engine": "prometheus", "persistence": {}}}),
    "GpuMonitor that collects": gpu_monitor({"exporter": {"mode": "collect"}}),
    "GpuMonitor with Jobs": gpu_monitor({"exporter": {"mode": "cronjob", "cronJob": {"nodeCount": 2}}}),
    "WhatapAgent": whatap(),
}


def on_openshift(values: Values) -> Values:
    return {**values, "openshift": {"enabled": True}}


OPENSHIFT = {name: on_openshift(values) for name, values in MATRIX.items()}
OPENSHIFT["everything"] = on_openshift(
    {
        "mode": "daemonset",
        "accounting": {"enable": True},
        "operator": {"enabled": True},
        "agent": {"enabled": True, "config": {"remote_write": [{"url": "http://store/write"}]}},
    }
)
OPENSHIFT |= {
    "privileged": on_openshift({"securityContext": {"privileged": True}}),
    "another capability": on_openshift({"securityContext": {"capabilities": {"add": ["SYS_RAWIO"]}}}),
    "a writable root": on_openshift({"securityContext": {"readOnlyRootFilesystem": False}}),
    "escalation": on_openshift({"securityContext": {"allowPrivilegeEscalation": True}}),
    "no seccomp": on_openshift({"podSecurityContext": {"seccompProfile": {"type": "Unconfined"}}}),
    "another volume": on_openshift(
        {"extraVolumes": [{"name": "a", "persistentVolumeClaim": {"claimName": "a"}}]}
    ),
}


@cache
def chart_objects(name: str, openshift: bool) -> list[Manifest]:
    """The objects of a set of values, parsed once; dashboards, rules and CRDs have no pods and take long."""
    values = OPENSHIFT[name] if openshift else MATRIX[name]
    texts = files({**values, "dashboards": {"enabled": False}, "rules": {"enabled": False}})
    return [
        one
        for path, text in texts.items()
        if path.endswith(".yaml") and "crds" not in path
        for one in load_documents(text)
    ]


@cache
def resource_objects(name: str, scc_role: str) -> tuple[Manifest, ...]:
    return tuple(rendered_objects(RESOURCES[name], scc_role=scc_role).values())


def constraints_of(spec: Manifest, objects: list[Manifest]) -> Iterator[Manifest]:
    """The constraints that a pod may use: everyone's, and those that its ServiceAccount is bound to."""
    yield dict(RESTRICTED_V2)
    account = spec.get("serviceAccountName", "default")
    bound = any(
        one["kind"] == "RoleBinding"
        and one["roleRef"]["name"] == SCC_ROLE
        and any(subject["name"] == account for subject in one["subjects"])
        for one in objects
    )
    yield from (one for one in objects if bound and one["kind"] == "SecurityContextConstraints")


def refusals(objects: list[Manifest]) -> dict[str, list[list[str]]]:
    """What each constraint has against a pod that none of them admits, by the name of its first container."""
    found = {}
    for spec in pod_specs(objects):
        problems = [[*scc_problems(scc, spec)] for scc in constraints_of(spec, objects)]
        if all(problems):
            found[spec["containers"][0]["name"]] = problems
    return found


@pytest.mark.parametrize("name", OPENSHIFT)
def test_openshift_admits_every_pod_of_the_chart(name: str) -> None:
    objects = chart_objects(name, True)
    assert refusals(objects) == {}
    assert any(one["kind"] == "SecurityContextConstraints" for one in objects) or not any(
        spec.get("hostPID") for spec in pod_specs(objects)
    )


@pytest.mark.parametrize("name", RESOURCES)
def test_openshift_admits_every_pod_of_the_operator(name: str) -> None:
    (scc,) = [one for one in chart_objects("operator", True) if one["kind"] == "SecurityContextConstraints"]
    assert refusals([*resource_objects(name, SCC_ROLE), scc]) == {}


@pytest.mark.parametrize("name", ["GpuMonitor", "GpuMonitor with Prometheus"])
def test_outside_of_openshift_ids_are_fixed_and_restricted_v2_refuses_them(name: str) -> None:
    (agent,) = [
        spec
        for one in resource_objects(name, "")
        if one["kind"] == "StatefulSet"
        for spec in pod_specs([one])
    ]
    assert agent["securityContext"]["runAsUser"] == 65534
    assert "fsGroup 65534" in scc_problems(RESTRICTED_V2, agent)


def all_objects() -> Iterator[Manifest]:
    for name in OPENSHIFT:
        yield from chart_objects(name, True)
    for name in MATRIX:
        yield from chart_objects(name, False)
    for name in RESOURCES:
        for role in ("", SCC_ROLE):
            yield from resource_objects(name, role)


def test_pod_security_restricted_admits_all_pods_that_do_not_read_the_node() -> None:
    checked = set()
    for spec in pod_specs([*all_objects()]):
        name = spec["containers"][0]["name"]
        if name in UNPRIVILEGED:
            checked.add(name)
            assert [*restricted_problems(spec)] == []
        else:
            # These need a namespace with the level privileged.
            assert "hostPID" in baseline_problems(spec)
    assert checked == UNPRIVILEGED


ROOT_USER = {"exporter: runAsNonRoot", "exporter: runAsUser 0"}
PTRACE = {"exporter: capability SYS_PTRACE", "exporter: added capabilities"}
ACCOUNTING = {
    f"enable-accounting: {problem}"
    for problem in ("capability SYS_ADMIN", "added capabilities", "runAsNonRoot", "runAsUser 0")
}
PRIVILEGED = {
    f"exporter: {problem}"
    for problem in ("privileged", "allowPrivilegeEscalation", "capabilities are not dropped")
}
USUAL = {"hostPID", "hostPath volumes"} | ROOT_USER | PTRACE


@pytest.mark.parametrize(
    ("exporter", "exceptions"),
    [
        ({}, USUAL),
        ({"mode": "collect"}, USUAL),
        ({"mode": "cronjob", "cronJob": {"nodeCount": 1}}, USUAL),
        ({"hostPID": False}, USUAL - {"hostPID"}),
        ({"capabilities": []}, USUAL - PTRACE),
        ({"sysAdmin": True}, USUAL | {"exporter: capability SYS_ADMIN"}),
        ({"accounting": True}, USUAL | ACCOUNTING),
        ({"gpuAccess": {"mode": "host"}}, USUAL - PTRACE | PRIVILEGED),
    ],
)
def test_exporters_need_exactly_the_documented_exceptions(exporter: Values, exceptions: set[str]) -> None:
    """docs/security.md lists them."""
    objects = rendered_objects(gpu_monitor({"exporter": exporter})).values()
    (spec,) = pod_specs([one for one in objects if one["kind"] in ("DaemonSet", "CronJob")])
    assert {*restricted_problems(spec)} == exceptions


def test_the_namespaces_of_the_chart_have_the_level_that_exporters_need() -> None:
    for one in all_objects():
        if one["kind"] == "Namespace":
            assert one["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "privileged"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"hostNetwork": True}, "hostNetwork"),
        ({"volumes": [{"name": "x", "hostPath": {"path": "/"}}]}, "hostPath volumes"),
        ({"securityContext": {"runAsUser": 65534}}, "c: runAsUser 65534"),
        ({"securityContext": {"fsGroup": 65534}}, "fsGroup 65534"),
        ({"securityContext": {"seLinuxOptions": {"type": "spc_t"}}}, "c: seLinuxOptions"),
        ({"securityContext": {"seccompProfile": {"type": "Unconfined"}}}, "c: seccompProfile Unconfined"),
    ],
)
def test_the_rules_of_openshift_refuse(change: Manifest, problem: str) -> None:
    spec = {"containers": [{"name": "c"}]}
    assert [*scc_problems(RESTRICTED_V2, spec)] == []
    assert problem in [*scc_problems(RESTRICTED_V2, {**spec, **change})]


@pytest.mark.parametrize(
    ("context", "problem"),
    [
        ({"privileged": True}, "c: privileged"),
        ({"capabilities": {"drop": ["ALL"], "add": ["SYS_PTRACE"]}}, "c: capability SYS_PTRACE"),
        ({"allowPrivilegeEscalation": True}, "c: allowPrivilegeEscalation"),
        ({"runAsUser": 0}, "c: runAsUser 0"),
        ({"runAsNonRoot": False}, "c: runAsNonRoot"),
        ({"capabilities": {}}, "c: capabilities are not dropped"),
        ({"seccompProfile": {"type": "Unconfined"}}, "c: seccompProfile"),
    ],
)
def test_the_rules_of_pod_security_refuse(context: Manifest, problem: str) -> None:
    good = {
        "allowPrivilegeEscalation": False,
        "runAsNonRoot": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert [*restricted_problems({"containers": [{"name": "c", "securityContext": good}]})] == []
    changed = {"containers": [{"name": "c", "securityContext": {**good, **context}}]}
    assert problem in [*restricted_problems(changed)]
