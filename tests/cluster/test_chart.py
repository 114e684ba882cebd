"""The chart on the real cluster: installed, upgraded, rolled back, uninstalled; its pods really run."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pytest
import yaml

from cluster.control_plane import ControlPlane, Json
from cluster.helm import CHART, Helm, rendered
from cluster.node import GPUS, Node
from cluster.pods import NAMESPACE, Pods, container, pod, process_of
from cluster.release import Driver, Page, node_values
from running import prometheus, wait_until

# As document 001 calls them.
IN = "monitoring"
RELEASE = "gpu-monitoring"
NAME = "gpu-monitoring-gpuledger"
BOOKS = "var/lib/gpuledger/gpuledger.db"


@dataclass
class Installed:
    """The release on the node, with everything a test may want to ask."""

    helm: Helm
    driver: Driver
    page: Page
    values: Json
    plane: ControlPlane

    def pod(self) -> Json:
        path = f"api/v1/namespaces/{IN}/pods"
        found = self.plane.admin.call("GET", path, labelSelector=f"app={NAME}")["items"]
        (only,) = [one for one in found if "deletionTimestamp" not in one["metadata"]]
        return dict(only)

    def daemonset(self) -> Json:
        return self.plane.admin.call("GET", f"apis/apps/v1/namespaces/{IN}/daemonsets/{NAME}")

    def arguments(self) -> list[str]:
        return list(self.daemonset()["spec"]["template"]["spec"]["containers"][0]["args"])

    def wait_ready(self) -> None:
        """Helm is content with a DaemonSet of one node before its pod is there."""

        def ready() -> bool:
            found = self.daemonset()
            status = found["status"]
            told = [
                status.get(key) for key in ("observedGeneration", "updatedNumberScheduled", "numberReady")
            ]
            return told == [found["metadata"]["generation"], 1, 1]

        wait_until(ready, "the DaemonSet's pod to be ready")


@pytest.fixture(scope="module")
def installed(
    gpu_node: Node, control_plane: ControlPlane, program_image: str, folder: Path
) -> Iterator[Installed]:
    driver = Driver(folder / "chart-driver", GPUS)
    values = node_values(program_image, driver)
    helm = Helm(control_plane, RELEASE, IN)
    try:
        helm.install(values)
        made = Installed(helm, driver, Page(values["port"]), values, control_plane)
        made.wait_ready()
        yield made
        helm.uninstall()
    finally:
        helm.close()


@pytest.fixture
def neighbour(installed: Installed, gpu_node: Node, pods: Pods) -> str:
    """A pod with a process on a GPU: that GPU's UUID."""
    pods.create(pod("train", container("main", gpus=1), node=gpu_node.name))
    running = pods.wait_running("train", "main")
    installed.driver.run(running.devices[0], gpu_node.pid_inside(running.pid))
    return running.devices[0]


def test_its_page_names_the_pods_beside_it(installed: Installed, neighbour: str) -> None:
    row = installed.page.wait_row("gpu_process_info", "/metrics/process", pod="train")
    assert (row["namespace"], row["container"], row["status"]) == (NAMESPACE, "main", "active")


def test_it_tells_natively_who_holds_what(installed: Installed, neighbour: str) -> None:
    row = installed.page.wait_row("gpuledger_device_owner_info", pod="train", uuid=neighbour)
    assert (row["namespace"], row["container"]) == (NAMESPACE, "main")


def test_its_probes_are_answered(installed: Installed) -> None:
    status = installed.pod()["status"]
    assert {one["type"]: one["status"] for one in status["conditions"]}["Ready"] == "True"
    (only,) = status["containerStatuses"]
    assert (only["ready"], only["started"], only["restartCount"]) == (True, True, 0)


def test_it_asks_the_api_server_as_its_own_account_and_is_refused_nothing(
    installed: Installed, neighbour: str, control_plane: ControlPlane
) -> None:
    installed.page.wait_row("gpu_process_info", "/metrics/process", pod="train")
    asked = control_plane.audited(f"system:serviceaccount:{IN}:{NAME}")
    assert {event["responseStatus"]["code"] for event in asked} <= {200, 404}
    assert [event for event in asked if event["requestURI"].startswith("/api/v1/pods?")]


def test_doctor_finds_in_the_pod_all_that_kubernetes_has_to_give(
    installed: Installed, gpu_node: Node
) -> None:
    identity = installed.pod()["status"]["containerStatuses"][0]["containerID"].removeprefix("containerd://")
    command = ["gpuledger", "doctor", "--config=/etc/gpuledger/config/gpuledger.yaml"]
    execute = ["ctr", "--namespace=k8s.io", "tasks", "exec", "--exec-id=doctor", identity]
    told = gpu_node.inside(*execute, *command).stdout
    for check in ("NVML library", "host pids", "Kubernetes API", "pod-resources socket"):
        assert [line for line in told.splitlines() if check in line and "works" in line], told


def test_its_root_cannot_be_written(installed: Installed) -> None:
    identity = installed.pod()["status"]["containerStatuses"][0]["containerID"].removeprefix("containerd://")
    pid = process_of(identity)
    (root,) = [
        line.split()
        for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines()
        if line.split()[4] == "/"
    ]
    assert "ro" in root[5].split(",")


def test_the_question_of_helm_test_is_answered(installed: Installed) -> None:
    """Its pod would need a network of pods, which this node has not: its program is asked by itself."""
    address, port = installed.page.url.removeprefix("http://").split(":")
    done = subprocess.run(
        [sys.executable, CHART / "files/ask.py", address, port, "http"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def scrape_config(installed: Installed, monitor: Json) -> str:
    """What Prometheus Operator makes of a ServiceMonitor, with what the API server has to say of its targets.

    Debian's Prometheus cannot ask Kubernetes itself.
    """
    (endpoint,) = monitor["spec"]["endpoints"]
    selector = monitor["spec"]["selector"]["matchLabels"]
    chosen = [
        {"source_labels": [f"__meta_kubernetes_service_label_{_name(key)}"], "regex": value, "action": "keep"}
        for key, value in selector.items()
    ]
    meta = {
        "namespace": "__meta_kubernetes_namespace",
        "service": "__meta_kubernetes_service_name",
        "pod": "__meta_kubernetes_pod_name",
        "container": "__meta_kubernetes_pod_container_name",
    }
    port = {"source_labels": ["__meta_kubernetes_endpoint_port_name"], "regex": endpoint["port"]}
    config = {
        "job_name": "serviceMonitor",
        "honor_labels": endpoint["honorLabels"],
        # Not the shipped interval, for which a test would wait.
        "scrape_interval": "1s",
        "scrape_timeout": "1s",
        "metrics_path": endpoint["path"],
        "scheme": endpoint["scheme"],
        "static_configs": list(_targets(installed, monitor["spec"]["namespaceSelector"]["matchNames"])),
        "relabel_configs": [
            *chosen,
            {**port, "action": "keep"},
            *[{"source_labels": [source], "target_label": label} for label, source in meta.items()],
            *[_relabelling(one) for one in endpoint.get("relabelings", ())],
        ],
        "metric_relabel_configs": [_relabelling(one) for one in endpoint.get("metricRelabelings", ())],
    }
    return yaml.safe_dump({"scrape_configs": [config]})


def _targets(installed: Installed, namespaces: list[str]) -> Iterator[Json]:
    """All endpoints of these namespaces, as Prometheus describes them."""
    admin = installed.plane.admin
    for namespace in namespaces:
        for found in admin.call("GET", f"api/v1/namespaces/{namespace}/endpoints")["items"]:
            name = found["metadata"]["name"]
            service = admin.call("GET", f"api/v1/namespaces/{namespace}/services/{name}")
            labels = {
                f"__meta_kubernetes_service_label_{_name(key)}": value
                for key, value in service["metadata"]["labels"].items()
            }
            for subset in found.get("subsets", ()):
                for address, port in product(subset["addresses"], subset["ports"]):
                    told = {
                        "__meta_kubernetes_namespace": namespace,
                        "__meta_kubernetes_service_name": name,
                        "__meta_kubernetes_endpoint_port_name": port["name"],
                        "__meta_kubernetes_pod_name": address["targetRef"]["name"],
                        "__meta_kubernetes_pod_node_name": address["nodeName"],
                        "__meta_kubernetes_pod_container_name": "exporter",
                    }
                    yield {"targets": [f"{address['ip']}:{port['port']}"], "labels": {**labels, **told}}


def _name(label: str) -> str:
    return "".join(letter if letter.isalnum() else "_" for letter in label)


def _relabelling(told: Json) -> Json:
    names = {"sourceLabels": "source_labels", "targetLabel": "target_label"}
    return {names.get(key, key): value for key, value in told.items()}


def test_prometheus_keeps_the_names_of_the_workload(installed: Installed, neighbour: str) -> None:
    values = {**installed.values, "serviceMonitor": {"enabled": True}}
    (monitor,) = [one for one in rendered(values, RELEASE, IN) if one["kind"] == "ServiceMonitor"]
    installed.page.wait_row("gpu_process_info", "/metrics/process", pod="train")
    with prometheus(scrape_config(installed, monitor)) as server:
        (owner,) = server.wait_query('gpuledger_device_owner_info{pod="train"}')
        (up,) = server.query("up")
    assert owner["metric"]["namespace"] == NAMESPACE  # type: ignore[index]  # JSON
    assert owner["metric"]["node"] == "node-1"  # type: ignore[index]  # JSON
    assert up["metric"]["namespace"] == IN  # type: ignore[index]  # JSON


def test_an_upgrade_that_reuses_values_keeps_them_and_a_rollback_takes_it_back(installed: Installed) -> None:
    before = installed.arguments()
    installed.helm.upgrade({"extraArgs": ["--log-level=debug"]}, reuse_values=True)
    installed.wait_ready()
    assert installed.arguments() == [*before, "--log-level=debug"]
    assert installed.page.get("/-/ready").is_success
    installed.helm.rollback(1)
    installed.wait_ready()
    assert installed.arguments() == before
    assert installed.helm.history() == ["superseded", "superseded", "deployed"]


def test_the_books_go_on_over_an_exchange_of_the_pod(installed: Installed, neighbour: str) -> None:
    """Joules of a pod that the exporter's own first self has seen."""

    def joules() -> float:
        told = installed.page.rows("gpuledger_energy_joules_total")
        return sum(value for row, value in told if row["uuid"] == neighbour)

    first = wait_until(joules, "energy to be booked")
    installed.helm.upgrade({"podAnnotations": {"exchanged": "yes"}}, reuse_values=True)
    installed.wait_ready()
    assert wait_until(joules, "energy after the exchange") >= first


def test_uninstalling_leaves_the_books_and_nothing_else(installed: Installed, gpu_node: Node) -> None:
    assert installed.helm.left()
    installed.helm.uninstall()
    wait_until(lambda: not installed.helm.left(), "everything of the release to be gone")
    assert (gpu_node.folder / BOOKS).exists()
