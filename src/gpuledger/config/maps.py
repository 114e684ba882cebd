"""What is set about maps of owners, each part declared by its own package."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpuledger.dialects.settings import DialectSettings
from gpuledger.model.settings import build
from gpuledger.workloads.containers.settings import ContainerSettings
from gpuledger.workloads.job_map.settings import JobMapSettings
from gpuledger.workloads.open import MapSettings
from gpuledger.workloads.pod_resources.settings import PodResourcesSettings
from gpuledger.workloads.pods.settings import KubernetesSettings
from gpuledger.workloads.slurm.settings import SlurmSettings


def map_settings(values: Mapping[str, Any]) -> MapSettings:
    """The maps that these values (`config.assemble`) ask for."""
    return MapSettings(
        build(KubernetesSettings, values),
        build(PodResourcesSettings, values),
        build(SlurmSettings, values),
        build(JobMapSettings, values),
        build(ContainerSettings, values),
        build(DialectSettings, values).node_name,
    )
