"""The WhatapAgent resources of document 002, as it has them."""

from __future__ import annotations

from typing import Any

import yaml

Json = dict[str, Any]

_AGENT = """
    openAgent:
      enabled: true
      globalInterval: "15s"
      globalPath: "/metrics"
      targets:
        - targetName: "{name}"
          type: "PodMonitor"
          enabled: true
          namespaceSelector:
            matchNames:
              - "whatap-monitoring"
          selector:
            matchLabels:
              name: "whatap-node-agent"
          endpoints:
            - port: "9400"
              path: "/metrics"
              interval: "15s"
              scheme: "http"
"""
_CUSTOMER = """\
        - targetName: "customer-dcgm-exporter"
          type: "PodMonitor"
          enabled: true
          namespaceSelector:
            matchNames:
              - "gpu-monitoring"
              - "default"
          selector:
            matchLabels:
              app: "custom-dcgm"
              component: "gpu-exporter"
          endpoints:
            - port: "9400"
              path: "/metrics"
              interval: "15s"
              scheme: "http"
"""
_GPU = """
    k8sAgent:
      masterAgent:
        enabled: true
      nodeAgent:
        enabled: true
      gpuMonitoring:
        enabled: {gpu}
"""
_SIMPLE = """
    openAgent:
      enabled: true
"""
_TOLERATIONS = """
    k8sAgent:
      nodeAgent:
        enabled: true
        tolerations:
          - key: "nvidia.com/gpu"
            operator: "Exists"
            effect: "NoSchedule"
          - key: "gpu"
            operator: "Exists"
            effect: "NoSchedule"
      gpuMonitoring:
        enabled: true
"""


def _spec(*parts: str) -> Json:
    found: Json = yaml.safe_load("features:\n" + "".join(parts))
    return found


# By the heading under which it stands; the lines of the document are beside them.
EXAMPLES: dict[str, Json] = {
    # 135
    "basic": _spec(_AGENT.format(name="dcgm-exporter"), _GPU.format(gpu="true")),
    # 176
    "simple": _spec(_SIMPLE, _GPU.format(gpu="true")),
    # 200
    "customer": _spec(_AGENT.format(name="whatap-dcgm-exporter"), _CUSTOMER, _GPU.format(gpu="false")),
    # 285
    "hybrid": _spec(_AGENT.format(name="whatap-dcgm-exporter"), _CUSTOMER, _GPU.format(gpu="true")),
    # 294
    "tolerations": _spec(_TOLERATIONS),
}
