"""The plain manifests with kubectl, and deploy/deploy.sh, on the real API server with a fake GPU node."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.control_plane import ControlPlane, Json
from cluster.fake_nodes import FakeNodes
from running import wait_until

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
EXPORTER = "gpu-monitoring"
COLLECTOR = "gpu-operator"


@pytest.fixture(autouse=True)
def gpu_node(controllers: None, control_plane: ControlPlane) -> Iterator[str]:
    nodes = FakeNodes(control_plane.admin)
    nodes.add("gpu-a")
    yield "gpu-a"
    nodes.remove()


def pods(plane: ControlPlane, namespace: str, **labels: str) -> list[Json]:
    selector = ",".join(f"{key}={value}" for key, value in labels.items())
    path = f"api/v1/namespaces/{namespace}/pods"
    return list(plane.admin.call("GET", path, labelSelector=selector)["items"])


def delete_pods(plane: ControlPlane, namespace: str) -> None:
    """Delete the pods of a namespace, because no kubelet does."""
    for one in pods(plane, namespace):
        path = f"api/v1/namespaces/{namespace}/pods/{one['metadata']['name']}"
        plane.admin.request("DELETE", path, gracePeriodSeconds="0")


@pytest.mark.parametrize(
    ("file", "label"),
    [
        ("daemonset.yaml", "my-gpu-exporter"),
        ("collect-daemonset.yaml", "gpu-process-metrics-collector"),
    ],
)
def test_a_manifest_applies_in_one_run_and_deletes_completely(
    file: str, label: str, control_plane: ControlPlane, gpu_node: str
) -> None:
    """The namespace comes first, so that one `kubectl apply` succeeds; `kubectl delete` leaves nothing."""
    control_plane.kubectl("apply", f"--filename={ROOT / 'kubernetes' / file}")

    def bound() -> list[str]:
        return [one["spec"].get("nodeName", "") for one in pods(control_plane, EXPORTER, app=label)]

    wait_until(lambda: bound() == [gpu_node], "a pod on the GPU node")
    control_plane.kubectl("delete", f"--filename={ROOT / 'kubernetes' / file}", "--wait=false")

    def gone() -> bool:
        delete_pods(control_plane, EXPORTER)
        return control_plane.admin.request("GET", f"api/v1/namespaces/{EXPORTER}").status_code == 404

    wait_until(gone, "the namespace to be gone")
    role = f"apis/rbac.authorization.k8s.io/v1/clusterroles/{label}"
    assert control_plane.admin.request("GET", role).status_code == 404


def test_the_cronjob_manifest_runs_on_kubernetes_1_20_as_documented(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    file = tmp_path / "cronjob.yaml"
    text = (ROOT / "kubernetes/cronjob.yaml").read_text()
    file.write_text(text.replace("apiVersion: batch/v1\n", "apiVersion: batch/v1beta1\n"))
    control_plane.kubectl("apply", f"--filename={file}")
    path = f"apis/batch/v1beta1/namespaces/{EXPORTER}/cronjobs"
    (made,) = control_plane.admin.call("GET", path)["items"]
    assert made["metadata"]["name"] == "gpu-process-metrics-collector"
    control_plane.kubectl("delete", f"--filename={file}", "--wait=false")

    def gone() -> bool:
        delete_pods(control_plane, EXPORTER)
        return control_plane.admin.request("GET", f"api/v1/namespaces/{EXPORTER}").status_code == 404

    wait_until(gone, "the namespace to be gone")


class Script:
    """deploy_astrago.sh with helm_shim.py as helm."""

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        self._plane = plane
        helm = folder / "helm"
        helm.write_text(f'#!/bin/sh\nexec {sys.executable} {HERE / "helm_shim.py"} "$@"\n')
        helm.chmod(0o755)
        self._env = {
            **os.environ,
            "KUBECONFIG": str(plane.kubeconfig(plane.admin.token)),
            "HELM": str(helm),
        }

    def run(self, *command: str) -> str:
        done = subprocess.run(
            [ROOT / "deploy_astrago.sh", *command], env=self._env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def daemonsets(self) -> list[str]:
        found = self._plane.admin.call("GET", f"apis/apps/v1/namespaces/{EXPORTER}/daemonsets")["items"]
        return [one["metadata"]["name"] for one in found]

    def cronjobs(self) -> dict[str, bool]:
        """CronJobs by name: True if suspended."""
        path = f"apis/batch/v1beta1/namespaces/{COLLECTOR}/cronjobs"
        found = self._plane.admin.call("GET", path)["items"]
        return {one["metadata"]["name"]: one["spec"]["suspend"] for one in found}


@pytest.fixture
def script(control_plane: ControlPlane, tmp_path: Path) -> Iterator[Script]:
    made = Script(control_plane, tmp_path)
    # Helm does not adopt existing objects with the same name.
    control_plane.kubectl("delete", "clusterrole,clusterrolebinding", "gpuledger")
    yield made
    control_plane.kubectl("apply", f"--filename={ROOT / 'deploy/rbac.yaml'}")
    for namespace in (EXPORTER, COLLECTOR):
        delete_pods(control_plane, namespace)


def test_sync_installs_both_components_and_destroy_uninstalls_them(script: Script) -> None:
    script.run("sync")
    assert script.daemonsets() == ["gpuledger"]
    assert script.cronjobs() == {"gpu-process-metrics-collector": False}
    output = script.run("destroy")
    assert script.daemonsets() == []
    assert script.cronjobs() == {}
    assert "/var/lib/gpuledger" in output


def test_a_component_is_installed_and_removed_separately(script: Script) -> None:
    process, session = "gpu-process-metrics-collector", "gpu-session-metrics-collector"
    script.run("sync", "gpu-process-exporter")
    assert script.cronjobs() == {process: False}
    script.run("sync", "gpu-session-monitoring")
    assert script.cronjobs() == {process: False, session: True}
    script.run("destroy", "gpu-process-exporter")
    assert script.cronjobs() == {session: False}
    script.run("destroy", "gpu-session-monitoring")
    assert script.cronjobs() == {}


def test_a_second_sync_keeps_the_values_of_the_first(script: Script, control_plane: ControlPlane) -> None:
    script.run("sync", "exporter", "--", "--set", "port=9555")
    script.run("sync", "exporter")
    path = f"apis/apps/v1/namespaces/{EXPORTER}/daemonsets/gpuledger"
    (only,) = control_plane.admin.call("GET", path)["spec"]["template"]["spec"]["containers"]
    assert only["ports"][0]["containerPort"] == 9555
    script.run("destroy", "exporter")
