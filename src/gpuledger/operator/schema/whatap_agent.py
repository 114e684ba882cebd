"""The keys of a WhatapAgent, `monitoring.whatap.com/v2alpha1`: what is heeded of it, and what is not.

Its own operator's schema lacks globalInterval and globalPath, which its manual has, and wants keys that its
manual leaves out; here both stand as in the manual. Whatever else it may hold is kept and told as not heeded.
"""

from __future__ import annotations

from typing import Final

from gpuledger.operator.schema.gpu_monitor import OPEN_AGENT
from gpuledger.operator.schema.nodes import Count, Fields, Node, Switch, Text, Unheeded
from gpuledger.operator.schema.pods import (
    ENVIRONMENT,
    NAME,
    PULL_SECRETS,
    TOLERATIONS,
    affinity,
    image,
    labels,
    notes,
    resources,
)
from gpuledger.operator.schema.scraping import AUTHORIZATION, INLINE, duration, relabelling, targets

_NODE_METRICS: Final = Unheeded("metrics of nodes are node_exporter's, not gpuledger's")
_RECEIVER: Final = Unheeded(
    "the vendor's server speaks no open protocol; name a remote-write receiver in "
    "spec.features.openAgent.remoteWrite or in the chart's operator.defaultRemoteWrite"
)
_OWN_IMAGE: Final = Unheeded("the agent is gpuledger's own; its image is the operator's")
_OBJECT: Final = Unheeded("objects bear the operator's labels; podLabels and podAnnotations are heeded")
_SECURITY: Final = Unheeded("pods get what they need and no more")

_OPEN_AGENT: Final = Fields(
    {
        "enabled": Switch("Run an agent that scrapes and delivers."),
        **OPEN_AGENT,
        "targets": targets(Fields({**AUTHORIZATION.keys, **INLINE}, AUTHORIZATION.about)),
        "resources": resources("What the agent gets."),
        "podLabels": labels("Labels of the pods."),
        "podAnnotations": notes("Annotations of the pods."),
        "imagePullSecrets": PULL_SECRETS,
        "priorityClassName": Text("A PriorityClass.", NAME, wanted="the name of a PriorityClass"),
        "nodeSelector": labels("Labels of the nodes to run on."),
        "affinity": affinity("Where to run."),
        "tolerations": TOLERATIONS,
        "envs": ENVIRONMENT,
        "imageName": _OWN_IMAGE,
        "imageVersion": _OWN_IMAGE,
        "customImageFullName": _OWN_IMAGE,
        "labels": _OBJECT,
        "annotations": _OBJECT,
        "nodeName": Unheeded("take nodeSelector"),
        "podSecurityContext": _SECURITY,
        "disableForeground": Unheeded("the agent has no such mode"),
    },
    "What scrapes exporters and delivers.",
    open=True,
)

_GPU_MONITORING: Final = Fields(
    {
        "enabled": Switch("Run the exporter on GPU nodes."),
        "customImageFullName": image("The image of the container dcgm-exporter, in place of the operator's."),
        "service": Fields(
            {
                "enabled": Switch("Make the Service dcgm-exporter-service."),
                "type": Text(
                    "ClusterIP where nothing is said.", words=("ClusterIP", "NodePort", "LoadBalancer")
                ),
                "nodePort": Count("For NodePort.", 0, 65535),
                "port": Count("9400 where nothing is said.", 1, 65535),
            },
            "What stands in front of the exporters.",
        ),
        "resources": resources("What the exporter gets."),
        "envs": ENVIRONMENT,
        "nodeSelector": labels(
            "Labels of the nodes to run on; left out: nodes with nvidia.com/gpu.present=true, "
            "nvidia.com/gpu=true or a label accelerator."
        ),
        "affinity": affinity("In place of the affinity to GPU nodes."),
        "interval": duration("How often the exporters are scraped."),
        "relabelConfigs": relabelling("Before the exporters are scraped."),
        "metricRelabelConfigs": relabelling("After the exporters are scraped."),
        "groupLabel": Text("A label of pods to tell.", r"^\S*$", wanted="the name of a label"),
        "groupLabelAllowlistRegex": Text("In place of groupLabel, several: app,team/*."),
        "clusterName": Text("Becomes the label cluster."),
        "devices": Unheeded("GPUs are always told, and their instances with them"),
        "sysAdmin": Switch(
            "Add SYS_ADMIN: for drivers that show profiling counters to administrators alone."
        ),
        "collectors": Text(
            "The collectors file whatap-gpu.csv; left out, one is made once, and may be edited in its place."
        ),
        "remoteHostEngineInfo": Unheeded("there is no host engine: the driver is read without DCGM"),
        "hostEngine": Unheeded("there is no host engine: the driver is read without DCGM"),
    },
    "The exporter on GPU nodes.",
    open=True,
)

_NODE_AGENT: Final[dict[str, Node]] = {
    "enabled": _NODE_METRICS,
    "tolerations": TOLERATIONS,
    "nodeSelector": labels("Labels of the nodes to run on, where gpuMonitoring says none."),
    "affinity": affinity("Where to run, where gpuMonitoring says nothing."),
    "imagePullSecrets": PULL_SECRETS,
    "priorityClassName": Text("A PriorityClass.", NAME, wanted="the name of a PriorityClass"),
    "podLabels": labels("Labels of the pods."),
    "podAnnotations": notes("Annotations of the pods."),
    "hostNetwork": Switch("Listen on the node's own addresses; false where nothing is said."),
    "hostPID": Switch("See the node's processes under their own pids; true where nothing is said."),
    "runtimeClassName": Text("nvidia where it is not the default.", NAME, wanted="a RuntimeClass"),
    "labels": _OBJECT,
    "annotations": _OBJECT,
    "podSecurityContext": _SECURITY,
    **dict.fromkeys(("resources", "envs", "nodeAgentContainer", "nodeHelperContainer"), _NODE_METRICS),
    **dict.fromkeys(("runtime", "runtimeSocketPath"), _NODE_METRICS),
}

_K8S_AGENT: Final = Fields(
    {
        "gpuMonitoring": _GPU_MONITORING,
        "nodeAgent": Fields(_NODE_AGENT, "Where the exporter's pods run, and how.", open=True),
        "masterAgent": Unheeded("metrics of the cluster are kube-state-metrics', not gpuledger's"),
        "namespace": Text("Where objects are made is the operator's to say: whatapCompat.namespace."),
        **{
            name: Unheeded("metrics of the control plane are not gpuledger's")
            for name in ("apiserverMonitoring", "etcdMonitoring", "schedulerMonitoring")
        },
        **{
            name: Unheeded("these are images of agents that are not run here")
            for name in ("agentImageName", "agentImageVersion", "customImageFullName")
        },
        "customAgentImageFullName": Unheeded("these are images of agents that are not run here"),
        "imagePullSecrets": PULL_SECRETS,
    },
    "What runs on nodes.",
    open=True,
)

WHATAP_SPEC: Final = Fields(
    {
        "license": _RECEIVER,
        "host": _RECEIVER,
        "port": _RECEIVER,
        "features": Fields(
            {
                "openAgent": _OPEN_AGENT,
                "k8sAgent": _K8S_AGENT,
                "apm": Unheeded("applications are not gpuledger's to monitor"),
            },
            "What is wanted.",
            open=True,
        ),
    },
    "What is wanted.",
    open=True,
)

# Its objects have fixed names, so there is one of it; its own operator takes no other name either.
WHATAP_NAME: Final = Text(pattern="^whatap$", wanted="the name whatap", longest=6)
