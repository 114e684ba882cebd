"""deploy/rbac.yaml against a real API server: enough for what gpuledger asks, and for nothing else."""

from __future__ import annotations

import pytest

from cluster.control_plane import Client, ControlPlane

ACCOUNT = "system:serviceaccount:gpuledger:gpuledger"
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


def may(plane: ControlPlane, group: str, resource: str, verb: str) -> bool:
    plural, _, part = resource.partition("/")
    wanted = {"group": group, "resource": plural, "subresource": part, "verb": verb}
    review = {"spec": {"user": ACCOUNT, "resourceAttributes": wanted}}
    answer = plane.admin.call("POST", "apis/authorization.k8s.io/v1/subjectaccessreviews", review)
    return bool(answer["status"]["allowed"])


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
