"""The operator as the chart installs it, run here with its account's rights, and what it makes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx

from cluster.control_plane import Client, ControlPlane, Json
from cluster.helm import Helm
from gpuledger.operator.kinds import CLAIM, KINDS, OURS
from running import Program, free_port, get, wait_until

NAMESPACE = "operated"
WHATAP = "whatap-monitoring"
RECEIVER = "http://127.0.0.1:9/api/v1/write"
HERE = Path(__file__).parent

_DEFINITIONS = "apis/apiextensions.k8s.io/v1/customresourcedefinitions"
PATHS = {
    "GpuMonitor": "apis/gpuledger.dev/v1alpha1/gpumonitors",
    "WhatapAgent": "apis/monitoring.whatap.com/v2alpha1/whatapagents",
}
_VERSIONS = {"GpuMonitor": "gpuledger.dev/v1alpha1", "WhatapAgent": "monitoring.whatap.com/v2alpha1"}
_PLURALS = {kind.kind: kind for kind in KINDS}


class RunningOperator:
    """One `gpuledger operator`."""

    def __init__(self, program: Program, port: int) -> None:
        self.program = program
        self.url = f"http://127.0.0.1:{port}"

    @property
    def pid(self) -> int:
        return self.program.process.pid

    def get(self, path: str) -> httpx.Response:
        return get(f"{self.url}{path}", timeout=30)

    def value(self, series: str) -> float:
        """The value of a series that is told; 0 where it is not."""
        for line in self.get("/metrics").text.splitlines():
            name, _, value = line.rpartition(" ")
            if name == series:
                return float(value)
        return 0.0

    def leads(self) -> bool:
        return self.value("gpuledger_operator_leading") == 1

    def wait_leads(self) -> RunningOperator:
        wait_until(self.leads, "the operator to act")
        return self

    def stop(self) -> None:
        if self.program.process.poll() is None:
            self.program.stop()

    def kill(self) -> None:
        """As a node does that loses its power."""
        self.program.process.kill()
        self.program.stop()


class Installed:
    """The chart's release, without a kubelet to run its pods: operators are started here, as it says."""

    def __init__(self, plane: ControlPlane, helm: Helm, folder: Path) -> None:
        self.api: Client = plane.admin
        self.plane = plane
        # What the newest operator says.
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
        self._token.write_text(plane.token_of(NAMESPACE, account))

    def arguments(self, port: int, *more: str) -> list[str]:
        """Of the Deployment's container; addresses and paths are this machine's."""
        (container,) = self.deployment["spec"]["template"]["spec"]["containers"]
        ours = ("--config", "--listen-address")
        return [
            *(one for one in container["args"] if not one.startswith(ours)),
            *(f"--config={self.config}", f"--listen-address=127.0.0.1:{port}"),
            *("--kubernetes-api", self.plane.url),
            *("--kubernetes-ca-file", str(self.plane.ca_file)),
            *("--kubernetes-token-file", str(self._token)),
            *("--lease-duration=3s", *more),
        ]

    @contextmanager
    def operators(self) -> Iterator[Callable[..., RunningOperator]]:
        """Starts operators; those that still run are stopped in the end."""
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
        """As `kubectl apply` does: made, or changed into this."""
        body = {"apiVersion": _VERSIONS[kind], "kind": kind, "metadata": {"name": name}, "spec": spec}
        found = self.api.ask("GET", f"{PATHS[kind]}/{name}")
        if not found.is_success:
            return self.api.call("POST", PATHS[kind], body)
        body["metadata"]["resourceVersion"] = found.json()["metadata"]["resourceVersion"]
        return self.api.call("PUT", f"{PATHS[kind]}/{name}", body)

    def read(self, kind: str, name: str) -> Json | None:
        answer = self.api.ask("GET", f"{PATHS[kind]}/{name}")
        return answer.json() if answer.is_success else None

    def delete(self, kind: str, name: str) -> None:
        """Returns once it is gone."""
        self.api.ask("DELETE", f"{PATHS[kind]}/{name}")
        wait_until(lambda: self.read(kind, name) is None, f"{kind} {name} to be gone")

    def delete_all(self) -> None:
        for kind, path in PATHS.items():
            for one in self.api.call("GET", path)["items"]:
                self.delete(kind, one["metadata"]["name"])

    def conditions(self, kind: str, name: str) -> dict[str, tuple[str, str]]:
        """Status and reason by type, of the newest spec; empty while nothing is told of it."""
        found = self.read(kind, name) or {"metadata": {}}
        status = found.get("status") or {}
        if status.get("observedGeneration") != found["metadata"].get("generation"):
            return {}
        return {one["type"]: (one["status"], one["reason"]) for one in status["conditions"]}

    def wait_condition(
        self, kind: str, name: str, condition: str, status: str, reason: str, patience: float = 60.0
    ) -> Json:
        """The condition, once it is so."""

        def told() -> Json | None:
            if self.conditions(kind, name).get(condition) != (status, reason):
                return None
            found = (self.read(kind, name) or {})["status"]["conditions"]
            return next(one for one in found if one["type"] == condition)

        try:
            return wait_until(told, f"{kind} {name}: {condition}={status} ({reason})", patience)
        except AssertionError as error:
            said = "\n".join(self.lines[-40:])
            raise AssertionError(f"{error}; it is {self.conditions(kind, name)}; said:\n{said}") from None

    def wait_made(self, kind: str, name: str, patience: float = 60.0) -> list[str]:
        """What there is once all is made that the newest spec asks for."""
        self.wait_condition(kind, name, "Available", "False", "Starting", patience)
        return self.made()

    def made(self) -> list[str]:
        """`Kind namespace/name` of all that bears the operator's label."""
        found = []
        for kind in KINDS:
            for one in self.api.call("GET", kind.path(), labelSelector=OURS)["items"]:
                metadata = one["metadata"]
                found.append(f"{kind.kind} {metadata.get('namespace', '-')}/{metadata['name']}")
        return sorted(found)

    def claims(self) -> list[str]:
        """Volumes of agents that are not on their way out: a controller lets them go with their pods."""
        items = self.api.call("GET", CLAIM.path(NAMESPACE))["items"]
        return [one["metadata"]["name"] for one in items if "deletionTimestamp" not in one["metadata"]]

    def get(self, kind: str, name: str, namespace: str = NAMESPACE) -> Json:
        return self.api.call("GET", self.path(kind, name, namespace))

    def path(self, kind: str, name: str, namespace: str = NAMESPACE) -> str:
        return _PLURALS[kind].path(namespace, name)

    def daemon_set_status(self, name: str, namespace: str = NAMESPACE, **status: Any) -> None:
        """What a controller manager would tell."""
        whole = {
            "observedGeneration": self.get("DaemonSet", name, namespace)["metadata"]["generation"],
            "currentNumberScheduled": status["desiredNumberScheduled"],
            "numberMisscheduled": 0,
            **status,
        }
        self.api.call("PATCH", f"{self.path('DaemonSet', name, namespace)}/status", {"status": whole})

    def ready(self, kind: str, name: str, pods: int, namespace: str = NAMESPACE) -> None:
        """Have a controller say that all pods are there."""
        if kind == "DaemonSet":
            numbers = dict.fromkeys(("desiredNumberScheduled", "updatedNumberScheduled", "numberReady"), pods)
            self.daemon_set_status(name, namespace, **numbers)
            return
        numbers = dict.fromkeys(("replicas", "updatedReplicas", "readyReplicas"), pods)
        generation = self.get(kind, name, namespace)["metadata"]["generation"]
        status = {"observedGeneration": generation, **numbers}
        self.api.call("PATCH", f"{self.path(kind, name, namespace)}/status", {"status": status})

    def asked(self) -> list[Json]:
        """Everything about objects that operators have asked for, beside their Lease."""
        return [one for one in self.plane.audited(self.user) if "objectRef" in one and not _of_lease(one)]


def _of_lease(event: Mapping[str, Any]) -> bool:
    return bool((event.get("objectRef") or {}).get("resource") == "leases")


@contextmanager
def installed(plane: ControlPlane, folder: Path, **values: Any) -> Iterator[Installed]:
    """A release with the operator; it and its definitions are gone afterwards.

    `values` are the chart's, over those that every test here needs; `folder` is made for it.
    """
    folder.mkdir()
    # Of that name are the roles that the other tests apply.
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
    # Made by the chart it would go with the release, and without a controller manager that has no end.
    made = plane.admin.ask("POST", "api/v1/namespaces", {"metadata": {"name": WHATAP}})
    assert made.status_code in (201, 409), made.text
    try:
        helm.install(chosen, wait=False)
        yield Installed(plane, helm, folder)
    finally:
        helm.uninstall()
        helm.close()
        _let_go(plane)
        for name in ("gpumonitors.gpuledger.dev", "whatapagents.monitoring.whatap.com"):
            plane.admin.ask("DELETE", f"{_DEFINITIONS}/{name}")
        wait_until(lambda: not _defined(plane), "the definitions to be gone")


def _let_go(plane: ControlPlane) -> None:
    """Of a test that has failed there may be resources that no operator takes leave of."""
    for path in PATHS.values():
        answer = plane.admin.ask("GET", path)
        for one in answer.json()["items"] if answer.is_success else ():
            item = f"{path}/{one['metadata']['name']}"
            plane.admin.ask("PATCH", item, {"metadata": {"finalizers": None}})
            plane.admin.ask("DELETE", item)


def _defined(plane: ControlPlane) -> list[str]:
    items = plane.admin.call("GET", _DEFINITIONS)["items"]
    names = [one["metadata"]["name"] for one in items]
    return [name for name in names if name.endswith((".gpuledger.dev", ".whatap.com"))]
