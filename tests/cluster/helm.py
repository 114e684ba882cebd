"""Helm releases of the chart on the real API server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from cluster.control_plane import ControlPlane, Json

CHART = Path(__file__).parents[2] / "deploy/helm/gpuledger"
_PATIENCE = 120


class Helm:
    """A release in its own namespace, which the installation creates."""

    def __init__(self, control_plane: ControlPlane, name: str, namespace: str) -> None:
        self.name = name
        self.namespace = namespace
        self._api = control_plane.admin
        # Imported here, like in tests/chart.py.
        from helm_python import Config

        self._config = Config(kubeconfig_path=control_plane.kubeconfig(self._api.token), namespace=namespace)

    def install(self, values: Json, *, wait: bool = True, chart: Path = CHART) -> Json:
        """Install the release. With `wait`, returns once its pods are ready."""
        waiting: dict[str, Any] = {"wait": "legacy", "timeout": _PATIENCE} if wait else {}
        return self._config.install(chart, self.name, values, create_namespace=True, **waiting)

    def upgrade(self, values: Json, *, reuse_values: bool = False, wait: bool = True) -> Json:
        waiting: dict[str, Any] = {"wait": "legacy", "timeout": _PATIENCE} if wait else {}
        return self._config.upgrade(CHART, self.name, values, reuse_values=reuse_values, **waiting)

    def rollback(self, revision: int) -> None:
        self._config.rollback(self.name, version=revision, wait="legacy", timeout=_PATIENCE)

    def uninstall(self) -> None:
        self._config.uninstall(self.name, ignore_not_found=True)

    def history(self) -> list[str]:
        """Status of each revision, oldest first."""
        return [str(one["status"]) for one in self._config.history(self.name)]

    def objects(self) -> list[Json]:
        """Rendered objects of the release."""
        manifest = self._config.status(self.name)["manifest"]
        return [one for one in yaml.safe_load_all(manifest) if one]

    def close(self) -> None:
        self._config.close()

    def remaining_objects(self) -> list[str]:
        """Paths of remaining objects of any kind with the release's label, and of Helm's records."""
        found = []
        for path in _listable(self._api):
            for item in self._api.call("GET", path).get("items") or ():
                labels = item["metadata"].get("labels") or {}
                if self.name in (labels.get("app.kubernetes.io/instance"), labels.get("name")):
                    found.append(f"{path}/{item['metadata']['name']}")
        return found


def rendered(values: Json, name: str = "gpuledger", namespace: str = "gpu-monitoring") -> list[Json]:
    """Objects that the chart renders without a server."""
    from helm_python import Chart

    with Chart.load(CHART) as chart:
        files = chart.render(values, name=name, namespace=namespace)
    texts = [text for template, text in files.items() if template.endswith(".yaml")]
    return [one for text in texts for one in yaml.safe_load_all(text) if one]


def _listable(api: Any) -> list[str]:
    """Path of every kind of object on the server, in all namespaces."""
    groups = ["api/v1"]
    for group in api.call("GET", "apis")["groups"]:
        groups += [f"apis/{version['groupVersion']}" for version in group["versions"]]
    return [
        f"{group}/{resource['name']}"
        for group in groups
        for resource in api.call("GET", group)["resources"]
        if "list" in resource["verbs"] and resource["name"] not in ("events", "componentstatuses")
    ]
