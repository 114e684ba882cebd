"""The exporters that are found when no target is named: by the labels that their own manifests give them."""

from __future__ import annotations

from typing import Final

from gpuledger.agent.discovery.selection import POD_MONITOR, EndpointSettings, Selection
from gpuledger.agent.kubernetes.selectors import Expression, NamespaceSelector, Selector
from gpuledger.agent.scrape.settings import ScrapeSettings

_APP: Final = "app.kubernetes.io/name"
# Who has one of these is found by it, and is not to be found a second time by another label.
_NAMED: Final = ("gpuledger", "dcgm-exporter", "gke-managed-dcgm-exporter", "nvidia-gpu-exporter")
_NOT_NAMED: Final = Expression(_APP, "NotIn", _NAMED)

# targetName, labels, what else must hold, port, and whose manifests say so.
USUAL: Final = (
    # This project's chart and manifests; its agent and operator have no GPUs to tell of.
    (
        *("gpuledger", (_APP, "gpuledger")),
        *((Expression("app.kubernetes.io/component", "NotIn", ("agent", "operator")),), "metrics"),
    ),
    # github.com/NVIDIA/dcgm-exporter: its Helm chart and dcgm-exporter.yaml.
    ("dcgm-exporter", (_APP, "dcgm-exporter"), (), "metrics"),
    # NVIDIA's GPU Operator.
    ("nvidia-dcgm-exporter", ("app", "nvidia-dcgm-exporter"), (_NOT_NAMED,), "metrics"),
    # Google Kubernetes Engine's own, in gke-managed-system.
    ("gke-managed-dcgm-exporter", (_APP, "gke-managed-dcgm-exporter"), (), "metrics"),
    # The DaemonSets of a WhatapAgent resource, with and without a node selector for GPUs.
    ("dcgm-exporter-auto", ("name", "whatap-node-agent"), (_NOT_NAMED,), "9400"),
    ("dcgm-exporter-auto-gpu", ("name", "whatap-node-agent-gpu"), (_NOT_NAMED,), "9400"),
    # github.com/utkuozdemir/nvidia_gpu_exporter: its Helm chart.
    ("nvidia-gpu-exporter", (_APP, "nvidia-gpu-exporter"), (), "http"),
)


def usual_exporters(settings: ScrapeSettings, path: str) -> list[Selection]:
    """A selection for each of USUAL, in all namespaces, with the node's name on every series."""
    return [
        Selection(
            name,
            POD_MONITOR,
            NamespaceSelector(),
            Selector((label,), expressions),
            (EndpointSettings(port, "http", path, {}, settings, add_node_label=True),),
        )
        for name, label, expressions, port in USUAL
    ]
