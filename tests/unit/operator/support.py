"""Example resources, and helpers that parse and render them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from gpuledger.agent.config.agent_config import read_agent_config
from gpuledger.app.operator_checks import EXPORTER_RESTARTS
from gpuledger.model.errors import UsageError
from gpuledger.operator.monitor_parser import ParsedMonitor, parse_monitor
from gpuledger.operator.program_checks import ProgramProblem, ProgramRun
from gpuledger.operator.render.objects import Rendered, render_objects
from gpuledger.operator.render_context import MonitorReference, RenderContext
from gpuledger.operator.spec import GpuMonitor
from yaml_files import load_yaml

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
# The examples of the WhatapAgent's manual.
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
    """A target of an agent: exporters that gpuledger did not deploy."""
    return {
        "targetName": "theirs",
        "type": "PodMonitor",
        "selector": {"matchLabels": {"app": "custom-dcgm"}},
        "endpoints": [{"port": "metrics"}],
        **more,
    }


def valid_monitor(resource: Json | str) -> GpuMonitor:
    """The monitor of a resource without problems."""
    found = parse_resource(resource)
    assert found.problems == ()
    assert found.monitor is not None
    return found.monitor


def parse_resource(resource: Json | str) -> ParsedMonitor:
    """Parse a resource, given as a mapping or as YAML."""
    return parse_monitor(load_yaml(resource) if isinstance(resource, str) else resource)


def context_of(monitor: GpuMonitor, **more: Any) -> RenderContext:
    """A RenderContext with a default receiver."""
    version = "monitoring.whatap.com/v2alpha1" if monitor.kind == "WhatapAgent" else "gpuledger.dev/v1alpha1"
    owner = MonitorReference(version, monitor.kind, monitor.name, "6b1f")
    defaults = {
        "image": "gpuledger:1",
        "default_remote_write": STORE,
        "exporter_restarts": EXPORTER_RESTARTS,
    }
    return RenderContext(owner, **{**defaults, **more})


def rendered(resource: Json | str, **more: Any) -> Rendered:
    """The rendering of a resource that parses without problems."""
    monitor = valid_monitor(resource)
    return render_objects(monitor, context_of(monitor, **more))


def rendered_objects(resource: Json | str, **more: Any) -> dict[str, Json]:
    """The rendered objects and seeds, by `Kind/name`; asserts that they are unique."""
    found = rendered(resource, **more)
    assert found.problems == ()
    objects = [dict(one) for one in (*found.objects, *found.seeds)]
    by_name = {f"{one['kind']}/{one['metadata']['name']}": one for one in objects}
    assert len(by_name) == len(objects)
    return by_name


def only_object(kind: str, resource: Json | str, **more: Any) -> Json:
    """The only object of a kind."""
    (found,) = [
        one for name, one in rendered_objects(resource, **more).items() if name.startswith(f"{kind}/")
    ]
    return found


def container(resource: Json | str, kind: str = "DaemonSet", **more: Any) -> Json:
    """The only container of the DaemonSet or StatefulSet."""
    (found,) = only_object(kind, resource, **more)["spec"]["template"]["spec"]["containers"]
    return dict(found)


def agent_file(resource: Json | str, **more: Any) -> Json:
    """The agent's configuration."""
    objects = rendered_objects(resource, **more).values()
    texts = [
        text
        for one in objects
        if one["kind"] == "ConfigMap"
        for name, text in one["data"].items()
        if name in ("agent.yaml", "scrape_config.yaml")
    ]
    (text,) = texts
    return dict(load_yaml(text))


def agent_errors(config: Mapping[str, Any]) -> list[str]:
    """The errors of the agent's parser for a configuration."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "agent.yaml"
        file.write_text(yaml.safe_dump(config), encoding="utf-8")
        try:
            read_agent_config(file, {})
        except UsageError as error:
            return [str(one).removeprefix(f"{file}: ") for one in error.errors]
    return []


def check_agent_config(run: ProgramRun) -> list[ProgramProblem]:
    """The same as a ProgramCheck for rendering."""
    return [ProgramProblem("configuration", error) for error in agent_errors(run.configuration)]


def pods(objects: Mapping[str, Json]) -> Iterator[Json]:
    """The pod specs of all workloads."""
    for one in objects.values():
        if one["kind"] in ("DaemonSet", "StatefulSet"):
            yield one["spec"]["template"]["spec"]
        elif one["kind"] == "CronJob":
            yield one["spec"]["jobTemplate"]["spec"]["template"]["spec"]
