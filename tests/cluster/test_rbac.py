"""Permissions of deploy/rbac.yaml and deploy/agent-rbac.yaml on a real API server: exactly those needed."""

from __future__ import annotations

import pytest

from cluster.control_plane import AGENT_ACCOUNT, Client, ControlPlane, is_allowed

ALLOWED = {
    ("", "pods", "list"),
    ("", "pods", "watch"),
    ("resource.k8s.io", "resourceslices", "list"),
    ("resource.k8s.io", "resourceclaims", "get"),
}
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


def test_the_account_has_exactly_the_permissions_that_gpuledger_uses(control_plane: ControlPlane) -> None:
    checked = {(group, resource, verb) for group, resource in RESOURCES for verb in VERBS}
    assert {request for request in checked if is_allowed(control_plane, *request)} == ALLOWED


def test_the_account_lists_and_watches_the_pods_of_a_node(account: Client) -> None:
    selected = {"fieldSelector": "spec.nodeName=nobody", "resourceVersion": "0"}
    listed = account.call("GET", "api/v1/pods", **selected)
    assert listed["items"] == []
    watched = account.request(
        "GET", "api/v1/pods", watch="1", timeoutSeconds="1", fieldSelector="spec.nodeName=nobody"
    )
    assert (watched.status_code, watched.text) == (200, "")


@pytest.mark.parametrize("path", ["api/v1/secrets", "api/v1/nodes", "api/v1/namespaces/gpuledger/pods/any"])
def test_the_account_is_denied_everything_else(account: Client, path: str) -> None:
    assert account.request("GET", path).status_code == 403


def test_the_agents_account_may_only_read_the_objects_of_targets(
    control_plane: ControlPlane,
) -> None:
    more = [
        ("", "services"),
        ("", "endpoints"),
        ("discovery.k8s.io", "endpointslices"),
        ("apps", "statefulsets"),
    ]
    checked = {(group, resource, verb) for group, resource in (*RESOURCES, *more) for verb in VERBS}
    allowed = {request for request in checked if is_allowed(control_plane, *request, account=AGENT_ACCOUNT)}
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
def test_the_agents_account_may_only_read_its_own_stateful_set(
    namespace: str, name: str, allowed: bool, control_plane: ControlPlane
) -> None:
    for verb in READ:
        found = is_allowed(
            control_plane, "apps", "statefulsets", verb, account=AGENT_ACCOUNT, namespace=namespace, name=name
        )
        assert found is allowed


def test_the_agents_account_may_only_read_secrets_of_its_namespace(control_plane: ControlPlane) -> None:
    def allowed(namespace: str) -> tuple[str, ...]:
        scope = {"account": AGENT_ACCOUNT, "namespace": namespace}
        return tuple(verb for verb in VERBS if is_allowed(control_plane, "", "secrets", verb, **scope))

    assert allowed("gpuledger") == READ
    assert not allowed("team-a")
