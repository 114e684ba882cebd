"""The keys of a GpuMonitor."""

from __future__ import annotations

from typing import Final

from gpuledger.operator.schema.nodes import Count, Each, Fields, Node, NumberOrText, Switch, Text
from gpuledger.operator.schema.pods import (
    ENVIRONMENT,
    LABEL_NAME,
    NAME,
    PLAIN,
    PULL_POLICY,
    PULL_SECRETS,
    SECRET_KEY,
    TOLERATIONS,
    affinity,
    image,
    labels,
    notes,
    resources,
)
from gpuledger.operator.schema.scraping import EXTERNAL_LABELS, REMOTE_WRITE, duration, targets

DIALECTS: Final = ("process", "session", "energy", "native", "dcgm", "smi")
ENGINES: Final = ("builtin", "prometheus")
_PATH: Final = r"^/[!-~]+$"
_HOST_PATH: Final = r"^/[^\s]*$"
_DIALECT: Final = Text(words=DIALECTS)
_PORT_NAME: Final = "^[a-z0-9]([-a-z0-9]{0,13}[a-z0-9])?$"

ENGINE: Final = Text(
    "builtin: gpuledger agent. prometheus: the same targets by a Prometheus in agent mode, for fleets that "
    "outgrow one process.",
    words=ENGINES,
)

_GPU_ACCESS: Final = Fields(
    {
        "mode": Text(
            "env: NVIDIA's container toolkit, asked by NVIDIA_VISIBLE_DEVICES. volume-list: the same, asked "
            "by a mount. cdi: the toolkit in CDI mode. host: no toolkit; the driver comes from the host, "
            "and the container is privileged.",
            words=("env", "volume-list", "cdi", "host"),
        ),
        "cdiDevice": Text("For cdi.", r"^[^/=\s]+/[^/=\s]+=[^/=\s]+$", wanted="a CDI device"),
        "driverDir": Text("For host: the driver's directory.", _HOST_PATH, wanted="a path"),
        "library": Text("For host: the driver's library.", _HOST_PATH, wanted="a path"),
        "smi": Text("For host: nvidia-smi.", _HOST_PATH, wanted="a path"),
    },
    "How the container comes by the driver. It never requests a GPU.",
)

EXPORTER: Final = Fields(
    {
        "enabled": Switch("Run the exporter on GPU nodes; true where nothing is said."),
        "image": image("In place of the operator's own image."),
        "imagePullPolicy": PULL_POLICY,
        "nodeSelector": labels(
            "Labels of the nodes to run on; left out: nodes with nvidia.com/gpu.present=true, "
            "nvidia.com/gpu=true or a label accelerator."
        ),
        "affinity": affinity("In place of the affinity to GPU nodes."),
        "tolerations": TOLERATIONS,
        "source": Text(
            "Where readings come from: auto, nvml, smi, or simulator, to try it without a GPU.",
            "^(auto|nvml|smi|simulator(:.+)?)$",
            wanted="auto, nvml, smi or simulator",
        ),
        "devices": Each(
            NumberOrText(pattern=r"^[^,\s]+$", wanted="a GPU's index, UUID or PCI bus id", highest=4095),
            "Only these GPUs: indexes, UUIDs or PCI bus ids.",
        ),
        "gpuCount": Count("How many GPUs a node should have; another number is said in the log.", 0, 4096),
        "gpuAccess": _GPU_ACCESS,
        "runtimeClassName": Text("nvidia where it is not the default.", NAME, wanted="a RuntimeClass"),
        "followGpuOperator": Fields(
            {
                "enabled": Switch(
                    "Start after NVIDIA's GPU Operator has validated driver and toolkit, and leave while it "
                    "exchanges the driver. runtimeClassName is nvidia then, unless it is set."
                ),
                "deployLabel": Text(
                    "The label by which it calls containers to a node; nvidia.com/gpu.deploy.dcgm-exporter.",
                    LABEL_NAME.pattern,
                    wanted=LABEL_NAME.wanted,
                ),
                "validationsDir": Text(
                    "Where it says what it has validated; /run/nvidia/validations.",
                    _HOST_PATH,
                    wanted="a path",
                ),
            },
            "Beside NVIDIA's GPU Operator.",
        ),
        "accounting": Switch("Turn the driver's accounting mode on first: an init container with SYS_ADMIN."),
        "dialects": Each(_DIALECT, "What the metrics page tells; native where nothing is said.", fewest=1),
        "port": Count("Of the metrics page; 9400 where nothing is said.", 1, 65535),
        "metricsPath": Text("/metrics where nothing is said.", _PATH, wanted="a path such as /metrics"),
        "extraPorts": Each(
            Fields(
                {
                    "name": Text("The port's name.", _PORT_NAME, wanted="the name of a port"),
                    "port": Count("Its number.", 1, 65535),
                    "dialects": Each(_DIALECT, "What it tells.", fewest=1),
                },
                required=("name", "port", "dialects"),
            ),
            "Further ports, each with dialects of its own.",
        ),
        "webPage": Text(
            "The page at /: landing, full (personal data) or off; landing where nothing is said.",
            words=("landing", "full", "off"),
        ),
        "webConfig": Fields(
            {
                "secret": Text("The Secret that has the file.", NAME, wanted="the name of a Secret"),
                "key": Text("Its key; web-config.yml where nothing is said.", SECRET_KEY, wanted="a key"),
                "tlsSecret": Text(
                    "A kubernetes.io/tls Secret, mounted at /etc/gpuledger/tls.",
                    NAME,
                    wanted="the name of a Secret",
                ),
                "scheme": Text("Whether the file turns TLS on.", words=("http", "https")),
                "probe": Text(
                    "How the kubelet probes: tcp where a client certificate is required, which it lacks.",
                    words=("http", "tcp"),
                ),
            },
            "TLS and passwords of the page, in exporter-toolkit's format, from a Secret of the pods' "
            "namespace. These exporters need a target in agent.targets then, with tlsConfig or basicAuth.",
            required=("secret", "scheme"),
        ),
        "collectors": Text("A collectors file in dcgm-exporter's format, for the dcgm dialect."),
        "podNames": Text("Where names of pods come from.", words=("auto", "api", "logs", "none")),
        "podLabelAllowlist": Each(PLAIN, "Labels of pods to tell: app, team/*."),
        "config": Fields(
            about="Settings of the program by their keys; they beat what stands here.", open=True
        ),
        "kubeletDir": Text("The kubelet's directory on the node.", _HOST_PATH, wanted="a path"),
        "podLogs": Text("Where the node keeps pods/ and containers/ of logs.", _HOST_PATH, wanted="a path"),
        "passwdFile": Text("A passwd file on the node, for names of users.", _HOST_PATH, wanted="a path"),
        "stateDir": Text(
            "Where the books are kept on the node; empty: in memory. Left out: /var/lib/gpuledger.",
            r"^(/[^\s]+)?$",
            wanted="a path, or nothing",
        ),
        "hostPID": Switch("See the node's processes under their own pids; true where nothing is said."),
        "hostNetwork": Switch("Listen on the node's own addresses."),
        "capabilities": Each(
            Text(pattern="^[A-Z][A-Z_]*$", wanted="a Linux capability"),
            "Linux capabilities; all others are dropped. SYS_PTRACE where nothing is said.",
        ),
        "sysAdmin": Switch(
            "Add SYS_ADMIN: for drivers that show profiling counters to administrators alone."
        ),
        "resources": resources("What the exporter gets."),
        "env": ENVIRONMENT,
        "args": Each(PLAIN, "Further flags of the program."),
        "podLabels": labels("Labels of the pods."),
        "podAnnotations": notes("Annotations of the pods."),
        "priorityClassName": Text("A PriorityClass.", NAME, wanted="the name of a PriorityClass"),
        "updateStrategy": Fields(
            {
                "type": Text("One after the other, or when deleted.", words=("RollingUpdate", "OnDelete")),
                "maxUnavailable": NumberOrText(
                    "How many at a time; 10% where nothing is said.",
                    "^[1-9][0-9]*%$",
                    "a number of at least 1 or a percentage",
                    1,
                ),
            },
            "How pods are exchanged.",
        ),
        "service": Switch("Make a Service in front of the pods; true where nothing is said."),
    },
    "What runs on GPU nodes.",
)

# Of a WhatapAgent as well.
OPEN_AGENT: Final[dict[str, Node]] = {
    "engine": ENGINE,
    "prometheusImage": image("For engine prometheus, 2.42 or newer."),
    "replicas": Count("How many share the targets.", 1, 1000),
    "globalInterval": duration("For endpoints that say nothing else; 15s."),
    "globalPath": Text("The same for paths; /metrics.", r"^[^?#\s]+$", wanted="a path such as /metrics"),
    "extraScrapeMetrics": Switch("Tell scrape_timeout_seconds and the like as well; engine builtin."),
    "autoTargets": Switch(
        "true: scrape all usual exporters of the cluster as well; false: targets alone. Left out: the "
        "exporters of this resource, unless a target has them."
    ),
    "externalLabels": EXTERNAL_LABELS,
    "remoteWrite": REMOTE_WRITE,
}

AGENT: Final = Fields(
    {
        "enabled": Switch("Run an agent that scrapes and delivers; true where nothing is said."),
        **OPEN_AGENT,
        "targets": targets(),
        "image": image("In place of the operator's own image."),
        "imagePullPolicy": PULL_POLICY,
        "port": Count("Of the agent's own page and metrics; 9401 where nothing is said.", 1, 65535),
        "persistence": Fields(
            {
                "size": NumberOrText(
                    "Of the volume of each replica.", "^[0-9]+([.][0-9]*)?([KMGT]i?)?$", "a size such as 2Gi"
                ),
                "storageClass": Text("Empty: the cluster's default.", f"{NAME}|^$", wanted="a StorageClass"),
            },
            "A volume for what waits to be delivered; left out: it ends with the pod.",
        ),
        "resources": resources("What the agent gets."),
        "nodeSelector": labels("Labels of the nodes to run on; it needs no GPU."),
        "affinity": affinity("Where to run."),
        "tolerations": TOLERATIONS,
        "env": ENVIRONMENT,
        "args": Each(PLAIN, "Further flags of the engine."),
        "podLabels": labels("Labels of the pods."),
        "podAnnotations": notes("Annotations of the pods."),
        "priorityClassName": Text("A PriorityClass.", NAME, wanted="the name of a PriorityClass"),
    },
    "What scrapes them and delivers.",
)

SPEC: Final = Fields(
    {"exporter": EXPORTER, "agent": AGENT, "imagePullSecrets": PULL_SECRETS}, "What is wanted."
)

# Names of objects are made of it: gpumonitor-NAME-exporter.
METADATA_NAME: Final = Text(pattern="^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", wanted="a DNS label", longest=32)
