"""Pods for the tests: manifests, and clients that create and observe them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster import image
from cluster.control_plane import Client, Json
from cluster.node import RESOURCE, VISIBLE
from running import wait_until

NAMESPACE = "team-a"


def container(name: str, gpus: int = 0, *, ends: bool = False) -> Json:
    """Manifest of a container that sleeps or, with `ends`, exits immediately."""
    manifest: Json = {"name": name, "image": image.NAME, "imagePullPolicy": "Never"}
    if ends:
        manifest["args"] = ["exit"]
    if gpus:
        manifest["resources"] = {"limits": {RESOURCE: str(gpus)}}
    return manifest


def pod(name: str, *containers: Json, node: str, init: tuple[Json, ...] = (), **metadata: Any) -> Json:
    """Manifest of a pod that is already bound to a node, because no scheduler runs."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE, **metadata},
        "spec": {
            "nodeName": node,
            "hostNetwork": True,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": 1,
            "restartPolicy": "Never",
            "tolerations": [{"operator": "Exists"}],
            "initContainers": list(init),
            "containers": list(containers),
        },
    }


@dataclass(frozen=True)
class Running:
    """A running container: its `pid` on the host, and its `devices` according to its environment."""

    pod_uid: str
    container_id: str
    pid: int
    devices: tuple[str, ...]


class Pods:
    """Pods of one namespace, created and observed as an administrator."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._path = f"api/v1/namespaces/{NAMESPACE}/pods"
        self._created: set[str] = set()

    def create(self, manifest: Json) -> Json:
        self._created.add(manifest["metadata"]["name"])
        return self._client.call("POST", self._path, manifest)

    def read(self, name: str) -> Json | None:
        answer = self._client.request("GET", f"{self._path}/{name}")
        return answer.json() if answer.is_success else None

    def add_ephemeral(self, name: str, *containers: Json) -> None:
        body = {
            "apiVersion": "v1",
            "kind": "EphemeralContainers",
            "metadata": {"name": name},
            "ephemeralContainers": list(containers),
        }
        self._client.call("PUT", f"{self._path}/{name}/ephemeralcontainers", body)

    def set_status(self, name: str, status: Json) -> None:
        self._client.call("PATCH", f"{self._path}/{name}/status", {"status": status})

    def delete(self, name: str) -> None:
        """Delete the pod, and wait until it is gone."""
        self._client.call("DELETE", f"{self._path}/{name}", gracePeriodSeconds="1")
        wait_until(lambda: self.read(name) is None, f"pod {name} to be gone")

    def delete_now(self, name: str) -> None:
        """Delete the pod from the API immediately; the kubelet stops it soon after and frees its devices."""
        self._client.request("DELETE", f"{self._path}/{name}", gracePeriodSeconds="0")
        self._created.discard(name)

    def delete_all(self) -> None:
        for name in tuple(self._created):
            self.delete_now(name)

    def wait_phase(self, name: str, phase: str) -> Json:
        def reached() -> Json | None:
            found = self.read(name)
            return found if found and found["status"].get("phase") == phase else None

        return wait_until(reached, f"pod {name} to be {phase}")

    def wait_running(self, name: str, container_name: str) -> Running:
        """Wait until a container of any kind runs and its process exists."""

        def runs() -> Running | None:
            found = self.read(name)
            return _running(found, container_name) if found else None

        return wait_until(runs, f"container {container_name} of pod {name} to run")


def _running(found: Json, name: str) -> Running | None:
    status = found["status"]
    kinds = ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses")
    for container_status in (item for kind in kinds for item in status.get(kind, ())):
        if container_status["name"] == name and "running" in container_status["state"]:
            identity = container_status["containerID"].removeprefix("containerd://")
            pid = process_of(identity)
            return Running(found["metadata"]["uid"], identity, pid, _devices(pid)) if pid else None
    return None


def process_of(container_id: str) -> int | None:
    """Lowest PID in the container's cgroup."""
    for file in sorted(Path("/proc").glob("[0-9]*/cgroup"), key=lambda file: int(file.parts[2])):
        try:
            if container_id in file.read_text():
                return int(file.parts[2])
        except OSError:
            continue
    return None


def _devices(pid: int) -> tuple[str, ...]:
    for variable in Path(f"/proc/{pid}/environ").read_text().split("\0"):
        key, _, value = variable.partition("=")
        if key == VISIBLE:
            return tuple(value.split(","))
    return ()
