"""What objects are called, where they are, and by which labels they are found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from gpuledger.kubernetes.access import MANAGER
from gpuledger.operator.facts import Facts, Owner
from gpuledger.operator.spec import WHATAP_AGENT, GpuMonitor

Manifest = dict[str, Any]
Labels = dict[str, str]

MONITOR: Final = "gpuledger.dev/monitor"
MONITOR_KIND: Final = "gpuledger.dev/monitor-kind"
ENGINE: Final = "gpuledger.dev/engine"
COMPONENT: Final = "app.kubernetes.io/component"


def owned_by(owner: Owner) -> Labels:
    """The labels that all objects of a resource have, and no others."""
    return {"app.kubernetes.io/managed-by": MANAGER, MONITOR: owner.name, MONITOR_KIND: owner.kind}


@dataclass(frozen=True, slots=True)
class Names:
    """Of the objects of one resource. Those of a WhatapAgent are as its manual has them."""

    namespace: str
    exporter: str
    exporter_container: str
    exporter_account: str
    exporter_service: str
    agent: str
    agent_account: str
    agent_binding: str
    agent_config: str
    agent_file: str


def names_of(monitor: GpuMonitor, facts: Facts) -> Names:
    """The same for the same resource, always."""
    if monitor.kind == WHATAP_AGENT:
        return Names(
            namespace=facts.whatap_namespace,
            exporter="whatap-node-agent",
            exporter_container="dcgm-exporter",
            exporter_account="whatap-node-agent",
            exporter_service="dcgm-exporter-service",
            agent="whatap-open-agent",
            agent_account="whatap-open-agent-sa",
            agent_binding="whatap-open-agent-role-binding",
            agent_config="whatap-open-agent-config",
            agent_file="scrape_config.yaml",
        )
    exporter, agent = (f"gpumonitor-{monitor.name}-{part}" for part in ("exporter", "agent"))
    return Names(
        namespace=facts.namespace,
        exporter=exporter,
        exporter_container="exporter",
        exporter_account=exporter,
        exporter_service=exporter,
        agent=agent,
        agent_account=agent,
        agent_binding=agent,
        agent_config=agent,
        agent_file="agent.yaml",
    )


@dataclass(frozen=True, slots=True)
class Naming:
    """Names and labels of one resource's objects, and the owner that they all name."""

    monitor: GpuMonitor
    facts: Facts
    names: Names

    @property
    def whatap(self) -> bool:
        """The objects are those of the WhatapAgent's manual."""
        return self.monitor.kind == WHATAP_AGENT

    def selector(self, component: str) -> Labels:
        """Labels by which the pods of a component are chosen: never another set, which Kubernetes forbids."""
        if self.whatap:
            return {"name": "whatap-node-agent"} if component == "exporter" else {"app": "whatap-open-agent"}
        return {MONITOR: self.monitor.name, MONITOR_KIND: self.monitor.kind, COMPONENT: component}

    def labels(self, component: str) -> Labels:
        """Labels of an object or a pod of a component."""
        # An agent that looks for exporters by the labels of their manifests must find each once: those of a
        # WhatapAgent have a label of their own.
        own = {"whatap-gpu": "true"} if self.whatap and component == "exporter" else {}
        app = {} if own else {"app.kubernetes.io/name": "gpuledger"}
        return {
            **app,
            **own,
            COMPONENT: component,
            **owned_by(self.facts.owner),
            **self.selector(component),
        }

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
        """An object that belongs to the resource."""
        owner = self.facts.owner
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


def naming_of(monitor: GpuMonitor, facts: Facts) -> Naming:
    """Of a resource."""
    return Naming(monitor, facts, names_of(monitor, facts))
