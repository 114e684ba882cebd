"""Events of ended pods: off unless they are enabled, with a role that can do nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from chart import MATRIX, main_container, of_kind, render

FLAG = "--kubernetes-events=true"


def test_they_are_off_by_default() -> None:
    assert FLAG not in main_container({})["args"]
    assert [role["metadata"]["name"] for role in of_kind("ClusterRole")] == ["gpuledger"]


def test_enabled_they_have_a_role_that_only_creates_events() -> None:
    assert FLAG in main_container(MATRIX["events"])["args"]
    roles = {role["metadata"]["name"]: role["rules"] for role in of_kind("ClusterRole", MATRIX["events"])}
    assert roles["gpuledger-events"] == [
        {"apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create"]}
    ]
    bindings = {one["metadata"]["name"]: one for one in of_kind("ClusterRoleBinding", MATRIX["events"])}
    assert bindings["gpuledger-events"]["roleRef"]["name"] == "gpuledger-events"
    assert bindings["gpuledger-events"]["subjects"] == bindings["gpuledger"]["subjects"]


def test_without_rbac_create_the_role_is_that_of_the_administrator() -> None:
    assert of_kind("ClusterRole", {**MATRIX["events"], "rbac": {"create": False}}) == []


REJECTED: dict[str, tuple[dict[str, Any], str]] = {
    "a mode that writes files": ({"mode": "collect"}, "mode collect posts no Events"),
    "no ledger": ({"state": {"dir": ""}}, "set state.dir"),
    "names from files": (
        {"kubernetes": {"events": True, "names": "logs"}},
        "set kubernetes.names to auto or api",
    ),
}


@pytest.mark.parametrize(("values", "message"), REJECTED.values(), ids=REJECTED)
def test_where_they_cannot_work_the_chart_says_so(values: dict[str, Any], message: str) -> None:
    from helm_python import HelmError

    with pytest.raises(HelmError, match=message):
        render({"kubernetes": {"events": True}, **values})
