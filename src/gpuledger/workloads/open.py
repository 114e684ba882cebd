"""The maps of owners that the settings ask for, joined."""

from __future__ import annotations

from collections.abc import Mapping
from socket import gethostname

from gpuledger.model.source import Clock
from gpuledger.workloads.knowledge import Maps
from gpuledger.workloads.pods.open import open_kubernetes
from gpuledger.workloads.pods.settings import KubernetesSettings, is_enabled, node_name


def open_maps(
    kubernetes: KubernetesSettings, given_node: str, environment: Mapping[str, str], clock: Clock
) -> Maps:
    """Maps that have not begun to be read; none at all where nothing of this machine is to be asked.

    Raises UsageError for settings that cannot be honoured, GpuledgerError for a kubeconfig that cannot be
    used.
    """
    if not is_enabled(kubernetes, environment):
        return Maps()
    node = node_name(given_node, environment, gethostname())
    cluster = open_kubernetes(kubernetes, node, environment, clock)
    maps = [*cluster.pods.maps]
    return Maps(maps, pods=lambda: cluster.pods.value)
