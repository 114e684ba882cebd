"""Schema nodes of scrape targets and remote-write receivers, in GpuMonitor and WhatapAgent resources."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from gpuledger.operator.schema import cel_rules
from gpuledger.operator.schema.nodes import (
    INT64,
    BooleanNode,
    IntegerNode,
    IntOrStringNode,
    JudgedListNode,
    ListNode,
    MapNode,
    NumberNode,
    ObjectNode,
    PrunedNode,
    SchemaNode,
    TextNode,
)
from gpuledger.operator.schema.pods import PLAIN, secret_key_node, selector_node

# Empty means unset, as a template writes it for a value that is not set.
_DURATION: Final = "^([0-9]+([.][0-9]+)?(ms|s|m|h|d))+$|^[0-9]+$|^$"
_REGEX: Final = TextNode("RE2, anchored; default (.*).")
_ACTION: Final = TextNode("Action of Prometheus relabeling; default replace.")
_RELABEL_RULE: Final = ObjectNode(
    {
        "source_labels": ListNode(PLAIN, "Labels; their values are joined."),
        "sourceLabels": ListNode(PLAIN, "The same, spelled as in Prometheus Operator."),
        "separator": TextNode("Separator of the joined values; default ;"),
        "regex": _REGEX,
        "modulus": IntegerNode("Modulus for action hashmod.", 0, INT64),
        "target_label": TextNode("The label to set."),
        "targetLabel": TextNode("The same, spelled as in Prometheus Operator."),
        "replacement": TextNode("The new value; default $1."),
        "action": _ACTION,
    }
)
# Bounded, because the API server estimates the cost of CEL rules.
_CHECKED_RELABEL_RULE: Final = ObjectNode(
    {
        **_RELABEL_RULE.keys,
        "regex": replace(_REGEX, max_length=8192, rules=(cel_rules.RE2,)),
        "action": replace(_ACTION, max_length=32),
    },
    rules=cel_rules.RELABELING,
)
_SIZE: Final = "^[0-9]+([KMGT]?i?B?)?$"


def duration_node(description: str) -> SchemaNode:
    """A duration such as 15s."""
    return TextNode(description, _DURATION, expected="a duration such as 15s or 1m30s")


def relabel_node(description: str) -> SchemaNode:
    """A list of relabeling rules outside of targets."""
    return ListNode(_CHECKED_RELABEL_RULE, description, max_items=64)


def _target_relabel_node(description: str) -> SchemaNode:
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
    rules=cel_rules.TLS,
)

BASIC_AUTH: Final = ObjectNode(
    {
        "username": secret_key_node("The user name."),
        "password": secret_key_node("The password."),
    },
    "HTTP basic authentication.",
    rules=(cel_rules.BASIC_AUTH,),
)
AUTHORIZATION: Final = ObjectNode(
    {
        "type": TextNode("Bearer by default.", "^[A-Za-z0-9]+$", (), "one word such as Bearer", 64),
        "credentialsSecret": secret_key_node("The token, in a Secret."),
        "credentialsFile": TextNode("The token, in a file in the agent's pod."),
    },
    "The Authorization header.",
    rules=cel_rules.AUTHORIZATION,
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


def endpoints_node(authorization: SchemaNode) -> SchemaNode:
    """The endpoints of a target."""
    keys: dict[str, SchemaNode] = {
        "port": PORT,
        "address": TextNode("host:port, for StaticEndpoints."),
        "path": TextNode(
            "Path of the metrics; globalPath by default.",
            r"^[^?#\s]+$|^$",
            expected="a path such as /metrics",
        ),
        "interval": duration_node("Scrape interval; globalInterval by default."),
        "timeout": duration_node(
            "Scrape timeout; 10s by default. One above the interval skips intervals while a scrape runs."
        ),
        "adaptiveTimeout": ObjectNode(
            {
                "enabled": BooleanNode("true by default."),
                "failureThreshold": IntegerNode("2 by default.", 1, 1000),
                "multiplier": NumberNode("2 by default.", 1, 1000),
            },
            "Multiplies the timeout after so many timeouts in succession, until a scrape succeeds; at most "
            "five times the timeout and the interval minus 5s. Engine builtin.",
        ),
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
        "metricRelabelConfigs": _target_relabel_node(
            "Relabeling after the scrape, after that of the target."
        ),
        "bodySizeLimit": size_node("Fail scrapes with a larger body."),
        "sampleLimit": IntegerNode("Fail scrapes with more samples.", maximum=10**9),
        "labelLimit": IntegerNode("Fail scrapes with more labels on a series.", maximum=10**9),
        "labelNameLengthLimit": IntegerNode("Fail scrapes with longer label names.", maximum=10**9),
        "labelValueLengthLimit": IntegerNode("Fail scrapes with longer label values.", maximum=10**9),
    }
    return ListNode(PrunedNode(keys), "Endpoints of the target and how to scrape them.")


def targets_node(authorization: SchemaNode = AUTHORIZATION) -> SchemaNode:
    """The targets of an agent."""
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
        "relabelConfigs": _target_relabel_node("Relabeling of targets, before the scrape."),
        "metricRelabelConfigs": _target_relabel_node("Relabeling after the scrape, for all endpoints."),
        "endpoints": endpoints_node(authorization),
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
                max_length=2048,
            ),
            "name": TextNode("Name of the receiver in metrics and on disk.", max_length=256),
            "remoteTimeout": duration_node("Timeout of a request; 30s by default."),
            "protocol": TextNode(
                "Version of remote write: 1.0 by default; auto uses 2.0 if the receiver understands it.",
                choices=("", "auto", "1.0", "2.0"),
            ),
            "headers": MapNode(
                PLAIN,
                "Further HTTP headers; they must not contain secrets.",
                max_items=32,
                rules=cel_rules.HEADERS,
            ),
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
                rules=(cel_rules.QUEUE,),
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
        rules=cel_rules.RECEIVER,
    ),
    "Prometheus remote-write receivers; by default those of the operator's configuration.",
    max_items=8,
    rules=(cel_rules.RECEIVERS,),
)
EXTERNAL_LABELS: Final = MapNode(
    PLAIN, "Labels that are added to all sent series.", max_items=64, rules=(cel_rules.LABELS_OF_SERIES,)
)
