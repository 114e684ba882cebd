"""Sections within the specifications of exporters and agents, and what their pods have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from gpuledger.dialects.catalogue import DIALECT_NAMES
from gpuledger.operator.schema.nodes import (
    BooleanNode,
    IntegerNode,
    IntOrStringNode,
    ListNode,
    TextNode,
)
from gpuledger.operator.schema.pods import (
    ENVIRONMENT,
    LABEL_NAME,
    NAME,
    PEERS,
    PLAIN,
    PULL_POLICY,
    SECRET_KEY,
    TOLERATIONS,
    VOLUME_MOUNTS,
    VOLUMES,
    VolumeSizeNode,
    affinity_node,
    annotations_node,
    image_node,
    labels_node,
    name_node,
    resources_node,
)
from gpuledger.operator.schema.scraping import duration_node
from gpuledger.operator.schema.sections import spec_field, text_field

_PORT_NAME: Final = "^[a-z0-9]([-a-z0-9]{0,13}[a-z0-9])?$"
_SCHEDULE: Final = "^(@(yearly|annually|monthly|weekly|daily|midnight|hourly)|[^@ ][^ ]*( +[^ ]+){4})$"
# A Job has a pod for each node. More nodes need a DaemonSet.
_MOST_JOB_NODES: Final = 100
# Bounded, so that a rule of a list of them has a bounded cost.
DIALECT: Final = TextNode(choices=DIALECT_NAMES, max_length=16)
PRIORITY_CLASS: Final = name_node("A PriorityClass.", "the name of a PriorityClass")

# A part of a resource in Kubernetes' own form. It is never changed.
Plain = Mapping[str, Any]


def host_path(description: str) -> TextNode:
    """A path on the node."""
    return TextNode(description, r"^/[^\s]*$", expected="a path")


@dataclass(frozen=True, slots=True)
class GpuAccess:
    """How the container gets the driver; paths are those of the host, for mode host."""

    mode: str = text_field(
        "env",
        "env: NVIDIA's container toolkit, through NVIDIA_VISIBLE_DEVICES. volume-list: the same, through "
        "a mount. cdi: the toolkit in CDI mode. host: no toolkit; the driver is mounted from the host, "
        "and the container is privileged.",
        choices=("env", "volume-list", "cdi", "host"),
    )
    cdi_device: str = spec_field(
        TextNode("CDI device, for mode cdi.", r"^[^/=\s]+/[^/=\s]+=[^/=\s]+$", expected="a CDI device"),
        "nvidia.com/gpu=all",
    )
    driver_dir: str = spec_field(host_path("Directory of the driver, for mode host."), "")
    library: str = spec_field(
        host_path("The driver's library, for mode host."), "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"
    )
    smi: str = spec_field(host_path("Path of nvidia-smi, for mode host."), "/usr/bin/nvidia-smi")


@dataclass(frozen=True, slots=True)
class FollowGpuOperator:
    """Runs beside NVIDIA's GPU Operator: its node label, and the directory of its validations."""

    enabled: bool = spec_field(
        BooleanNode(
            "Start after NVIDIA's GPU Operator has validated driver and toolkit, and stop while it replaces "
            "the driver. runtimeClassName defaults to nvidia then."
        ),
        False,
    )
    deploy_label: str = text_field(
        "nvidia.com/gpu.deploy.dcgm-exporter",
        "Node label by which it schedules containers; nvidia.com/gpu.deploy.dcgm-exporter by default.",
        pattern=LABEL_NAME.pattern,
        expected=LABEL_NAME.expected,
    )
    validations_dir: str = spec_field(
        host_path("Where it stores its validations; /run/nvidia/validations by default."),
        "/run/nvidia/validations",
    )


@dataclass(frozen=True, slots=True)
class WebConfigSecret:
    """A Secret with a web config file, and one with certificates. `scheme` is what the file configures."""

    secret: str = spec_field(name_node("The Secret with the file.", "the name of a Secret"))
    scheme: str = spec_field(TextNode("Whether the file enables TLS.", choices=("http", "https")))
    key: str = spec_field(
        TextNode("Key in the Secret; web-config.yml by default.", SECRET_KEY, expected="a key"),
        "web-config.yml",
    )
    tls_secret: str = spec_field(
        name_node("A kubernetes.io/tls Secret, mounted at /etc/gpuledger/tls.", "the name of a Secret"), ""
    )
    probe: str = text_field(
        "http",
        "How the kubelet probes: tcp if a client certificate is required, which the kubelet lacks.",
        choices=("http", "tcp"),
    )


@dataclass(frozen=True, slots=True)
class ExtraPort:
    """A further port with its own dialects."""

    name: str = spec_field(TextNode("Name of the port.", _PORT_NAME, (), "the name of a port", 15))
    port: int = spec_field(IntegerNode("Number of the port.", 1, 65535))
    dialects: tuple[str, ...] = spec_field(ListNode(DIALECT, "Dialects of the metrics page.", min_items=1))


@dataclass(frozen=True, slots=True)
class NodeTextfile:
    """The file that collectors write for node_exporter, on each node."""

    directory: str = spec_field(
        host_path("node_exporter's --collector.textfile.directory on the node."),
        "/var/lib/node_exporter/textfile_collector",
    )
    file: str = text_field(
        "gpu_processes.prom",
        "Name of the file; gpu_processes.prom by default.",
        pattern="^[A-Za-z0-9][A-Za-z0-9._-]{0,200}[.]prom$",
        expected="a name that ends in .prom",
    )
    every: str = spec_field(duration_node("Interval between writes; 60s by default."), "60s")


@dataclass(frozen=True, slots=True)
class CronJobSettings:
    """When the Jobs of mode cronjob run, and on which nodes. Defaults are those of the chart."""

    schedule: str = text_field(
        "*/1 * * * *",
        "When a Job starts, in cron's five fields, so at most once a minute; every minute by default.",
        pattern=_SCHEDULE,
        expected="five fields such as */5 * * * *, or @hourly (for seconds, use mode collect or daemonset)",
        max_length=200,
    )
    nodes: tuple[str, ...] = spec_field(
        ListNode(
            name_node("Name of a node.", "the name of a node"),
            "Names of the GPU nodes (their label kubernetes.io/hostname); by default those that the operator "
            "finds by nodeSelector, or by the labels of GPU nodes.",
            max_items=_MOST_JOB_NODES,
        ),
        (),
    )
    node_count: int = spec_field(
        IntegerNode(
            "Number of GPU nodes, so pods per Job, if none are named or found, as with affinity; 0: unknown.",
            0,
            _MOST_JOB_NODES,
        ),
        0,
    )
    max_nodes: int = spec_field(
        IntegerNode(
            "With more nodes, the DaemonSet of mode collect runs in place of the CronJob; 20 by default.",
            1,
            _MOST_JOB_NODES,
        ),
        20,
    )
    active_deadline_seconds: int = spec_field(
        IntegerNode("Seconds after which a Job is stopped; 50 by default.", 1), 50
    )
    ttl_seconds_after_finished: int = spec_field(
        IntegerNode("Seconds after which a finished Job is deleted with its pods; 300 by default."), 300
    )
    suspend: bool = spec_field(
        BooleanNode("Start no Jobs; you can still create Jobs from the CronJob."), False
    )


@dataclass(frozen=True, slots=True)
class UpdateStrategy:
    """How pods are replaced."""

    type: str = text_field(
        "RollingUpdate",
        "RollingUpdate by default; OnDelete replaces pods only when they are deleted.",
        choices=("RollingUpdate", "OnDelete"),
    )
    max_unavailable: int | str = spec_field(
        IntOrStringNode(
            "Number or percentage of pods replaced at the same time; 10% by default.",
            "^[1-9][0-9]*%$",
            "a number of at least 1 or a percentage",
            1,
        ),
        "10%",
    )


@dataclass(frozen=True, slots=True)
class ExporterService:
    """The Service in front of the exporters; port 0: the exporter's, node port 0: chosen by Kubernetes."""

    type: str = "ClusterIP"
    port: int = 0
    node_port: int = 0


@dataclass(frozen=True, slots=True)
class AutoTarget:
    """How the exporters of the same resource are scraped. Only a WhatapAgent can set it."""

    interval: str = ""
    relabel: tuple[Plain, ...] = ()
    metric_relabel: tuple[Plain, ...] = ()


@dataclass(frozen=True, slots=True)
class PodSettings:
    """Settings of pods that exporters and agents share."""

    enabled: bool = spec_field(BooleanNode(), True)
    image: str = spec_field(image_node("Replaces the operator's own image."), "")
    image_pull_policy: str = spec_field(PULL_POLICY, "")
    node_selector: Mapping[str, str] = spec_field(labels_node("Labels of the nodes to run on."), {})
    affinity: Plain = spec_field(affinity_node("Affinity of the pods."), {})
    # None: not set.
    tolerations: tuple[Plain, ...] | None = spec_field(TOLERATIONS, None)
    resources: Plain = spec_field(resources_node("Requests and limits of the container."), {})
    env: tuple[Plain, ...] = spec_field(ENVIRONMENT, ())
    args: tuple[str, ...] = spec_field(ListNode(PLAIN, "Further flags of the program."), ())
    pod_labels: Mapping[str, str] = spec_field(labels_node("Labels of the pods."), {})
    pod_annotations: Mapping[str, str] = spec_field(annotations_node("Annotations of the pods."), {})
    priority_class_name: str = spec_field(PRIORITY_CLASS, "")
    extra_volumes: tuple[Plain, ...] = spec_field(VOLUMES, ())
    extra_volume_mounts: tuple[Plain, ...] = spec_field(VOLUME_MOUNTS, ())


@dataclass(frozen=True, slots=True)
class PodFirewall:
    """NetworkPolicies for the pods of exporters and agents."""

    enabled: bool = spec_field(
        BooleanNode(
            "Create NetworkPolicies: ingress only to the metrics ports; egress of exporters only to DNS and "
            "the API server. They have no effect on pods with hostNetwork."
        ),
        False,
    )
    peers: tuple[Plain, ...] = spec_field(PEERS, (), key="from")
    api_server_ports: tuple[int, ...] = spec_field(
        ListNode(IntegerNode(minimum=1, maximum=65535), "Ports of the API server; 443 and 6443 by default."),
        (443, 6443),
    )


@dataclass(frozen=True, slots=True)
class Persistence:
    """A volume for each replica of the agent."""

    size: str = spec_field(
        VolumeSizeNode(
            "Size of the volume of each replica; 2Gi by default. Existing volumes keep their size.",
            "^[0-9]+([.][0-9]*)?(k|Ki|[MGT]i?)?$",
            "a size such as 2Gi (units: k, M, G, T, Ki, Mi, Gi, Ti)",
        ),
        "2Gi",
        read=lambda stated: str(stated or "2Gi"),
    )
    storage_class: str = text_field(
        "",
        "StorageClass of the volume; the cluster's default if empty.",
        pattern=f"{NAME}|^$",
        expected="a StorageClass",
    )
