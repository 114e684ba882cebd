"""Schema nodes of scrape targets and remote-write receivers, in GpuMonitor and WhatapAgent resources."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gpuledger.operator.schema.nodes import (
    INT64,
    BooleanNode,
    IntegerNode,
    IntOrStringNode,
    JudgedListNode,
    ListNode,
    MapNode,
    ObjectNode,
    PrunedNode,
    SchemaNode,
    TextNode,
)
from gpuledger.operator.schema.pods import PLAIN, secret_key_node, selector_node

# Empty means unset, as a template writes it for a value that is not set.
_DURATION: Final = "^([0-9]+([.][0-9]+)?(ms|s|m|h|d))+$|^[0-9]+$|^$"
_RELABEL_RULE: Final = ObjectNode(
    {
        "source_labels": ListNode(PLAIN, "Labels; their values are joined."),
        "sourceLabels": ListNode(PLAIN, "The same, spelled as in Prometheus Operator."),
        "separator": TextNode("Separator of the joined values; default ;"),
        "regex": TextNode("RE2, anchored; default (.*)."),
        "modulus": IntegerNode("Modulus for action hashmod.", 0, INT64),
        "target_label": TextNode("The label to set."),
        "targetLabel": TextNode("The same, spelled as in Prometheus Operator."),
        "replacement": TextNode("The new value; default $1."),
        "action": TextNode("Action of Prometheus relabeling; default replace."),
    }
)
_SIZE: Final = "^[0-9]+([KMGT]?i?B?)?$"


def duration_node(description: str) -> SchemaNode:
    """A duration such as 15s."""
    return TextNode(description, _DURATION, expected="a duration such as 15s or 1m30s")


def relabel_node(description: str) -> SchemaNode:
    """A list of relabeling rules."""
    return ListNode(_RELABEL_RULE, description)


def size_node(description: str) -> SchemaNode:
    """A number of bytes, such as 512MB."""
    return IntOrStringNode(description, _SIZE, "a size such as 512MB", 0, 2**31 - 1)


_PEM: Final = {
    "ca": "Trusted CA certificates",
    "cert": "Client certificate",
    "key": "Key of the client certificate",
}
TLS_CONFIG: Final = ObjectNode(
    {
        "insecureSkipVerify": BooleanNode("Accept any server certificate."),
        "serverName": TextNode("The expected name in the server certificate."),
        **{f"{name}Secret": secret_key_node(f"{pem}, in a Secret.") for name, pem in _PEM.items()},
        **{f"{name}File": TextNode(f"{pem}, in a file in the agent's pod.") for name, pem in _PEM.items()},
    },
    "TLS: trusted certificates and client certificate.",
)

BASIC_AUTH: Final = ObjectNode(
    {
        "username": secret_key_node("The user name."),
        "password": secret_key_node("The password."),
    },
    "HTTP basic authentication.",
)
AUTHORIZATION: Final = ObjectNode(
    {
        "type": TextNode("Bearer by default.", "^[A-Za-z0-9]+$", expected="one word such as Bearer"),
        "credentialsSecret": secret_key_node("The token, in a Secret."),
        "credentialsFile": TextNode("The token, in a file in the agent's pod."),
    },
    "The Authorization header.",
)

# Refused keys of a WhatapAgent: they expose the token in the resource, or need a variable that is not set.
INLINE_CREDENTIALS: Final[dict[str, SchemaNode]] = {
    "credentials": TextNode("Refused: would expose the token to readers of the resource."),
    "credentialsEnv": TextNode("Refused: use credentialsSecret."),
}

PORT: Final = IntOrStringNode(
    "Name or number of the port; by default all declared TCP ports.",
    "^[a-zA-Z0-9]([-a-zA-Z0-9]*[a-zA-Z0-9])?$",
    "the name or the number of a port",
    1,
    65535,
)


def endpoints_node(authorization: SchemaNode, more: Mapping[str, SchemaNode]) -> SchemaNode:
    """The endpoints of a target; `more` are further keys."""
    keys: dict[str, SchemaNode] = {
        "port": PORT,
        "address": TextNode("host:port, for StaticEndpoints."),
        "path": TextNode(
            "Path of the metrics; globalPath by default.",
            r"^[^?#\s]+$|^$",
            expected="a path such as /metrics",
        ),
        "interval": duration_node("Scrape interval; globalInterval by default."),
        "timeout": duration_node("Scrape timeout, at most the interval; 10s by default."),
        "scheme": TextNode("https by default if tlsConfig is set, else http.", choices=("", "http", "https")),
        "params": MapNode(ListNode(PLAIN), "Query parameters of the URL."),
        "addNodeLabel": BooleanNode("Add a label node with the name of the node."),
        "tlsConfig": TLS_CONFIG,
        "basicAuth": BASIC_AUTH,
        "authorization": authorization,
        "credentialsOverHttp": BooleanNode("Allow to send credentials unencrypted; false by default."),
        "followRedirects": BooleanNode("Follow HTTP redirects; true by default."),
        "honorLabels": BooleanNode(
            "Scraped labels win over target labels; by default only on pages that report owners of GPUs."
        ),
        "honorTimestamps": BooleanNode("Use scraped timestamps; true by default."),
        "timestampAheadLimit": duration_node(
            "Drop samples with timestamps later than the scrape by more; 10m by default, 0s allows any."
        ),
        "metricRelabelConfigs": relabel_node("Relabeling after the scrape, after that of the target."),
        "bodySizeLimit": size_node("Fail scrapes with a larger body."),
        "sampleLimit": IntegerNode("Fail scrapes with more samples.", maximum=10**9),
        "labelLimit": IntegerNode("Fail scrapes with more labels on a series.", maximum=10**9),
        "labelNameLengthLimit": IntegerNode("Fail scrapes with longer label names.", maximum=10**9),
        "labelValueLengthLimit": IntegerNode("Fail scrapes with longer label values.", maximum=10**9),
    }
    return ListNode(PrunedNode({**keys, **more}), "Endpoints of the target and how to scrape them.")


def targets_node(
    authorization: SchemaNode = AUTHORIZATION, of_endpoints: Mapping[str, SchemaNode] | None = None
) -> SchemaNode:
    """The targets of an agent; `of_endpoints` are further keys of their endpoints."""
    keys: dict[str, SchemaNode] = {
        "targetName": TextNode("Value of the label job.", r"^.+$", expected="a name"),
        "type": TextNode(
            "Discover pods (PodMonitor), endpoints of Services (ServiceMonitor), or use fixed addresses.",
            choices=("PodMonitor", "ServiceMonitor", "StaticEndpoints"),
        ),
        "enabled": BooleanNode("true by default."),
        "namespaceSelector": ObjectNode(
            {"matchNames": ListNode(PLAIN, "Names of namespaces."), **selector_node("").keys},
            "Selects namespaces; by default all.",
        ),
        "selector": selector_node("Selects pods or Services; {} selects all."),
        "jobLabel": TextNode("Label of the pod or Service; its value replaces the label job."),
        "relabelConfigs": relabel_node("Relabeling of targets, before the scrape."),
        "metricRelabelConfigs": relabel_node("Relabeling after the scrape, for all endpoints."),
        "endpoints": endpoints_node(authorization, of_endpoints or {}),
    }
    return JudgedListNode(
        PrunedNode(keys, required=("targetName", "type")),
        "Targets to scrape; by default the exporters of this resource.",
    )


REMOTE_WRITE: Final = ListNode(
    ObjectNode(
        {
            "url": TextNode(
                "URL of the receiver.",
                r"^https?://[^\s]+$",
                expected="a URL such as https://host/api/v1/write",
            ),
            "name": TextNode("Name of the receiver in metrics and on disk."),
            "remoteTimeout": duration_node("Timeout of a request; 30s by default."),
            "headers": MapNode(PLAIN, "Further HTTP headers; they must not contain secrets."),
            "basicAuth": BASIC_AUTH,
            "authorization": AUTHORIZATION,
            "tlsConfig": TLS_CONFIG,
            "writeRelabelConfigs": relabel_node("Relabeling before samples are sent."),
            "queueConfig": ObjectNode(
                {
                    "capacity": IntegerNode("Samples per shard in memory.", 1, 1_000_000),
                    "minShards": IntegerNode("Minimum number of concurrent requests.", 1, 1_000),
                    "maxShards": IntegerNode("Maximum number of concurrent requests.", 1, 1_000),
                    "maxSamplesPerSend": IntegerNode("Maximum number of samples per request.", 1, 1_000_000),
                    "batchSendDeadline": duration_node("How long a sample waits for a full request."),
                    "minBackoff": duration_node("Delay of the first retry."),
                    "maxBackoff": duration_node("Maximum delay of retries."),
                    "retryOnRateLimit": BooleanNode("Retry after HTTP status 429."),
                    "sampleAgeLimit": duration_node("Drop older samples."),
                },
                "Queue settings of Prometheus (queue_config).",
            ),
            "queue": ObjectNode(
                {
                    "maxBytes": size_node("Maximum size on disk; engine builtin."),
                    "maxAge": duration_node("Maximum age of a sample; engine builtin."),
                },
                "The queue of unsent samples on disk.",
            ),
        },
        required=("url",),
    ),
    "Prometheus remote-write receivers; by default those of the operator's configuration.",
)
EXTERNAL_LABELS: Final = MapNode(PLAIN, "Labels that are added to all sent series.")
