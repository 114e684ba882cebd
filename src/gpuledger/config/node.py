"""The Settings of each command that runs on a node, under the titles that --help shows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpuledger.config.dcgm import DcgmExporterSettings
from gpuledger.config.exporter_flags import NvidiaGpuExporterSettings
from gpuledger.config.report import ExplainSettings, ReportSettings
from gpuledger.config.settings import LogSettings
from gpuledger.dialects.settings import DcgmSettings, DialectSettings, SmiDialectSettings
from gpuledger.host.settings import HostSettings
from gpuledger.http.hosts import HostNames
from gpuledger.http.limits import Limits
from gpuledger.http.settings import HttpSettings
from gpuledger.kubernetes.settings import KubernetesSettings
from gpuledger.ledger.report.settings import FleetSettings, Prices
from gpuledger.ledger.settings import LedgerSettings, StoreSettings
from gpuledger.model.settings import build
from gpuledger.node.settings import CensusSettings, ControlSettings, NodeSettings, ReloadSettings
from gpuledger.outputs.settings import TextfileSettings
from gpuledger.sources.dcgm_exporter.settings import DcgmExporterSourceSettings
from gpuledger.sources.settings import SourceSettings
from gpuledger.sources.smi.settings import SmiSettings
from gpuledger.terminal.settings import NodeAccessSettings, TopSettings
from gpuledger.web.settings import WebSettings
from gpuledger.workloads.containers.settings import ContainerSettings
from gpuledger.workloads.job_map.settings import JobMapSettings
from gpuledger.workloads.open import OwnerIndexSettings
from gpuledger.workloads.pod_resources.settings import PodResourcesSettings
from gpuledger.workloads.slurm.settings import SlurmSettings

NODE: dict[str, type] = {
    "where readings come from": SourceSettings,
    "nvidia-smi": SmiSettings,
    "how often": NodeSettings,
    "what should be there": CensusSettings,
    "where metrics are served": HttpSettings,
    "under which names": HostNames,
    "how much of it clients may use": Limits,
    "what is told": DialectSettings,
    "how dcgm tells it": DcgmSettings,
    "how smi tells it": SmiDialectSettings,
    "how much is told": LedgerSettings,
    "how the books are kept": StoreSettings,
    "the page people look at": WebSettings,
    "what energy and time cost": Prices,
    "this machine": HostSettings,
    "whose pods": KubernetesSettings,
    "which GPUs pods have": PodResourcesSettings,
    "whose jobs": SlurmSettings,
    "jobs by file": JobMapSettings,
    "whose containers": ContainerSettings,
    "how it is told to pause": ControlSettings,
    "how changed settings are found": ReloadSettings,
    "log": LogSettings,
    "profiling metrics of older GPUs": DcgmExporterSourceSettings,
    "flags of dcgm-exporter, and what they mean": DcgmExporterSettings,
    "flags of nvidia_gpu_exporter, and what they mean": NvidiaGpuExporterSettings,
}

# Of no use to a command that writes a file.
_SERVED = (
    HttpSettings,
    HostNames,
    Limits,
    WebSettings,
    Prices,
    ReloadSettings,
    DcgmExporterSettings,
    NvidiaGpuExporterSettings,
)

COLLECT: dict[str, type] = {
    "where it is written": TextfileSettings,
    **{title: group for title, group in NODE.items() if group not in _SERVED},
}

# A view writes nothing and serves nobody.
_TOP = (
    SourceSettings,
    SmiSettings,
    NodeSettings,
    LedgerSettings,
    HostSettings,
    KubernetesSettings,
    PodResourcesSettings,
    SlurmSettings,
    JobMapSettings,
    ContainerSettings,
    LogSettings,
)

TOP: dict[str, type] = {
    "what is shown": TopSettings,
    "another node": NodeAccessSettings,
    **{title: group for title, group in NODE.items() if group in _TOP},
}

# One file serves all commands: what is none of a command's own settings may still stand in it.
_REPORTS = (Prices, FleetSettings, ReportSettings, ExplainSettings)
EVERYTHING: tuple[type, ...] = tuple({*NODE.values(), *COLLECT.values(), *TOP.values(), *_REPORTS})


def owner_index_settings(values: Mapping[str, Any]) -> OwnerIndexSettings:
    """The maps that these values (`config.assemble`) ask for."""
    return OwnerIndexSettings(
        build(KubernetesSettings, values),
        build(PodResourcesSettings, values),
        build(SlurmSettings, values),
        build(JobMapSettings, values),
        build(ContainerSettings, values),
        build(DialectSettings, values).node_name,
    )
