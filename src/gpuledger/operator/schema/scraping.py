"""What an agent scrapes, and for whom: `features.openAgent` of document and agent, and remote write."""

from __future__ import annotations

from typing import Final

from gpuledger.operator.schema.nodes import (
    INT64,
    Count,
    Each,
    Fields,
    Named,
    Node,
    NumberOrText,
    Switch,
    Text,
)
from gpuledger.operator.schema.pods import PLAIN, secret_key, selector

_DURATION: Final = "^([0-9]+([.][0-9]+)?(ms|s|m|h|d))+$|^[0-9]+$"
_RELABEL: Final = Each(
    Fields(
        {
            "source_labels": Each(PLAIN, "Labels whose values are joined."),
            "sourceLabels": Each(PLAIN, "The same word as Prometheus Operator has it."),
            "separator": Text("Between them; ; where nothing is said."),
            "regex": Text("RE2, anchored; (.*) where nothing is said."),
            "modulus": Count("For hashmod.", 0, INT64),
            "target_label": Text("The label that is set."),
            "targetLabel": Text("The same word as Prometheus Operator has it."),
            "replacement": Text("What it is set to; $1 where nothing is said."),
            "action": Text("replace where nothing is said."),
        }
    ),
    "Rules in Prometheus's words.",
)
_SIZE: Final = "^[0-9]+([KMGT]?i?B?)?$"


def duration(about: str) -> Node:
    """A time such as 15s."""
    return Text(about, _DURATION, wanted="a duration such as 15s or 1m30s")


def relabelling(about: str) -> Node:
    """Rules, for something."""
    return Each(_RELABEL.item, about)


def size(about: str) -> Node:
    """A number of bytes."""
    return NumberOrText(about, _SIZE, "a size such as 512MB", 0, 2**31 - 1)


_TLS: Final[dict[str, Node]] = {
    "insecureSkipVerify": Switch("Believe every certificate."),
    "serverName": Text("The name that the certificate must bear."),
    **{
        f"{name}Secret": secret_key(f"{about}, kept in a Secret.")
        for name, about in (
            ("ca", "Whom to believe"),
            ("cert", "The certificate to show"),
            ("key", "Its key"),
        )
    },
    "caFile": Text("Whom to believe, in a file of the agent's pod."),
    "certFile": Text("The certificate to show, in a file of the agent's pod."),
    "keyFile": Text("Its key, in a file of the agent's pod."),
}
TLS: Final = Fields(_TLS, "How the other side is believed.")

BASIC: Final = Fields(
    {
        "username": secret_key("The user."),
        "password": secret_key("The password."),
    },
    "User and password.",
)
_AUTHORIZATION: Final[dict[str, Node]] = {
    "type": Text("Bearer where nothing is said.", "^[A-Za-z0-9]+$", wanted="one word such as Bearer"),
    "credentialsSecret": secret_key("The token."),
    "credentialsFile": Text("The token, in a file of the agent's pod."),
}
AUTHORIZATION: Final = Fields(_AUTHORIZATION, "Who asks.")

# Of a WhatapAgent; here these would lie open in the resource, or need a variable that nobody sets.
INLINE: Final[dict[str, Node]] = {
    "credentials": Text("Refused: secrets do not belong into resources."),
    "credentialsEnv": Text("Refused: take credentialsSecret."),
}

PORT: Final = NumberOrText(
    "Name or number of the port; left out: every declared TCP port.",
    "^[a-zA-Z0-9]([-a-zA-Z0-9]*[a-zA-Z0-9])?$",
    "the name or the number of a port",
    1,
    65535,
)


def endpoints(authorization: Node) -> Node:
    """The endpoints of a target."""
    keys: dict[str, Node] = {
        "port": PORT,
        "address": Text("For StaticEndpoints: host:port."),
        "path": Text("globalPath where nothing is said.", r"^[^?#\s]+$", wanted="a path such as /metrics"),
        "interval": duration("globalInterval where nothing is said."),
        "timeout": duration("At most the interval; 10s where nothing is said."),
        "scheme": Text("https without a word where there is a tlsConfig.", words=("http", "https")),
        "params": Named(Each(PLAIN), "Of the URL."),
        "addNodeLabel": Switch("Add the label node."),
        "tlsConfig": TLS,
        "basicAuth": BASIC,
        "authorization": authorization,
        "credentialsOverHttp": Switch("A login may go unencrypted."),
        "followRedirects": Switch("true where nothing is said."),
        "honorLabels": Switch(
            "Whether labels of the page stand; left out: of pages that tell whose GPU it is."
        ),
        "honorTimestamps": Switch("true where nothing is said."),
        "metricRelabelConfigs": relabelling("After the scrape, behind the target's."),
        "bodySizeLimit": size("Larger pages are refused."),
        "sampleLimit": Count("Pages with more samples are refused.", highest=10**9),
        "labelLimit": Count("Series with more labels are refused.", highest=10**9),
        "labelNameLengthLimit": Count("Longer names are refused.", highest=10**9),
        "labelValueLengthLimit": Count("Longer values are refused.", highest=10**9),
    }
    return Each(Fields(keys), "Where, and how.")


def targets(authorization: Node = AUTHORIZATION) -> Node:
    """What is scraped besides the exporters of the same resource."""
    keys: dict[str, Node] = {
        "targetName": Text("Becomes the label job.", r"^.+$", wanted="a name"),
        "type": Text(
            "Pods, what is behind services, or addresses.",
            words=("PodMonitor", "ServiceMonitor", "StaticEndpoints"),
        ),
        "enabled": Switch("true where nothing is said."),
        "namespaceSelector": Fields(
            {"matchNames": Each(PLAIN, "One of them."), **selector("").keys},
            "Which namespaces; left out: every one.",
        ),
        "selector": selector("Which pods or services; {} is every one."),
        "jobLabel": Text("The label of the pod or service whose value becomes job."),
        "relabelConfigs": relabelling("Before the scrape."),
        "metricRelabelConfigs": relabelling("After the scrape, for all endpoints."),
        "endpoints": endpoints(authorization),
    }
    return Each(
        Fields(keys, required=("targetName", "type")),
        "What to scrape; left out: the exporters of this resource.",
    )


REMOTE_WRITE: Final = Each(
    Fields(
        {
            "url": Text("Where to.", r"^https?://[^\s]+$", wanted="a URL such as https://host/api/v1/write"),
            "name": Text("Its name in metrics and on disk."),
            "remoteTimeout": duration("30s where nothing is said."),
            "headers": Named(PLAIN, "Further headers; they are no secrets."),
            "basicAuth": BASIC,
            "authorization": AUTHORIZATION,
            "tlsConfig": TLS,
            "writeRelabelConfigs": relabelling("What is delivered, and how."),
            "queueConfig": Fields(
                {
                    "capacity": Count("Samples of a shard in memory.", 1, 1_000_000),
                    "minShards": Count("At least so many at a time.", 1, 1_000),
                    "maxShards": Count("At most so many at a time.", 1, 1_000),
                    "maxSamplesPerSend": Count("Samples of a request.", 1, 1_000_000),
                    "batchSendDeadline": duration("How long a sample waits for others."),
                    "minBackoff": duration("After the first failure."),
                    "maxBackoff": duration("After many."),
                    "retryOnRateLimit": Switch("Send again what was refused for being too much."),
                    "sampleAgeLimit": duration("Older ones are dropped."),
                },
                "As Prometheus has it.",
            ),
            "queue": Fields(
                {
                    "maxBytes": size("So much waits on disk at most; engine builtin."),
                    "maxAge": duration("So long; engine builtin."),
                },
                "What waits on disk.",
            ),
        },
        required=("url",),
    ),
    "Prometheus remote-write receivers; left out: those of the operator's own configuration.",
)
EXTERNAL_LABELS: Final = Named(PLAIN, "Labels that every delivered series gets.")
