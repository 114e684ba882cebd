"""Fake nodes, which exist only in the API: pods are bound to them but never start."""

from __future__ import annotations

from cluster.control_plane import Client, Json
from cluster.release import GPU_LABEL

_CAPACITY = {"cpu": "4", "memory": "8Gi", "pods": "20"}


class FakeNodes:
    """Ready GPU nodes, until `remove`."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._names: list[str] = []

    def add(self, *names: str, **labels: str) -> None:
        for name in names:
            all_labels = {**GPU_LABEL, "kubernetes.io/hostname": name, **labels}
            self._client.call("POST", "api/v1/nodes", {"metadata": {"name": name, "labels": all_labels}})
            self._names.append(name)
            self._client.call("PATCH", f"api/v1/nodes/{name}/status", {"status": _ready_status()})

    def remove(self) -> None:
        for name in self._names:
            self._client.call("DELETE", f"api/v1/nodes/{name}")
        self._names = []


def _ready_status() -> Json:
    condition = {"type": "Ready", "status": "True", "reason": "Fake", "message": ""}
    return {"capacity": _CAPACITY, "allocatable": _CAPACITY, "conditions": [condition]}
