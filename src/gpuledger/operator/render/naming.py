"""Names, namespaces, labels and owner references of the objects of a resource."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from gpuledger.kubernetes.access import FIELD_MANAGER
from gpuledger.operator.render_context import MonitorReference, RenderContext
from gpuledger.operator.spec import WHATAP_AGENT, GpuMonitor

Manifest = dict[str, Any]
Labels = dict[str, str]

MONITOR: Final = "gpuledger.dev/monitor"
MONITOR_KIND: Final = "gpuledger.dev/monitor-kind"
ENGINE: Final = "gpuledger.dev/engine"
COMPONENT: Final = "app.kubernetes.io/component"
# The label of pods of Jobs, as in the chart: it distinguishes them from those of a DaemonSet.
JOB_PREFIX: Final = "job-name-prefix"


def owned_by(owner: MonitorReference) -> Labels:
    """Labels that identify all objects of a resource."""
    return {"app.kubernetes.io/managed-by": FIELD_MANAGER, MONITOR: owner.name, MONITOR_KIND: owner.kind}


@dataclass(frozen=True, slots=True)
class Names:
    """Names of the objects of one resource; the exporter also names its ServiceAccount and ConfigMap.

    Those of a WhatapAgent follow its manual.
    """

    namespace: str
    exporter: str
    exporter_container: str
    exporter_service: str
    agent: str
    agent_account: str
    agent_binding: str
    agent_config: str
    agent_file: str


@dataclass(frozen=True, slots=True)
class Naming:
    """Names, labels and owner reference of the objects of one resource."""

    monitor: GpuMonitor
    context: RenderContext

    @property
    def names(self) -> Names:
        """The names of the objects; they depend only on the kind and name of the resource."""
        if self.whatap:
            return Names(
                namespace=self.context.whatap_namespace,
                exporter="whatap-node-agent",
                exporter_container="dcgm-exporter",
                exporter_service="dcgm-exporter-service",
                agent="whatap-open-agent",
                agent_account="whatap-open-agent-sa",
                agent_binding="whatap-open-agent-role-binding",
                agent_config="whatap-open-agent-config",
                agent_file="scrape_config.yaml",
            )
        exporter, agent = (f"gpumonitor-{self.monitor.name}-{part}" for part in ("exporter", "agent"))
        return Names(
            namespace=self.context.namespace,
            exporter=exporter,
            exporter_container="exporter",
            exporter_service=exporter,
            agent=agent,
            agent_account=agent,
            agent_binding=agent,
            agent_config=agent,
            agent_file="agent.yaml",
        )

    @property
    def whatap(self) -> bool:
        """Whether the resource is a WhatapAgent."""
        return self.monitor.kind == WHATAP_AGENT

    def selector(self, component: str) -> Labels:
        """Labels that select the pods of a component. They are immutable in a DaemonSet or StatefulSet."""
        if self.whatap:
            return {"name": "whatap-node-agent"} if component == "exporter" else {"app": "whatap-open-agent"}
        return {MONITOR: self.monitor.name, MONITOR_KIND: self.monitor.kind, COMPONENT: component}

    def labels(self, component: str) -> Labels:
        """Labels of an object or a pod of a component."""
        # Agents that discover exporters by label must find each once, so those of a WhatapAgent have only
        # their own label.
        found = {"app.kubernetes.io/name": "gpuledger"}
        if self.whatap and component == "exporter":
            found = {"whatap-gpu": "true"}
        found[COMPONENT] = component
        return found | owned_by(self.context.owner) | self.selector(component)

    def object(
        self,
        api_version: str,
        kind: str,
        name: str,
        component: str,
        *,
        labels: Mapping[str, str] | None = None,
        cluster: bool = False,
        **content: Any,
    ) -> Manifest:
        """An object that is owned by the resource."""
        owner = self.context.owner
        return {
            "apiVersion": api_version,
            "kind": kind,
            "metadata": {
                "name": name,
                **({} if cluster else {"namespace": self.names.namespace}),
                "labels": {**self.labels(component), **(labels or {})},
                "ownerReferences": [
                    {
                        "apiVersion": owner.api_version,
                        "kind": owner.kind,
                        "name": owner.name,
                        "uid": owner.uid,
                        "controller": True,
                        "blockOwnerDeletion": True,
                    }
                ],
            },
            **content,
        }
