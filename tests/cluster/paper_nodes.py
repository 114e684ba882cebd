"""Nodes that are in the API alone: pods are bound to them and never start."""

from __future__ import annotations

from cluster.control_plane import Client, Json
from cluster.release import GPU_LABEL

_ROOM = {"cpu": "4", "memory": "8Gi", "pods": "20"}


class PaperNodes:
    """Ready GPU nodes, until they are removed."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._names: list[str] = []

    def add(self, *names: str, **labels: str) -> None:
        for name in names:
            told = {**GPU_LABEL, "kubernetes.io/hostname": name, **labels}
            self._client.call("POST", "api/v1/nodes", {"metadata": {"name": name, "labels": told}})
            self._names.append(name)
            self._client.call("PATCH", f"api/v1/nodes/{name}/status", {"status": _ready()})

    def remove(self) -> None:
        for name in self._names:
            self._client.call("DELETE", f"api/v1/nodes/{name}")
        self._names = []


def _ready() -> Json:
    condition = {"type": "Ready", "status": "True", "reason": "Paper", "message": ""}
    return {"capacity": _ROOM, "allocatable": _ROOM, "conditions": [condition]}
