"""Resources as people write them, and what the operator makes of them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from gpuledger.agent.config.file import read_agent_config
from gpuledger.app.operator_checks import EXPORTER_RESTARTS
from gpuledger.model.errors import UsageError
from gpuledger.operator.facts import Facts, Owner
from gpuledger.operator.programs import Complaint, Run
from gpuledger.operator.reading import Read, read
from gpuledger.operator.render.objects import Rendered, render
from gpuledger.operator.spec import GpuMonitor

Json = dict[str, Any]
STORE = ({"url": "http://store:8428/api/v1/write"},)

SCRAPED_BY_NAME = """
apiVersion: monitoring.whatap.com/v2alpha1
kind: WhatapAgent
metadata:
  name: whatap
spec:
  features:
    openAgent:
      enabled: true
      globalInterval: "15s"
      globalPath: "/metrics"
      targets:
        - targetName: "dcgm-exporter"
          type: "PodMonitor"
          enabled: true
          namespaceSelector:
            matchNames: ["whatap-monitoring"]
          selector:
            matchLabels: {name: "whatap-node-agent"}
          endpoints:
            - {port: "9400", path: "/metrics", interval: "15s", scheme: "http"}
    k8sAgent:
      masterAgent: {enabled: true}
      nodeAgent: {enabled: true}
      gpuMonitoring: {enabled: true}
"""
SIMPLE = """
apiVersion: monitoring.whatap.com/v2alpha1
kind: WhatapAgent
metadata:
  name: whatap
spec:
  features:
    openAgent: {enabled: true}
    k8sAgent:
      masterAgent: {enabled: true}
      nodeAgent: {enabled: true}
      gpuMonitoring: {enabled: true}
"""
CUSTOMERS_OWN = """
apiVersion: monitoring.whatap.com/v2alpha1
kind: WhatapAgent
metadata:
  name: whatap
spec:
  features:
    openAgent:
      enabled: true
      globalInterval: "15s"
      globalPath: "/metrics"
      targets:
        - targetName: "whatap-dcgm-exporter"
          type: "PodMonitor"
          enabled: true
          namespaceSelector: {matchNames: ["whatap-monitoring"]}
          selector: {matchLabels: {name: "whatap-node-agent"}}
          endpoints:
            - {port: "9400", path: "/metrics", interval: "15s", scheme: "http"}
        - targetName: "customer-dcgm-exporter"
          type: "PodMonitor"
          enabled: true
          namespaceSelector: {matchNames: ["gpu-monitoring", "default"]}
          selector: {matchLabels: {app: "custom-dcgm", component: "gpu-exporter"}}
          endpoints:
            - {port: "9400", path: "/metrics", interval: "15s", scheme: "http"}
    k8sAgent:
      masterAgent: {enabled: true}
      nodeAgent: {enabled: true}
      gpuMonitoring: {enabled: false}
"""
TOLERATIONS = """
apiVersion: monitoring.whatap.com/v2alpha1
kind: WhatapAgent
metadata:
  name: whatap
spec:
  features:
    k8sAgent:
      nodeAgent:
        enabled: true
        tolerations:
          - {key: "nvidia.com/gpu", operator: "Exists", effect: "NoSchedule"}
          - {key: "gpu", operator: "Exists", effect: "NoSchedule"}
      gpuMonitoring: {enabled: true}
"""
# The examples of the manual that a WhatapAgent comes from, by what each shows.
EXAMPLES: Mapping[str, str] = {
    "scraped by name": SCRAPED_BY_NAME,
    "simple": SIMPLE,
    "a customer's own exporters": CUSTOMERS_OWN,
    "tolerations": TOLERATIONS,
}


def whatap(**features: Any) -> Json:
    """A WhatapAgent with these features."""
    return {
        "apiVersion": "monitoring.whatap.com/v2alpha1",
        "kind": "WhatapAgent",
        "metadata": {"name": "whatap"},
        "spec": {"features": features},
    }


def gpu_monitor(spec: Json | None = None, name: str = "gpus") -> Json:
    """A GpuMonitor."""
    return {
        "apiVersion": "gpuledger.dev/v1alpha1",
        "kind": "GpuMonitor",
        "metadata": {"name": name},
        "spec": spec or {},
    }


def target(**more: Any) -> Json:
    """Of an agent: somebody else's exporters."""
    return {
        "targetName": "theirs",
        "type": "PodMonitor",
        "selector": {"matchLabels": {"app": "custom-dcgm"}},
        "endpoints": [{"port": "metrics"}],
        **more,
    }


def monitor_of(resource: Json | str) -> GpuMonitor:
    """What a resource without problems asks for."""
    found = read_of(resource)
    assert found.problems == ()
    assert found.monitor is not None
    return found.monitor


def read_of(resource: Json | str) -> Read:
    """Of a resource, also as YAML."""
    return read(yaml.safe_load(resource) if isinstance(resource, str) else resource)


def facts_of(monitor: GpuMonitor, **more: Any) -> Facts:
    """With somebody to deliver to, unless something else is said."""
    version = "monitoring.whatap.com/v2alpha1" if monitor.kind == "WhatapAgent" else "gpuledger.dev/v1alpha1"
    owner = Owner(version, monitor.kind, monitor.name, "6b1f")
    usual = {
        "image": "gpuledger:1",
        "default_remote_write": STORE,
        "exporter_restarts": EXPORTER_RESTARTS,
    }
    return Facts(owner, **{**usual, **more})


def rendered(resource: Json | str, **more: Any) -> Rendered:
    """Of a resource without problems."""
    monitor = monitor_of(resource)
    return render(monitor, facts_of(monitor, **more))


def made(resource: Json | str, **more: Any) -> dict[str, Json]:
    """Objects by kind and name, with those that are only made once; none may be there twice."""
    found = rendered(resource, **more)
    assert found.problems == ()
    objects = [dict(one) for one in (*found.objects, *found.seeds)]
    by_name = {f"{one['kind']}/{one['metadata']['name']}": one for one in objects}
    assert len(by_name) == len(objects)
    return by_name


def only(kind: str, resource: Json | str, **more: Any) -> Json:
    """The one object of a kind."""
    (found,) = [one for name, one in made(resource, **more).items() if name.startswith(f"{kind}/")]
    return found


def container(resource: Json | str, kind: str = "DaemonSet", **more: Any) -> Json:
    """The one container of its DaemonSet or StatefulSet."""
    (found,) = only(kind, resource, **more)["spec"]["template"]["spec"]["containers"]
    return dict(found)


def agent_file(resource: Json | str, **more: Any) -> Json:
    """The agent's configuration."""
    objects = made(resource, **more).values()
    texts = [
        text
        for one in objects
        if one["kind"] == "ConfigMap"
        for name, text in one["data"].items()
        if name in ("agent.yaml", "scrape_config.yaml")
    ]
    (text,) = texts
    return dict(yaml.safe_load(text))


def agent_says(config: Mapping[str, Any]) -> str:
    """What the agent's own reader has against a configuration; nothing, if nothing."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "agent.yaml"
        file.write_text(yaml.safe_dump(config), encoding="utf-8")
        try:
            read_agent_config(file, {})
        except UsageError as error:
            return str(error).removeprefix(f"{file}: ")
    return ""


def asks_agent(run: Run) -> Complaint | None:
    """The same of what a pod is given, as rendering asks it."""
    said = agent_says(run.configuration)
    return Complaint("configuration", said) if said else None


def pods(objects: Mapping[str, Json]) -> Iterator[Json]:
    """The specifications of pods."""
    for one in objects.values():
        if one["kind"] in ("DaemonSet", "StatefulSet"):
            yield one["spec"]["template"]["spec"]
