"""The CustomResourceDefinitions, made of the same trees that resources are read by.

Nothing in them is newer than Kubernetes 1.20: no CEL, no defaults, no webhook.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gpuledger.operator.schema.gpu_monitor import METADATA_NAME, SPEC
from gpuledger.operator.schema.nodes import INT64, Count, Each, Fields, Node, Schema, Text
from gpuledger.operator.schema.whatap_agent import WHATAP_NAME, WHATAP_SPEC

PART_OF: Final = "app.kubernetes.io/part-of"
OURS: Final = "gpuledger"

_CONDITION: Final = Fields(
    {
        "type": Text("Available, Progressing, Degraded, ReceiverMissing or FieldsIgnored."),
        "status": Text("Whether it is so.", words=("True", "False", "Unknown")),
        "reason": Text("In one word."),
        "message": Text("In a sentence, with the field's path where there is one."),
        "lastTransitionTime": Text("Since when."),
        "observedGeneration": Count("Of which generation this is said.", highest=INT64),
    },
    required=("type", "status"),
)
_STATUS: Final[Mapping[str, Node]] = {
    "observedGeneration": Count("The generation that was last looked at.", highest=INT64),
    "conditions": Each(_CONDITION, "How it stands."),
    "gpuNodes": Count("Nodes that are to have an exporter."),
    "exportersReady": Count("Exporters that answer."),
    "targetsFound": Count("Targets that the agent scrapes."),
    "targetsUp": Count("Targets whose last scrape succeeded."),
    "lastError": Text("What went wrong last."),
    "appliedSpec": Text(
        "The specification that was applied last, all of it, as JSON: what runs on while a newer one cannot."
    ),
}
_COLUMNS: Final = (
    ("GPU Nodes", "integer", ".status.gpuNodes", 0),
    ("Ready", "integer", ".status.exportersReady", 0),
    ("Targets", "integer", ".status.targetsFound", 0),
    ("Up", "integer", ".status.targetsUp", 0),
    ("Available", "string", '.status.conditions[?(@.type=="Available")].status', 0),
    ("Degraded", "string", '.status.conditions[?(@.type=="Degraded")].reason', 1),
    ("Error", "string", ".status.lastError", 1),
    ("Age", "date", ".metadata.creationTimestamp", 0),
)


def gpu_monitor_crd() -> Schema:
    """gpumonitors.gpuledger.dev."""
    about = "GPU nodes to monitor, and the agent that scrapes them and delivers."
    return _crd("gpuledger.dev", "GpuMonitor", "gpumonitors", "v1alpha1", about, METADATA_NAME, SPEC)


def whatap_agent_crd() -> Schema:
    """whatapagents.monitoring.whatap.com, as far as it is about GPUs."""
    about = "As Whatap's operator has it: GPU monitoring is heeded, the rest is kept and told as not heeded."
    group, name = "monitoring.whatap.com", "whatapagents"
    return _crd(group, "WhatapAgent", name, "v2alpha1", about, WHATAP_NAME, WHATAP_SPEC)


def foreign(definition: Mapping[str, Any]) -> str:
    """Why a CRD that is there is not to be used; empty for our own."""
    metadata = definition.get("metadata") or {}
    labels = metadata.get("labels") or {}
    if labels.get(PART_OF) == OURS:
        return ""
    return (
        f"the CRD {metadata.get('name', '')} is another operator's, and left alone: "
        "uninstall that operator and its CRD first, or set whatapCompat.enabled to false"
    )


def _crd(group: str, kind: str, plural: str, version: str, about: str, name: Text, spec: Node) -> Schema:
    status = Fields(_STATUS, "What became of it.").described()
    # Server-side apply may write one condition without the others.
    status["properties"]["conditions"] |= {
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
    }
    schema = {
        "description": about,
        "type": "object",
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object", "properties": {"name": name.openapi()}},
            "spec": spec.described(),
            "status": status,
        },
    }
    columns = [
        {"name": title, "type": type_, "jsonPath": path, **({"priority": far} if far else {})}
        for title, type_, path, far in _COLUMNS
    ]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}", "labels": {PART_OF: OURS}},
        "spec": {
            "group": group,
            "scope": "Cluster",
            "names": {"kind": kind, "listKind": f"{kind}List", "plural": plural, "singular": kind.lower()},
            "versions": [
                {
                    "name": version,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema},
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": columns,
                }
            ],
        },
    }
