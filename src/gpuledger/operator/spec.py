"""What a resource asks for, read: the one shape of a GpuMonitor and of a translated WhatapAgent.

Parts that go into pods as they are (tolerations, affinity, environment, resources) stay in Kubernetes' own
words; so do targets, in those of the agent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

# The kinds of resources that users write.
GPU_MONITOR: Final = "GpuMonitor"
WHATAP_AGENT: Final = "WhatapAgent"

# A part of a resource in Kubernetes' own words. Nobody changes it.
Plain = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class GpuAccess:
    """How the container comes by the driver; the paths are the host's, for mode host."""

    mode: str = "env"
    cdi_device: str = "nvidia.com/gpu=all"
    driver_dir: str = ""
    library: str = "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"
    smi: str = "/usr/bin/nvidia-smi"


@dataclass(frozen=True, slots=True)
class GpuOperator:
    """NVIDIA's, beside which exporters run: its label on nodes, and where on them it says what is ready."""

    enabled: bool = False
    deploy_label: str = "nvidia.com/gpu.deploy.dcgm-exporter"
    validations_dir: str = "/run/nvidia/validations"


@dataclass(frozen=True, slots=True)
class WebConfig:
    """A Secret with a web config file, and one with certificates beside it; `scheme` is what it says."""

    secret: str
    scheme: str
    key: str = "web-config.yml"
    tls_secret: str = ""
    probe: str = "http"


@dataclass(frozen=True, slots=True)
class ExtraPort:
    """A further port with dialects of its own."""

    name: str
    port: int
    dialects: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Service:
    """What stands in front of the exporters; 0: as Kubernetes chooses, or the exporter's own port."""

    type: str = "ClusterIP"
    port: int = 0
    node_port: int = 0


@dataclass(frozen=True, slots=True)
class AutoTarget:
    """How the exporters of the same resource are scraped, where that was said."""

    interval: str = ""
    relabel: tuple[Plain, ...] = ()
    metric_relabel: tuple[Plain, ...] = ()


@dataclass(frozen=True, slots=True)
class Pods:
    """What exporters and agents have alike."""

    image: str = ""
    image_pull_policy: str = ""
    node_selector: Mapping[str, str] = field(default_factory=dict)
    affinity: Plain = field(default_factory=dict)
    # None: nothing was said.
    tolerations: tuple[Plain, ...] | None = None
    resources: Plain = field(default_factory=dict)
    env: tuple[Plain, ...] = ()
    args: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    priority_class: str = ""


@dataclass(frozen=True, slots=True)
class Exporter:
    """What runs on GPU nodes. Paths are the node's."""

    enabled: bool = True
    pods: Pods = Pods()
    source: str = "auto"
    devices: tuple[str, ...] = ()
    gpu_count: int = 0
    gpu_access: GpuAccess = GpuAccess()
    runtime_class: str = ""
    gpu_operator: GpuOperator = GpuOperator()
    accounting: bool = False
    dialects: tuple[str, ...] = ("native",)
    port: int = 9400
    metrics_path: str = "/metrics"
    extra_ports: tuple[ExtraPort, ...] = ()
    web_page: str = "landing"
    web_config: WebConfig | None = None
    collectors: str = ""
    pod_names: str = "auto"
    pod_label_allowlist: tuple[str, ...] = ()
    config: Plain = field(default_factory=dict)
    kubelet_dir: str = "/var/lib/kubelet"
    pod_logs: str = "/var/log"
    passwd_file: str = ""
    state_dir: str = "/var/lib/gpuledger"
    host_pid: bool = True
    host_network: bool = False
    capabilities: tuple[str, ...] = ("SYS_PTRACE",)
    sys_admin: bool = False
    update_strategy: str = "RollingUpdate"
    max_unavailable: int | str = "10%"
    service: Service | None = Service()

    @property
    def made_up(self) -> bool:
        """What is told needs no GPU, and is about none."""
        return self.source.startswith("simulator")

    @property
    def on_host(self) -> bool:
        """The driver is mounted from the host."""
        return self.gpu_access.mode == "host" and not self.made_up

    @property
    def keeps_books(self) -> bool:
        """On the node's disk, that is."""
        return bool(self.state_dir) and not self.made_up


@dataclass(frozen=True, slots=True)
class Persistence:
    """A volume for each replica of the agent."""

    size: str
    storage_class: str = ""


@dataclass(frozen=True, slots=True)
class Agent:
    """What scrapes and delivers. None stands for what was not said."""

    enabled: bool = True
    engine: str = "builtin"
    prometheus_image: str = ""
    replicas: int = 1
    global_interval: str = ""
    global_path: str = ""
    extra_scrape_metrics: bool | None = None
    auto_targets: bool | None = None
    # As in the resource, each key with what was said.
    targets: tuple[Plain, ...] | None = None
    auto: AutoTarget = AutoTarget()
    external_labels: Mapping[str, str] = field(default_factory=dict)
    remote_write: tuple[Plain, ...] = ()
    port: int = 9401
    persistence: Persistence | None = None
    pods: Pods = Pods()


@dataclass(frozen=True, slots=True)
class GpuMonitor:
    """One resource. `created` is its creationTimestamp, `kind` GpuMonitor or WhatapAgent; `agent_path` and
    `exporter_path` are where in the resource what is about them stands.
    """

    kind: str
    name: str
    created: str = ""
    exporter: Exporter = Exporter()
    agent: Agent = Agent()
    image_pull_secrets: tuple[Plain, ...] = ()
    agent_path: str = "spec.agent"
    exporter_path: str = "spec.exporter"

    @property
    def env_key(self) -> str:
        """What variables of its pods are called in it."""
        return "env" if self.kind == GPU_MONITOR else "envs"

    @property
    def key(self) -> str:
        """Which it is among all: kind and name."""
        return f"{self.kind}/{self.name}"


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One line for the resource's status. `path` is the field's, as
    `spec.features.openAgent.targets[0].endpoints[0].interval`.
    """

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message
