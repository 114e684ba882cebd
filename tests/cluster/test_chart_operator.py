"""The operator in the chart, on a real API server: whose definitions it touches, and how it goes."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import helm_python
import pytest
import yaml

from cluster.control_plane import ControlPlane, Json
from cluster.helm import CHART, Helm, rendered
from gpuledger.operator.crd_definitions import gpu_monitor_crd, whatap_agent_crd
from gpuledger.operator.reconcile import FINALIZER
from running import wait_until

IN = "ruled"
VALUES: Json = {"operator": {"enabled": True, "uninstall": {"enabled": False}}}
DEFINITIONS = "apis/apiextensions.k8s.io/v1/customresourcedefinitions"
AGENTS = "apis/monitoring.whatap.com/v2alpha1/whatapagents"
MONITORS = "apis/gpuledger.dev/v1alpha1/gpumonitors"
GPU_MONITORS = gpu_monitor_crd()["metadata"]["name"]
WHATAP_AGENTS = whatap_agent_crd()["metadata"]["name"]
HOOKS = {
    "ServiceAccount": f"api/v1/namespaces/{IN}/serviceaccounts",
    "ClusterRole": "apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
}


def definitions(plane: ControlPlane) -> set[str]:
    found = plane.admin.call("GET", DEFINITIONS)["items"]
    return {one["metadata"]["name"] for one in found} & {GPU_MONITORS, WHATAP_AGENTS}


def forget(plane: ControlPlane) -> None:
    for name in (GPU_MONITORS, WHATAP_AGENTS):
        plane.admin.ask("DELETE", f"{DEFINITIONS}/{name}")
    wait_until(lambda: not definitions(plane), "the definitions to be gone")


@pytest.fixture
def helm(control_plane: ControlPlane) -> Iterator[Helm]:
    made = Helm(control_plane, "ruled", IN)
    try:
        yield made
    finally:
        made.uninstall()
        made.close()
        forget(control_plane)


def test_another_operators_definition_is_not_overwritten(helm: Helm, control_plane: ControlPlane) -> None:
    theirs = whatap_agent_crd()
    theirs["metadata"]["labels"] = {"app": "whatap-operator"}
    before = control_plane.admin.call("POST", DEFINITIONS, theirs)["spec"]
    with pytest.raises(helm_python.HelmError, match="is another operator's, and is not overwritten"):
        helm.install({**VALUES, "whatapCompat": {"enabled": True}}, wait=False)
    after = control_plane.admin.call("GET", f"{DEFINITIONS}/{WHATAP_AGENTS}")
    assert (after["metadata"]["labels"], after["spec"]) == ({"app": "whatap-operator"}, before)
    assert definitions(control_plane) == {WHATAP_AGENTS}


def test_a_second_operator_of_a_cluster_is_refused_and_told_how_to_take_over(
    helm: Helm, control_plane: ControlPlane
) -> None:
    helm.install(VALUES, wait=False)
    other = Helm(control_plane, "second", "elsewhere")
    try:
        with pytest.raises(helm_python.HelmError, match="of release ruled in namespace ruled") as caught:
            other.install(VALUES, wait=False)
        helm.uninstall()
        # The definition has outlasted its release. What the refusal tells to do, done:
        assert definitions(control_plane) == {GPU_MONITORS}
        for command in str(caught.value).partition("take the CRD over: ")[2].split(" && "):
            control_plane.kubectl(*command.split()[1:])
        other.install(VALUES, wait=False)
    finally:
        other.uninstall()
        other.close()


def test_an_upgrade_brings_the_definition_up_to_date(
    helm: Helm, control_plane: ControlPlane, tmp_path: Path
) -> None:
    def columns() -> list[str]:
        found = control_plane.admin.call("GET", f"{DEFINITIONS}/{GPU_MONITORS}")["spec"]["versions"][0]
        return [one["name"] for one in found["additionalPrinterColumns"]]

    older = shutil.copytree(CHART, tmp_path / "chart")
    file = older / f"files/crds/{GPU_MONITORS}.yaml"
    definition = yaml.safe_load(file.read_text(encoding="utf-8"))
    del definition["spec"]["versions"][0]["additionalPrinterColumns"][1:]
    file.write_text(yaml.safe_dump(definition), encoding="utf-8")
    helm.install(VALUES, wait=False, chart=older)
    assert columns() == ["GPU Nodes"]
    helm.upgrade(VALUES, wait=False)
    assert columns()[:2] == ["GPU Nodes", "Ready"]


def test_a_whatap_agent_that_nobody_serves_any_more_is_warned_of(
    helm: Helm, control_plane: ControlPlane
) -> None:
    def notes(release: Json) -> str:
        return str(release.get("notes") or release["info"]["notes"])

    compat = {"whatapCompat": {"enabled": True, "createNamespace": False, "namespace": IN}}
    served = helm.install({**VALUES, **compat}, wait=False)
    wait_until(lambda: control_plane.admin.ask("GET", AGENTS).is_success, "the definition to be served")
    body = {
        "apiVersion": "monitoring.whatap.com/v2alpha1",
        "kind": "WhatapAgent",
        "metadata": {"name": "whatap", "finalizers": ["gpuledger.dev/operator"]},
        "spec": {},
    }
    control_plane.admin.call("POST", AGENTS, body)
    try:
        left = helm.upgrade(VALUES, wait=False)
    finally:
        control_plane.admin.call("PATCH", f"{AGENTS}/whatap", {"metadata": {"finalizers": None}})
        control_plane.admin.call("DELETE", f"{AGENTS}/whatap")
    gone = helm.upgrade(VALUES, wait=False)
    assert "nobody serves the WhatapAgent whatap" in notes(left)
    assert all("nobody serves" not in notes(one) for one in (served, gone))


def test_before_the_release_goes_resources_and_definitions_do(
    helm: Helm, control_plane: ControlPlane
) -> None:
    """By the Job's own program, with the rights of its account: here there is no operator to take leave."""
    helm.install(VALUES, wait=False)
    body = {
        "apiVersion": "gpuledger.dev/v1alpha1",
        "kind": "GpuMonitor",
        "metadata": {"name": "gpus", "finalizers": [FINALIZER]},
        "spec": {},
    }
    wait_until(lambda: control_plane.admin.ask("GET", MONITORS).is_success, "the definition to be served")
    control_plane.admin.call("POST", MONITORS, body)
    hooks = [
        one
        for one in rendered({"operator": {"enabled": True}}, "ruled", IN)
        if one["metadata"]["name"].endswith("-uninstall")
    ]
    made = []
    try:
        for one in hooks:
            if one["kind"] in HOOKS:
                control_plane.admin.call("POST", HOOKS[one["kind"]], one)
                made.append(f"{HOOKS[one['kind']]}/{one['metadata']['name']}")
        run_uninstall(control_plane, control_plane.token_of(IN, "ruled-gpuledger-operator-uninstall"))
    finally:
        for path in made:
            control_plane.admin.call("DELETE", path)
    wait_until(lambda: not definitions(control_plane), "the definition to be gone")


def run_uninstall(plane: ControlPlane, token: str) -> None:
    """Apart from its last lines, which look for the account's files where a kubelet puts them."""
    script = (
        (CHART / "files/uninstall.py").read_text(encoding="utf-8").partition('if __name__ == "__main__"')[0]
    )
    context = f"ssl.create_default_context(cafile={str(plane.ca_file)!r})"
    script += f"uninstall(Api({plane.url!r}, {token!r}, {context}), 0.0, 0.1)\n"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "letting it go" in done.stdout
