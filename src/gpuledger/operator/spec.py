"""The specification of a GpuMonitor: each field once, with its schema, default and description.

A WhatapAgent is translated into the same sections. Parts that are copied into pods (tolerations, affinity,
environment, resources) keep Kubernetes' own form, targets that of the agent's configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from gpuledger.operator.schema import cel_rules
from gpuledger.operator.schema.nodes import (
    BooleanNode,
    IntegerNode,
    IntOrStringNode,
    ListNode,
    ObjectNode,
    TextNode,
)
from gpuledger.operator.schema.pods import (
    PLAIN,
    PULL_SECRETS,
    affinity_node,
    image_node,
    labels_node,
    name_node,
)
from gpuledger.operator.schema.scraping import EXTERNAL_LABELS, REMOTE_WRITE, duration_node, targets_node
from gpuledger.operator.schema.sections import section, spec_field, text_field
from gpuledger.operator.spec_sections import (
    DIALECT,
    AutoTarget,
    CronJobSettings,
    ExporterService,
    ExtraPort,
    FollowGpuOperator,
    GpuAccess,
    NodeTextfile,
    Persistence,
    Plain,
    PodFirewall,
    PodSettings,
    UpdateStrategy,
    WebConfigSecret,
    host_path,
)
from gpuledger.sources.settings import MACHINES

# The kinds of custom resources.
GPU_MONITOR: Final = "GpuMonitor"
WHATAP_AGENT: Final = "WhatapAgent"
# What `--source` accepts, for RE2 and Python. The chart's schema has it, too.
SOURCE_PATTERN: Final = f"^({'|'.join(MACHINES).replace('+', '[+]')}|simulator(:.*)?|replay:.+)$"


@dataclass(frozen=True, slots=True)
class ExporterSpec(PodSettings):
    """The exporter on GPU nodes. Paths are those of the node."""

    enabled: bool = spec_field(BooleanNode("Run the exporter on GPU nodes; true by default."), True)
    node_selector: Mapping[str, str] = spec_field(
        labels_node(
            "Labels of the nodes to run on; by default nodes with one of the labels of GPU nodes that GPU "
            "feature discovery, NFD, GKE, EKS, AKS and Karpenter set, nvidia.com/gpu=true or a label "
            "accelerator."
        ),
        {},
    )
    affinity: Plain = spec_field(affinity_node("Replaces the affinity to GPU nodes."), {})
    mode: str = text_field(
        "daemonset",
        "daemonset: serve metrics over HTTP. collect: open no port, and write a file for node_exporter "
        "repeatedly. cronjob: write this file once per Job of a CronJob, on up to 20 nodes. As in the chart.",
        choices=("daemonset", "collect", "cronjob"),
    )
    textfile: NodeTextfile = spec_field(
        section(NodeTextfile, "The file that modes collect and cronjob write."), NodeTextfile()
    )
    cron_job: CronJobSettings = spec_field(
        section(CronJobSettings, "The CronJob of mode cronjob."), CronJobSettings()
    )
    source: str = text_field(
        "auto",
        "Where readings come from: auto, nvml, smi, drm (AMD, Intel), nvml+drm, smi+drm, "
        "simulator[:NAME|FILE] to try it without a GPU, or replay:FILE. Mount a FILE with extraVolumes.",
        pattern=SOURCE_PATTERN,
        expected=f"{', '.join(MACHINES)}, simulator[:NAME|FILE] or replay:FILE",
    )
    devices: tuple[str, ...] = spec_field(
        ListNode(
            IntOrStringNode(pattern=r"^[^,\s]+$", expected="a GPU's index, UUID or PCI bus id", maximum=4095),
            "Only these GPUs: indexes, UUIDs or PCI bus ids.",
        ),
        (),
        read=lambda stated: tuple(map(str, stated)),
    )
    gpu_count: int = spec_field(
        IntegerNode("How many GPUs a node should have; another number is logged.", 0, 4096), 0
    )
    gpu_access: GpuAccess = spec_field(
        section(GpuAccess, "How the container gets the driver. It never requests a GPU."), GpuAccess()
    )
    runtime_class_name: str = spec_field(
        name_node("RuntimeClass of the pods: nvidia if it is not the default runtime.", "a RuntimeClass"), ""
    )
    follow_gpu_operator: FollowGpuOperator = spec_field(
        section(FollowGpuOperator, "Run beside NVIDIA's GPU Operator."), FollowGpuOperator()
    )
    accounting: bool = spec_field(
        BooleanNode("Turn on the driver's accounting mode first: an init container with SYS_ADMIN."), False
    )
    dialects: tuple[str, ...] = spec_field(
        ListNode(
            DIALECT,
            "Dialects of the metrics page, native by default, or of the file, as of `gpuledger collect`.",
            min_items=1,
            max_items=16,
        ),
        (),
    )
    port: int = spec_field(IntegerNode("Port of the metrics page; 9400 by default.", 1, 65535), 9400)
    metrics_path: str = text_field(
        "/metrics",
        "Path of the metrics page; /metrics by default.",
        pattern=r"^/[!-~]+$",
        expected="a path such as /metrics",
    )
    extra_ports: tuple[ExtraPort, ...] = spec_field(
        ListNode(
            section(ExtraPort, rules=(cel_rules.EXTRA_PORT,)),
            "Further ports, each with its own dialects.",
            max_items=16,
            rules=(cel_rules.EXTRA_PORTS,),
        ),
        (),
    )
    web_page: str = text_field(
        "landing",
        "The page at /: landing, full (shows personal data) or off; landing by default.",
        choices=("landing", "full", "off"),
    )
    web_config: WebConfigSecret | None = spec_field(
        section(
            WebConfigSecret,
            "TLS and passwords of the page, in exporter-toolkit's format, from a Secret of the pods' "
            "namespace. These exporters then need a target in agent.targets, with tlsConfig or basicAuth.",
        ),
        None,
    )
    collectors: str = text_field("", "A collectors file in dcgm-exporter's format, for the dcgm dialect.")
    pod_names: str = text_field("auto", "Source of the pods' names.", choices=("auto", "api", "logs", "none"))
    pod_label_allowlist: tuple[str, ...] = spec_field(
        ListNode(PLAIN, "Labels of pods to export: app, team/*."), ()
    )
    config: Plain = spec_field(
        ObjectNode(
            description="Settings of the program by their keys; they override this section.", open=True
        ),
        {},
    )
    kubelet_dir: str = spec_field(host_path("The kubelet's directory on the node."), "/var/lib/kubelet")
    pod_logs: str = spec_field(
        host_path("The node's directory with pods/ and containers/ of logs."), "/var/log"
    )
    passwd_file: str = spec_field(host_path("A passwd file on the node, for names of users."), "")
    state_dir: str = text_field(
        "/var/lib/gpuledger",
        "Where the ledger is stored on the node; empty: in memory. Default: /var/lib/gpuledger.",
        pattern=r"^(/[^\s]+)?$",
        expected="a path, or an empty string",
    )
    host_pid: bool = spec_field(
        BooleanNode("Use the node's process ids, to identify processes; true by default."),
        True,
        key="hostPID",
    )
    host_network: bool = spec_field(BooleanNode("Use the node's network; false by default."), False)
    capabilities: tuple[str, ...] = spec_field(
        ListNode(
            TextNode(pattern="^[A-Z][A-Z_]*$", expected="a Linux capability"),
            "Linux capabilities; all others are dropped. SYS_PTRACE by default.",
        ),
        ("SYS_PTRACE",),
    )
    sys_admin: bool = spec_field(
        BooleanNode("Add SYS_ADMIN: for drivers that restrict profiling counters to administrators."), False
    )
    update_strategy: UpdateStrategy = spec_field(
        section(UpdateStrategy, "How pods are replaced."), UpdateStrategy()
    )
    service: ExporterService | None = spec_field(
        BooleanNode("Create a Service for the pods; true by default."),
        ExporterService(),
        read=lambda stated: ExporterService() if stated else None,
    )

    @property
    def simulated(self) -> bool:
        """Readings come from the simulator or a recording: neither a GPU nor its driver is needed."""
        return self.source.startswith(("simulator", "replay:"))

    @property
    def reads_nvidia(self) -> bool:
        """Readings come from NVIDIA's driver, alone or beside another source."""
        return self.source != "drm" and not self.simulated

    @property
    def runs_smi(self) -> bool:
        """Readings come from nvidia-smi, alone or beside another source."""
        return "smi" in self.source.split("+")

    @property
    def on_host(self) -> bool:
        """The container is privileged, with the host's devices and the driver that it reads."""
        return self.gpu_access.mode == "host" and not self.simulated

    @property
    def collects(self) -> bool:
        """It writes a file for node_exporter, and serves nothing."""
        return self.mode in ("collect", "cronjob")

    @property
    def page_dialects(self) -> tuple[str, ...]:
        """The dialects of the metrics page."""
        return self.dialects or ("native",)

    @property
    def stores_ledger(self) -> bool:
        """The ledger is on the node's disk."""
        return bool(self.state_dir) and not self.simulated


@dataclass(frozen=True, slots=True)
class AgentSpec(PodSettings):
    """The agent that scrapes and sends samples. None and "" mean: not set."""

    enabled: bool = spec_field(
        BooleanNode("Run an agent that scrapes targets and sends the samples; true by default."), True
    )
    node_selector: Mapping[str, str] = spec_field(
        labels_node("Labels of the nodes to run on; it needs no GPU."), {}
    )
    args: tuple[str, ...] = spec_field(ListNode(PLAIN, "Further flags of the engine."), ())
    engine: str = text_field(
        "builtin",
        "builtin: gpuledger agent. prometheus: a Prometheus in agent mode scrapes the same targets, for "
        "fleets that are too large for one process.",
        choices=("builtin", "prometheus"),
    )
    prometheus_image: str = spec_field(image_node("Image for engine prometheus, 2.42 or newer."), "")
    replicas: int = spec_field(IntegerNode("How many replicas share the targets.", 1, 1000), 1)
    global_interval: str = spec_field(duration_node("Interval of endpoints without one; 15s by default."), "")
    global_path: str = text_field(
        "",
        "Path of endpoints without one; /metrics by default.",
        pattern=r"^[^?#\s]+$|^$",
        expected="a path such as /metrics",
    )
    extra_scrape_metrics: bool | None = spec_field(
        BooleanNode("Export scrape_timeout_seconds and the like as well; engine builtin."), None
    )
    auto_targets: bool | None = spec_field(
        BooleanNode(
            "true: scrape all usual exporters of the cluster as well; false: targets only. Default: the "
            "exporters of this resource, unless a target has them."
        ),
        None,
    )
    # None in place of a target, and of an endpoint in it: it is left out, because it has a problem.
    targets: tuple[Plain | None, ...] | None = spec_field(targets_node(), None)
    external_labels: Mapping[str, str] = spec_field(EXTERNAL_LABELS, {})
    remote_write: tuple[Plain, ...] = spec_field(REMOTE_WRITE, ())
    port: int = spec_field(
        IntegerNode("Port of the agent's own page and metrics; 9401 by default.", 1, 65535), 9401
    )
    persistence: Persistence | None = spec_field(
        section(Persistence, "A volume for unsent samples; without it they are lost with the pod."),
        None,
    )
    auto: AutoTarget = field(default_factory=AutoTarget)


EXPORTER: Final = section(ExporterSpec, "The exporter on GPU nodes.", cel_rules.EXPORTER)
AGENT: Final = section(AgentSpec, "The agent that scrapes exporters and sends the samples.")


@dataclass(frozen=True, slots=True)
class GpuMonitor:
    """One resource. `created` is its creationTimestamp, `kind` GpuMonitor or WhatapAgent; `agent_path` and
    `exporter_path` are the paths of these sections in the resource.
    """

    kind: str
    name: str
    created: str = ""
    exporter: ExporterSpec = spec_field(EXPORTER, ExporterSpec())
    agent: AgentSpec = spec_field(AGENT, AgentSpec())
    image_pull_secrets: tuple[Plain, ...] = spec_field(PULL_SECRETS, ())
    network_policy: PodFirewall = spec_field(
        section(PodFirewall, "NetworkPolicies for the pods."), PodFirewall()
    )
    agent_path: str = "spec.agent"
    exporter_path: str = "spec.exporter"

    @property
    def env_key(self) -> str:
        """The key of environment variables in the resource's sections."""
        return "env" if self.kind == GPU_MONITOR else "envs"

    @property
    def key(self) -> str:
        """Kind and name, unique in the cluster."""
        return f"{self.kind}/{self.name}"


SPEC: Final = section(GpuMonitor, "The desired exporters and agent.")

# Names of objects contain it: gpumonitor-NAME-exporter.
METADATA_NAME: Final = TextNode(
    pattern="^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", expected="a DNS label", max_length=32
)
