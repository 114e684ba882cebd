"""A Prometheus that the chart's objects on the API server configure, as Prometheus Operator would.

Not real: Kubernetes' service discovery, without which Debian builds Prometheus, and the operator itself. A
thread writes the targets of the API server's endpoints and pods into a file that Prometheus watches.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

import yaml

from cluster.control_plane import ControlPlane, Json
from monitors import DEFAULT, scrape_configs
from running import Prometheus, prometheus, wait_until
from service_discovery import Target, endpoint_targets

_GROUP = "monitoring.coreos.com"
_PLURALS = {"ServiceMonitor": "servicemonitors", "PrometheusRule": "prometheusrules"}
_CRDS = "apis/apiextensions.k8s.io/v1/customresourcedefinitions"
# Seconds between two looks at the API server.
_EVERY = 0.3


@contextmanager
def monitoring_crds(plane: ControlPlane) -> Iterator[None]:
    """The kinds of Prometheus Operator exist within, with any content."""
    try:
        for kind, plural in _PLURALS.items():
            plane.admin.call("POST", _CRDS, _definition(kind, plural))
            path = f"apis/{_GROUP}/v1/{plural}"
            wait_until(lambda path=path: plane.admin.request("GET", path).is_success, f"{kind} to be served")
        yield
    finally:
        for plural in _PLURALS.values():
            plane.admin.request("DELETE", f"{_CRDS}/{plural}.{_GROUP}")


def _definition(kind: str, plural: str) -> Json:
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"kind": kind, "plural": plural, "singular": kind.lower(), "listKind": f"{kind}List"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{_GROUP}"},
        "spec": {"group": _GROUP, "scope": "Namespaced", "names": names, "versions": [version]},
    }


def installed(plane: ControlPlane, namespace: str, kind: str) -> Json:
    """The only ServiceMonitor or PrometheusRule of a namespace."""
    path = f"apis/{_GROUP}/v1/namespaces/{namespace}/{_PLURALS[kind]}"
    (found,) = plane.admin.call("GET", path)["items"]
    return {**found, "kind": kind}


def discover(plane: ControlPlane, namespace: str) -> list[Target]:
    """The targets of role `endpoints` in a namespace, also pods that are not ready."""
    found: list[Target] = []
    path = f"api/v1/namespaces/{namespace}"
    services = {one["metadata"]["name"]: one for one in plane.admin.call("GET", f"{path}/services")["items"]}
    pods = {one["metadata"]["name"]: one for one in plane.admin.call("GET", f"{path}/pods")["items"]}
    for endpoints in plane.admin.call("GET", f"{path}/endpoints")["items"]:
        service = services.get(endpoints["metadata"]["name"])
        for subset in endpoints.get("subsets") or ():
            for address in (*subset.get("addresses", ()), *subset.get("notReadyAddresses", ())):
                pod = pods.get(address["targetRef"]["name"])
                if service and pod and pod["status"].get("podIP"):
                    found += endpoint_targets(service, pod)
    return found


@contextmanager
def chart_prometheus(
    plane: ControlPlane, namespace: str, change_rules: Callable[[Json], Json] = dict
) -> Iterator[Prometheus]:
    """The Prometheus of the release in a namespace, with its ServiceMonitor and PrometheusRule."""
    monitor = installed(plane, namespace, "ServiceMonitor")
    rules = change_rules(installed(plane, namespace, "PrometheusRule")["spec"])
    with tempfile.TemporaryDirectory(prefix="gpuledger-monitoring-") as name:
        targets, groups = Path(name, "targets.json"), Path(name, "rules.yml")
        groups.write_text(yaml.safe_dump(rules))
        config = {
            "global": DEFAULT.global_section(),
            "rule_files": [str(groups)],
            "scrape_configs": [_with_file(one, targets) for one in scrape_configs(monitor)],
        }
        with _discovery(plane, namespace, targets), prometheus(yaml.safe_dump(config)) as server:
            yield server


def _with_file(config: dict[str, Any], file: Path) -> Json:
    """The scrape configuration with targets of a file instead of Kubernetes' service discovery."""
    made = {key: value for key, value in config.items() if key != "kubernetes_sd_configs"}
    return made | {"file_sd_configs": [{"files": [str(file)]}]}


@contextmanager
def _discovery(plane: ControlPlane, namespace: str, file: Path) -> Iterator[None]:
    """The file has the discovered targets, within."""
    stopped = Event()

    def write() -> None:
        before = ""
        while not stopped.wait(_EVERY):
            groups = [
                {
                    "targets": [one["__address__"]],
                    "labels": {key: text for key, text in one.items() if key != "__address__"},
                }
                for one in discover(plane, namespace)
            ]
            if (text := json.dumps(groups)) != before:
                aside = file.with_suffix(".new")
                aside.write_text(text)
                aside.replace(file)
                before = text

    file.write_text("[]")
    thread = Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()
