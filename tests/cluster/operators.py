"""The operator as the chart installs it, run on this machine with the permissions of its account."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx

from cluster.control_plane import Client, ControlPlane, Json
from cluster.helm import Helm
from gpuledger.operator.kinds import MANAGED_SELECTOR, VOLUME_CLAIM_KIND, managed_kinds
from running import Program, free_port, get, wait_until

NAMESPACE = "operated"
WHATAP = "whatap-monitoring"
RECEIVER = "http://127.0.0.1:9/api/v1/write"
HERE = Path(__file__).parent

_CRDS = "apis/apiextensions.k8s.io/v1/customresourcedefinitions"
PATHS = {
    "GpuMonitor": "apis/gpuledger.dev/v1alpha1/gpumonitors",
    "WhatapAgent": "apis/monitoring.whatap.com/v2alpha1/whatapagents",
}
_VERSIONS = {"GpuMonitor": "gpuledger.dev/v1alpha1", "WhatapAgent": "monitoring.whatap.com/v2alpha1"}
# The node's Kubernetes is 1.20.
KINDS = managed_kinds("batch/v1beta1")
_PLURALS = {kind.kind: kind for kind in KINDS}

# The GpuMonitor `main`: names of its exporter and its agent, a spec of jobs, and the objects of each part.
EXPORTER = "gpumonitor-main-exporter"
AGENT = "gpumonitor-main-agent"
CRON_JOB: Json = {
    "exporter": {"mode": "cronjob", "cronJob": {"nodeCount": 1}},
    "agent": {"enabled": False},
}
PARTS = {
    "jobs": [
        f"ClusterRoleBinding -/{EXPORTER}",
        f"ConfigMap {NAMESPACE}/{EXPORTER}",
        f"CronJob {NAMESPACE}/{EXPORTER}",
        f"ServiceAccount {NAMESPACE}/{EXPORTER}",
    ],
    "exporter": [
        f"ClusterRoleBinding -/{EXPORTER}",
        f"ConfigMap {NAMESPACE}/{EXPORTER}",
        f"DaemonSet {NAMESPACE}/{EXPORTER}",
        f"Service {NAMESPACE}/{EXPORTER}",
        f"ServiceAccount {NAMESPACE}/{EXPORTER}",
    ],
    "agent": [
        f"ClusterRoleBinding -/{AGENT}",
        f"ConfigMap {NAMESPACE}/{AGENT}",
        f"RoleBinding {NAMESPACE}/{AGENT}",
        f"Service {NAMESPACE}/{AGENT}",
        f"ServiceAccount {NAMESPACE}/{AGENT}",
        f"StatefulSet {NAMESPACE}/{AGENT}",
    ],
}


class RunningOperator:
    """One `gpuledger operator`."""

    def __init__(self, program: Program, port: int) -> None:
        self.program = program
        self.url = f"http://127.0.0.1:{port}"

    @property
    def pid(self) -> int:
        return self.program.process.pid

    def get(self, path: str) -> httpx.Response:
        return get(f"{self.url}{path}")

    def value(self, series: str) -> float:
        """Value of a series; 0 if it is not exported."""
        for line in self.get("/metrics").text.splitlines():
            name, _, value = line.rpartition(" ")
            if name == series:
                return float(value)
        return 0.0

    def leads(self) -> bool:
        return self.value("gpuledger_operator_leading") == 1

    def wait_leads(self) -> RunningOperator:
        wait_until(self.leads, "the operator to be the leader")
        return self

    def stop(self) -> None:
        if self.program.process.poll() is None:
            self.program.stop()

    def kill(self) -> None:
        """Kill the operator, as a power failure would."""
        self.program.process.kill()
        self.program.stop()


class OperatorRelease:
    """The chart's release. No kubelet runs its pods: operators run here, with the arguments of the pod."""

    def __init__(self, plane: ControlPlane, helm: Helm, folder: Path) -> None:
        self.api: Client = plane.admin
        self.plane = plane
        # Output of the newest operator.
        self.lines: list[str] = []
        objects = helm.objects()
        (self.deployment,) = (one for one in objects if one["kind"] == "Deployment")
        self.name = self.deployment["metadata"]["name"]
        self.user = f"system:serviceaccount:{NAMESPACE}:{self.name}"
        maps = {one["metadata"]["name"]: one for one in objects if one["kind"] == "ConfigMap"}
        self.config = folder / "operator.yaml"
        self.config.write_text(maps[self.name]["data"]["operator.yaml"])
        self._token = folder / "operator-token"
        account = self.deployment["spec"]["template"]["spec"]["serviceAccountName"]
        self._token.write_text(plane.create_token(NAMESPACE, account))

    def arguments(self, port: int, *more: str) -> list[str]:
        """Arguments of the Deployment's container, with addresses and paths of this machine."""
        (container,) = self.deployment["spec"]["template"]["spec"]["containers"]
        replaced = ("--config", "--listen-address")
        return [
            *(word for word in container["args"] if not word.startswith(replaced)),
            *(f"--config={self.config}", f"--listen-address=127.0.0.1:{port}"),
            *("--kubernetes-api", self.plane.url),
            *("--kubernetes-ca-file", str(self.plane.ca_file)),
            *("--kubernetes-token-file", str(self._token)),
            *("--lease-duration=3s", *more),
        ]

    @contextmanager
    def operators(self) -> Iterator[Callable[..., RunningOperator]]:
        """Yields a function that starts operators; stops those that still run afterwards."""
        with ExitStack() as stack:

            def start(*flags: str, program: Sequence[str] = ("-m", "gpuledger")) -> RunningOperator:
                port = free_port()
                environment = {
                    "GPULEDGER_STATE_DIR": "none",
                    "POD_NAMESPACE": NAMESPACE,
                    "POD_NAME": f"operator-{port}",
                }
                command = [sys.executable, *program, *self.arguments(port, *flags)]
                running = RunningOperator(Program(command, environment), port)
                self.lines = running.program.lines
                stack.callback(running.stop)
                running.program.wait_line("listening on")
                return running

            yield start

    def apply(self, kind: str, name: str, spec: Json) -> Json:
        """Create or replace a resource, like `kubectl apply`."""
        body = {"apiVersion": _VERSIONS[kind], "kind": kind, "metadata": {"name": name}, "spec": spec}
        found = self.api.request("GET", f"{PATHS[kind]}/{name}")
        if not found.is_success:
            return self.api.call("POST", PATHS[kind], body)
        body["metadata"]["resourceVersion"] = found.json()["metadata"]["resourceVersion"]
        return self.api.call("PUT", f"{PATHS[kind]}/{name}", body)

    def read(self, kind: str, name: str) -> Json | None:
        answer = self.api.request("GET", f"{PATHS[kind]}/{name}")
        return answer.json() if answer.is_success else None

    def uid(self, kind: str, name: str) -> str:
        return str((self.read(kind, name) or {})["metadata"]["uid"])

    def delete(self, kind: str, name: str) -> None:
        """Delete a resource, and wait until it is gone."""
        self.api.request("DELETE", f"{PATHS[kind]}/{name}")
        wait_until(lambda: self.read(kind, name) is None, f"{kind} {name} to be gone")

    def delete_all(self) -> None:
        for kind, path in PATHS.items():
            for one in self.api.call("GET", path)["items"]:
                self.delete(kind, one["metadata"]["name"])

    def conditions(self, kind: str, name: str) -> dict[str, tuple[str, str]]:
        """Status and reason of the conditions of the newest spec, by type; empty until it has a status."""
        found = self.read(kind, name) or {"metadata": {}}
        status = found.get("status") or {}
        if status.get("observedGeneration") != found["metadata"].get("generation"):
            return {}
        return {one["type"]: (one["status"], one["reason"]) for one in status["conditions"]}

    def wait_condition(
        self, kind: str, name: str, condition: str, status: str, reason: str, patience: float = 60.0
    ) -> Json:
        """Wait for the status and reason of a condition, and return the condition."""

        def matching() -> Json | None:
            if self.conditions(kind, name).get(condition) != (status, reason):
                return None
            found = (self.read(kind, name) or {})["status"]["conditions"]
            return next(item for item in found if item["type"] == condition)

        try:
            return wait_until(matching, f"{kind} {name}: {condition}={status} ({reason})", patience)
        except AssertionError as error:
            output = "\n".join(self.lines[-40:])
            conditions = self.conditions(kind, name)
            raise AssertionError(f"{error}; conditions: {conditions}; output:\n{output}") from None

    def wait_applied(self, kind: str, name: str, patience: float = 60.0) -> list[str]:
        """Wait until all objects of the newest spec exist, and list them."""
        self.wait_condition(kind, name, "Available", "False", "Starting", patience)
        return self.managed_objects()

    def managed_objects(self) -> list[str]:
        """`Kind namespace/name` of all objects with the operator's label."""
        found = []
        for kind in KINDS:
            for one in self.api.call("GET", kind.path(), labelSelector=MANAGED_SELECTOR)["items"]:
                metadata = one["metadata"]
                found.append(f"{kind.kind} {metadata.get('namespace', '-')}/{metadata['name']}")
        return sorted(found)

    def volume_claims(self) -> list[str]:
        """Volume claims of agents that are not being deleted."""
        items = self.api.call("GET", VOLUME_CLAIM_KIND.path(NAMESPACE))["items"]
        return [one["metadata"]["name"] for one in items if "deletionTimestamp" not in one["metadata"]]

    def get(self, kind: str, name: str, namespace: str = NAMESPACE) -> Json:
        return self.api.call("GET", self.path(kind, name, namespace))

    def path(self, kind: str, name: str, namespace: str = NAMESPACE) -> str:
        return _PLURALS[kind].path(namespace, name)

    def set_daemon_set_status(self, name: str, namespace: str = NAMESPACE, **status: Any) -> None:
        """Set the status of a DaemonSet, as a controller manager would."""
        whole = {
            "observedGeneration": self.get("DaemonSet", name, namespace)["metadata"]["generation"],
            "currentNumberScheduled": status["desiredNumberScheduled"],
            "numberMisscheduled": 0,
            **status,
        }
        self.api.call("PATCH", f"{self.path('DaemonSet', name, namespace)}/status", {"status": whole})

    def set_ready(self, kind: str, name: str, pods: int, namespace: str = NAMESPACE) -> None:
        """Set the status of a workload to all pods ready, as a controller manager would."""
        if kind == "DaemonSet":
            numbers = dict.fromkeys(("desiredNumberScheduled", "updatedNumberScheduled", "numberReady"), pods)
            self.set_daemon_set_status(name, namespace, **numbers)
            return
        numbers = dict.fromkeys(("replicas", "updatedReplicas", "readyReplicas"), pods)
        generation = self.get(kind, name, namespace)["metadata"]["generation"]
        status = {"observedGeneration": generation, **numbers}
        self.api.call("PATCH", f"{self.path(kind, name, namespace)}/status", {"status": status})

    def audited_requests(self) -> list[Json]:
        """Audit events of the operators' requests for objects, except their Lease."""
        return [
            one for one in self.plane.audit_events(self.user) if "objectRef" in one and not _is_for_lease(one)
        ]


def _is_for_lease(event: Mapping[str, Any]) -> bool:
    return bool((event.get("objectRef") or {}).get("resource") == "leases")


@contextmanager
def operator_release(plane: ControlPlane, folder: Path, **values: Any) -> Iterator[OperatorRelease]:
    """Install a release with the operator; uninstall it and delete its CRDs afterwards.

    `values` override the values that all tests need; `folder` is created.
    """
    folder.mkdir()
    # Not named gpuledger: other tests create roles with that name.
    helm = Helm(plane, "operated", NAMESPACE)
    operator = {
        "enabled": True,
        "defaultRemoteWrite": [{"url": RECEIVER}],
        "uninstall": {"enabled": False},
        **values.pop("operator", {}),
    }
    chosen = {
        "operator": operator,
        "whatapCompat": {"enabled": True, "createNamespace": False},
        **values,
    }
    # The chart must not create the namespace: without a controller manager, its deletion never finishes.
    made = plane.admin.request("POST", "api/v1/namespaces", {"metadata": {"name": WHATAP}})
    assert made.status_code in (201, 409), made.text
    try:
        helm.install(chosen, wait=False)
        yield OperatorRelease(plane, helm, folder)
    finally:
        helm.uninstall()
        helm.close()
        _delete_resources(plane)
        for name in ("gpumonitors.gpuledger.dev", "whatapagents.monitoring.whatap.com"):
            plane.admin.request("DELETE", f"{_CRDS}/{name}")
        wait_until(lambda: not _installed_crds(plane), "the CRDs to be gone")


def _delete_resources(plane: ControlPlane) -> None:
    """Delete resources of a failed test without an operator: removes their finalizers."""
    for path in PATHS.values():
        answer = plane.admin.request("GET", path)
        for one in answer.json()["items"] if answer.is_success else ():
            item = f"{path}/{one['metadata']['name']}"
            plane.admin.request("PATCH", item, {"metadata": {"finalizers": None}})
            plane.admin.request("DELETE", item)


def _installed_crds(plane: ControlPlane) -> list[str]:
    items = plane.admin.call("GET", _CRDS)["items"]
    names = [one["metadata"]["name"] for one in items]
    return [name for name in names if name.endswith((".gpuledger.dev", ".whatap.com"))]
