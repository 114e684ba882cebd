"""The schema of a WhatapAgent, `monitoring.whatap.com/v2alpha1`: honored and ignored keys.

The CRD of Whatap's operator lacks globalInterval and globalPath, which its manual describes, and requires
keys that the manual omits; this schema follows the manual. Unknown keys are stored and reported as ignored.
"""

from __future__ import annotations

from typing import Final

from gpuledger.operator.schema.nodes import (
    BooleanNode,
    IgnoredNode,
    IntegerNode,
    ObjectNode,
    SchemaNode,
    TextNode,
)
from gpuledger.operator.schema.pods import (
    ENVIRONMENT,
    PULL_SECRETS,
    TOLERATIONS,
    affinity_node,
    image_node,
    labels_node,
    resources_node,
)
from gpuledger.operator.schema.scraping import (
    AUTHORIZATION,
    INLINE_CREDENTIALS,
    duration_node,
    relabel_node,
    targets_node,
)
from gpuledger.operator.spec import AGENT, EXPORTER
from gpuledger.operator.spec_sections import PRIORITY_CLASS

_NODE_METRICS: Final = IgnoredNode("gpuledger does not export node metrics; use node_exporter")
_RECEIVER: Final = IgnoredNode(
    "the vendor's server has no open protocol; set a remote-write receiver in "
    "spec.features.openAgent.remoteWrite or in the chart's operator.defaultRemoteWrite"
)
_OWN_IMAGE: Final = IgnoredNode("the agent is gpuledger's own and uses the operator's image")
_OBJECT: Final = IgnoredNode("objects have the operator's labels; use podLabels and podAnnotations")
_SECURITY: Final = IgnoredNode("the operator sets the permissions that the pods need")

# Keys with the same meaning as in a GpuMonitor.
_SHARED: Final = (
    "engine",
    "prometheusImage",
    "replicas",
    "globalInterval",
    "globalPath",
    "extraScrapeMetrics",
    "autoTargets",
    "externalLabels",
    "remoteWrite",
)
TARGETS: Final = targets_node(
    ObjectNode({**AUTHORIZATION.keys, **INLINE_CREDENTIALS}, AUTHORIZATION.description)
)
_OPEN_AGENT: Final = ObjectNode(
    {
        "enabled": BooleanNode("Run an agent that scrapes targets and sends the samples."),
        **{key: AGENT.keys[key] for key in _SHARED},
        "targets": TARGETS,
        "resources": resources_node("Requests and limits of the agent."),
        **{key: AGENT.keys[key] for key in ("podLabels", "podAnnotations")},
        "imagePullSecrets": PULL_SECRETS,
        "priorityClassName": PRIORITY_CLASS,
        "nodeSelector": labels_node("Labels of the nodes to run on."),
        "affinity": affinity_node("Affinity of the pods."),
        "tolerations": TOLERATIONS,
        "envs": ENVIRONMENT,
        **dict.fromkeys(("imageName", "imageVersion", "customImageFullName"), _OWN_IMAGE),
        **dict.fromkeys(("labels", "annotations"), _OBJECT),
        "nodeName": IgnoredNode("use nodeSelector"),
        "podSecurityContext": _SECURITY,
        "disableForeground": IgnoredNode("the agent has no such mode"),
    },
    "The agent that scrapes exporters and sends the samples.",
    open=True,
)

_GPU_MONITORING: Final = ObjectNode(
    {
        "enabled": BooleanNode("Run the exporter on GPU nodes."),
        "customImageFullName": image_node(
            "Image of the container dcgm-exporter; the operator's image by default."
        ),
        "service": ObjectNode(
            {
                "enabled": BooleanNode("Create the Service dcgm-exporter-service."),
                "type": TextNode("ClusterIP by default.", choices=("ClusterIP", "NodePort", "LoadBalancer")),
                "nodePort": IntegerNode("Node port, for type NodePort.", 0, 65535),
                "port": IntegerNode("Port of the Service; 9400 by default.", 1, 65535),
            },
            "The Service in front of the exporters.",
        ),
        "resources": resources_node("Requests and limits of the exporter."),
        "envs": ENVIRONMENT,
        "nodeSelector": EXPORTER.keys["nodeSelector"],
        "affinity": EXPORTER.keys["affinity"],
        "interval": duration_node("Scrape interval of the exporters."),
        "relabelConfigs": relabel_node("Relabeling of the exporters' targets, before the scrape."),
        "metricRelabelConfigs": relabel_node("Relabeling after the scrape of the exporters."),
        "groupLabel": TextNode("A pod label to export.", r"^\S*$", expected="the name of a label"),
        "groupLabelAllowlistRegex": TextNode(
            "Several pod labels to export, instead of groupLabel: app,team/*."
        ),
        "clusterName": TextNode("Value of the label cluster."),
        "devices": IgnoredNode("all GPUs and their instances are exported"),
        "sysAdmin": EXPORTER.keys["sysAdmin"],
        "collectors": TextNode(
            "The collectors file whatap-gpu.csv; by default the operator creates one that you can edit."
        ),
        **dict.fromkeys(
            ("remoteHostEngineInfo", "hostEngine"),
            IgnoredNode("there is no host engine: gpuledger reads the driver without DCGM"),
        ),
    },
    "The exporter on GPU nodes.",
    open=True,
)

_NODE_AGENT: Final[dict[str, SchemaNode]] = {
    "enabled": _NODE_METRICS,
    "tolerations": TOLERATIONS,
    "nodeSelector": labels_node("Labels of the nodes to run on, unless gpuMonitoring sets them."),
    "affinity": affinity_node("Affinity of the pods, unless gpuMonitoring sets it."),
    "imagePullSecrets": PULL_SECRETS,
    "priorityClassName": PRIORITY_CLASS,
    **{key: EXPORTER.keys[key] for key in ("podLabels", "podAnnotations", "hostNetwork", "hostPID")},
    "runtimeClassName": EXPORTER.keys["runtimeClassName"],
    "labels": _OBJECT,
    "annotations": _OBJECT,
    "podSecurityContext": _SECURITY,
    **dict.fromkeys(
        ("resources", "envs", "nodeAgentContainer", "nodeHelperContainer", "runtime", "runtimeSocketPath"),
        _NODE_METRICS,
    ),
}

_K8S_AGENT: Final = ObjectNode(
    {
        "gpuMonitoring": _GPU_MONITORING,
        "nodeAgent": ObjectNode(_NODE_AGENT, "Settings of the exporter's pods.", open=True),
        "masterAgent": IgnoredNode("gpuledger does not export cluster metrics; use kube-state-metrics"),
        "namespace": TextNode("Ignored: whatapCompat.namespace of the chart names the namespace."),
        **dict.fromkeys(
            ("apiserverMonitoring", "etcdMonitoring", "schedulerMonitoring"),
            IgnoredNode("gpuledger does not export control-plane metrics"),
        ),
        **dict.fromkeys(
            ("agentImageName", "agentImageVersion", "customImageFullName", "customAgentImageFullName"),
            IgnoredNode("it is the image of an agent that gpuledger does not run"),
        ),
        "imagePullSecrets": PULL_SECRETS,
    },
    "The agents on nodes.",
    open=True,
)

WHATAP_SPEC: Final = ObjectNode(
    {
        **dict.fromkeys(("license", "host", "port"), _RECEIVER),
        "features": ObjectNode(
            {
                "openAgent": _OPEN_AGENT,
                "k8sAgent": _K8S_AGENT,
                "apm": IgnoredNode("gpuledger does not monitor applications"),
            },
            "The monitoring features.",
            open=True,
        ),
    },
    "The desired monitoring.",
    open=True,
)

# Only one WhatapAgent can exist: its objects have fixed names. Whatap's operator allows no other name,
# either.
WHATAP_NAME: Final = TextNode(pattern="^whatap$", expected="the name whatap", max_length=6)
