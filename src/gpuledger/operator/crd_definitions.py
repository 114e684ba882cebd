"""The CustomResourceDefinitions, generated from the schema nodes that also parse the resources.

They work with Kubernetes 1.20: no defaults, no webhook. The chart leaves their CEL rules out below Kubernetes
1.30. Targets are described but not restricted, because one bad target would refuse the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gpuledger.operator.kinds import GPU_MONITOR_KIND, WHATAP_AGENT_KIND, ObjectKind
from gpuledger.operator.schema.nodes import (
    INT64,
    BooleanNode,
    IntegerNode,
    ListNode,
    ObjectNode,
    OpenApiSchema,
    SchemaNode,
    TextNode,
)
from gpuledger.operator.spec import METADATA_NAME, SPEC
from gpuledger.operator.whatap_spec import WHATAP_NAME, WHATAP_SPEC

PART_OF: Final = "app.kubernetes.io/part-of"
OURS: Final = "gpuledger"

_CONDITION: Final = ObjectNode(
    {
        "type": TextNode(
            "Available, Progressing, Degraded, ReceiverMissing, ServerWarnings or FieldsIgnored."
        ),
        "status": TextNode("Whether the condition holds.", choices=("True", "False", "Unknown")),
        "reason": TextNode("The reason for the status, in one word."),
        "message": TextNode("The reason for people; names the path of the field, if any."),
        "lastTransitionTime": TextNode("When the status last changed."),
        "observedGeneration": IntegerNode("The generation that the condition describes.", maximum=INT64),
    },
    required=("type", "status"),
)
_STATUS: Final[Mapping[str, SchemaNode]] = {
    "observedGeneration": IntegerNode("The last generation that was reconciled.", maximum=INT64),
    "conditions": ListNode(_CONDITION, "The current state, as conditions."),
    "gpuNodes": IntegerNode("Number of nodes that should run an exporter."),
    "exportersReady": IntegerNode("Number of exporters that are ready."),
    "targetsFound": IntegerNode("Number of targets of the agent."),
    "targetsUp": IntegerNode("Number of targets that are up: the last scrape succeeded."),
    "nodes": ListNode(
        ObjectNode(
            {
                "name": TextNode("Name of the node."),
                "ready": BooleanNode("Whether the exporter is ready."),
                "gpus": IntegerNode("Number of GPUs; absent while it is not known."),
                "driver": TextNode("Version of the driver; absent while it is not known."),
                "error": TextNode("What is wrong with the exporter or a GPU; absent if nothing is."),
            },
            required=("name", "ready"),
        ),
        "The first hundred nodes with an exporter, those with errors first.",
    ),
    "nodesOmitted": IntegerNode("Number of nodes that are not in nodes; absent if all are."),
    "lastError": TextNode("The current error; absent if there is none."),
    "appliedSpec": TextNode(
        "The last applied specification, as JSON. It keeps running while a newer one is refused."
    ),
}
_COLUMNS: Final = (
    ("GPU Nodes", "integer", ".status.gpuNodes", 0),
    ("Ready", "integer", ".status.exportersReady", 0),
    ("Targets", "integer", ".status.targetsFound", 0),
    ("Up", "integer", ".status.targetsUp", 0),
    ("Available", "string", '.status.conditions[?(@.type=="Available")].status', 0),
    ("Degraded", "string", '.status.conditions[?(@.type=="Degraded")].reason', 0),
    ("Error", "string", ".status.lastError", 1),
    ("Age", "date", ".metadata.creationTimestamp", 0),
)


def gpu_monitor_crd() -> OpenApiSchema:
    """The CRD gpumonitors.gpuledger.dev."""
    description = "GPU nodes to monitor, and the agent that scrapes their exporters and sends the samples."
    return _crd(GPU_MONITOR_KIND, description, METADATA_NAME, SPEC)


def whatap_agent_crd() -> OpenApiSchema:
    """The CRD whatapagents.monitoring.whatap.com, limited to GPU monitoring."""
    description = (
        "The resource of Whatap's operator. Fields about GPU monitoring are honored; all others are stored "
        "and reported as ignored."
    )
    return _crd(WHATAP_AGENT_KIND, description, WHATAP_NAME, WHATAP_SPEC)


def foreign_definition(definition: Mapping[str, Any]) -> str:
    """Why an existing CRD cannot be used: it is another operator's. Empty for our own."""
    metadata = definition.get("metadata") or {}
    if (metadata.get("labels") or {}).get(PART_OF) == OURS:
        return ""
    return (
        f"the CRD {metadata.get('name', '')} belongs to another operator and is left unchanged: "
        "uninstall that operator and its CRD first, or set whatapCompat.enabled to false"
    )


def _crd(resource: ObjectKind, description: str, name: TextNode, spec: SchemaNode) -> OpenApiSchema:
    kind, plural = resource.kind, resource.plural
    group, _, version = resource.api_version.partition("/")
    status = ObjectNode(_STATUS, "The observed state, written by the operator.").described()
    # Allows server-side apply to write a single condition.
    status["properties"]["conditions"] |= {
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
    }
    schema = {
        "description": description,
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
        {"name": title, "type": type_, "jsonPath": path, **({"priority": priority} if priority else {})}
        for title, type_, path, priority in _COLUMNS
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
