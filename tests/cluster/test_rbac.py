"""deploy/rbac.yaml against a real API server: enough for what gpuledger asks, and for nothing else."""

from __future__ import annotations

import pytest

from cluster.control_plane import AGENT_ACCOUNT, Client, ControlPlane, may

ALLOWED = {("", "pods", "list"), ("", "pods", "watch"), ("resource.k8s.io", "resourceslices", "list")}
VERBS = ("get", "list", "watch", "create", "update", "patch", "delete")
RESOURCES = [
    ("", "pods"),
    ("", "pods/log"),
    ("", "pods/exec"),
    ("", "nodes"),
    ("", "nodes/proxy"),
    ("", "secrets"),
    ("", "configmaps"),
    ("", "namespaces"),
    ("apps", "replicasets"),
    ("resource.k8s.io", "resourceslices"),
    ("resource.k8s.io", "resourceclaims"),
]


READ = ("get", "list", "watch")
FOUND = ("pods", "services", "endpoints", "namespaces", "nodes")


def test_the_account_may_do_exactly_what_gpuledger_asks(control_plane: ControlPlane) -> None:
    asked = {(group, resource, verb) for group, resource in RESOURCES for verb in VERBS}
    assert {one for one in asked if may(control_plane, *one)} == ALLOWED


def test_the_account_lists_and_watches_the_pods_of_a_node(account: Client) -> None:
    selected = {"fieldSelector": "spec.nodeName=nobody", "resourceVersion": "0"}
    listed = account.call("GET", "api/v1/pods", **selected)
    assert listed["items"] == []
    watched = account.ask(
        "GET", "api/v1/pods", watch="1", timeoutSeconds="1", fieldSelector="spec.nodeName=nobody"
    )
    assert (watched.status_code, watched.text) == (200, "")


@pytest.mark.parametrize("path", ["api/v1/secrets", "api/v1/nodes", "api/v1/namespaces/gpuledger/pods/any"])
def test_the_account_is_refused_everything_else(account: Client, path: str) -> None:
    assert account.ask("GET", path).status_code == 403


def test_the_agents_account_reads_what_targets_are_made_of_and_nothing_else(
    control_plane: ControlPlane,
) -> None:
    more = [
        ("", "services"),
        ("", "endpoints"),
        ("discovery.k8s.io", "endpointslices"),
        ("apps", "statefulsets"),
    ]
    asked = {(group, resource, verb) for group, resource in (*RESOURCES, *more) for verb in VERBS}
    allowed = {one for one in asked if may(control_plane, *one, account=AGENT_ACCOUNT)}
    found = [("", resource) for resource in FOUND]
    assert allowed == {
        (group, resource, verb)
        for group, resource in (*found, ("discovery.k8s.io", "endpointslices"))
        for verb in READ
    }


@pytest.mark.parametrize(
    ("namespace", "name", "allowed"),
    [
        ("gpuledger", "gpuledger-agent", True),
        ("gpuledger", "other", False),
        ("team-a", "gpuledger-agent", False),
    ],
)
def test_the_agents_account_reads_its_own_stateful_set_alone(
    namespace: str, name: str, allowed: bool, control_plane: ControlPlane
) -> None:
    for verb in READ:
        found = may(
            control_plane, "apps", "statefulsets", verb, account=AGENT_ACCOUNT, namespace=namespace, name=name
        )
        assert found is allowed


def test_the_agents_account_reads_secrets_of_its_own_namespace_alone(control_plane: ControlPlane) -> None:
    def allowed(namespace: str) -> tuple[str, ...]:
        asked = {"account": AGENT_ACCOUNT, "namespace": namespace}
        return tuple(verb for verb in VERBS if may(control_plane, "", "secrets", verb, **asked))

    assert allowed("gpuledger") == READ
    assert not allowed("team-a")
