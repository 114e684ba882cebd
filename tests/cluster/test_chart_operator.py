"""The chart's operator on a real API server: ownership of CRDs, upgrade and uninstall."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from cluster.control_plane import ControlPlane, Json
from cluster.helm import CHART, Helm, rendered
from gpuledger.operator.crd_definitions import gpu_monitor_crd, whatap_agent_crd
from gpuledger.operator.reconcile import FINALIZER
from running import wait_until

RELEASE_NAMESPACE = "ruled"
VALUES: Json = {"operator": {"enabled": True, "uninstall": {"enabled": False}}}
CRDS = "apis/apiextensions.k8s.io/v1/customresourcedefinitions"
AGENTS = "apis/monitoring.whatap.com/v2alpha1/whatapagents"
MONITORS = "apis/gpuledger.dev/v1alpha1/gpumonitors"
GPU_MONITORS = gpu_monitor_crd()["metadata"]["name"]
WHATAP_AGENTS = whatap_agent_crd()["metadata"]["name"]
HOOKS = {
    "ServiceAccount": f"api/v1/namespaces/{RELEASE_NAMESPACE}/serviceaccounts",
    "ClusterRole": "apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
}


def installed_crds(plane: ControlPlane) -> set[str]:
    found = plane.admin.call("GET", CRDS)["items"]
    return {one["metadata"]["name"] for one in found} & {GPU_MONITORS, WHATAP_AGENTS}


def delete_crds(plane: ControlPlane) -> None:
    for name in (GPU_MONITORS, WHATAP_AGENTS):
        plane.admin.request("DELETE", f"{CRDS}/{name}")
    wait_until(lambda: not installed_crds(plane), "the CRDs to be gone")


@pytest.fixture
def helm(control_plane: ControlPlane) -> Iterator[Helm]:
    made = Helm(control_plane, "ruled", RELEASE_NAMESPACE)
    try:
        yield made
    finally:
        made.uninstall()
        made.close()
        delete_crds(control_plane)


def test_a_crd_of_another_operator_is_not_overwritten(helm: Helm, control_plane: ControlPlane) -> None:
    import helm_python

    theirs = whatap_agent_crd()
    theirs["metadata"]["labels"] = {"app": "whatap-operator"}
    before = control_plane.admin.call("POST", CRDS, theirs)["spec"]
    with pytest.raises(helm_python.HelmError, match="belongs to another operator and is not overwritten"):
        helm.install({**VALUES, "whatapCompat": {"enabled": True}}, wait=False)
    after = control_plane.admin.call("GET", f"{CRDS}/{WHATAP_AGENTS}")
    assert (after["metadata"]["labels"], after["spec"]) == ({"app": "whatap-operator"}, before)
    assert installed_crds(control_plane) == {WHATAP_AGENTS}


def test_a_second_operator_is_rejected_with_the_commands_to_adopt_the_crd(
    helm: Helm, control_plane: ControlPlane
) -> None:
    import helm_python

    helm.install(VALUES, wait=False)
    other = Helm(control_plane, "second", "elsewhere")
    try:
        with pytest.raises(
            helm_python.HelmError, match=r"already exists \(release ruled in namespace ruled\)"
        ) as caught:
            other.install(VALUES, wait=False)
        helm.uninstall()
        # The CRD remains after the release. Run the commands of the error message:
        assert installed_crds(control_plane) == {GPU_MONITORS}
        for command in str(caught.value).partition("adopt the CRD: ")[2].split(" && "):
            control_plane.kubectl(*command.split()[1:])
        other.install(VALUES, wait=False)
    finally:
        other.uninstall()
        other.close()


def test_an_upgrade_updates_the_crd(helm: Helm, control_plane: ControlPlane, tmp_path: Path) -> None:
    def columns() -> list[str]:
        found = control_plane.admin.call("GET", f"{CRDS}/{GPU_MONITORS}")["spec"]["versions"][0]
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


def test_a_whatap_agent_without_an_operator_causes_a_warning(helm: Helm, control_plane: ControlPlane) -> None:
    def notes(release: Json) -> str:
        return str(release.get("notes") or release["info"]["notes"])

    compat = {"whatapCompat": {"enabled": True, "createNamespace": False, "namespace": RELEASE_NAMESPACE}}
    served = helm.install({**VALUES, **compat}, wait=False)
    wait_until(lambda: control_plane.admin.request("GET", AGENTS).is_success, "the CRD to be served")
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
    assert "no operator handles the WhatapAgent whatap" in notes(left)
    assert all("no operator handles" not in notes(release) for release in (served, gone))


def test_the_uninstall_job_deletes_resources_and_then_crds(helm: Helm, control_plane: ControlPlane) -> None:
    """Runs the Job's script with its account's permissions. No operator runs, so it removes finalizers."""
    helm.install(VALUES, wait=False)
    body = {
        "apiVersion": "gpuledger.dev/v1alpha1",
        "kind": "GpuMonitor",
        "metadata": {"name": "gpus", "finalizers": [FINALIZER]},
        "spec": {},
    }
    wait_until(lambda: control_plane.admin.request("GET", MONITORS).is_success, "the CRD to be served")
    control_plane.admin.call("POST", MONITORS, body)
    hooks = [
        one
        for one in rendered({"operator": {"enabled": True}}, "ruled", RELEASE_NAMESPACE)
        if one["metadata"]["name"].endswith("-uninstall")
    ]
    made = []
    try:
        for one in hooks:
            if one["kind"] in HOOKS:
                control_plane.admin.call("POST", HOOKS[one["kind"]], one)
                made.append(f"{HOOKS[one['kind']]}/{one['metadata']['name']}")
        run_uninstall(
            control_plane, control_plane.create_token(RELEASE_NAMESPACE, "ruled-gpuledger-operator-uninstall")
        )
    finally:
        for path in made:
            control_plane.admin.call("DELETE", path)
    wait_until(lambda: not installed_crds(control_plane), "the CRDs to be gone")


def run_uninstall(plane: ControlPlane, token: str) -> None:
    """Run the script without its last lines, which read the account's files that a kubelet mounts."""
    script = (
        (CHART / "files/uninstall.py").read_text(encoding="utf-8").partition('if __name__ == "__main__"')[0]
    )
    context = f"ssl.create_default_context(cafile={str(plane.ca_file)!r})"
    script += f"uninstall(ApiClient({plane.url!r}, {token!r}, {context}), 0.0, 0.1)\n"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "removing its finalizer" in done.stdout
