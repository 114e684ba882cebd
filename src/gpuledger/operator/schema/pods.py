"""Fields that Kubernetes has in its own pods, with its own words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
from gpuledger.operator.spec import Problem

NAME: Final = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
SECRET_KEY: Final = "^[-._a-zA-Z0-9]+$"
_LABEL_NAME: Final = "^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
_LABEL_VALUE: Final = "^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$"
_QUANTITY: Final = "^[0-9]+([.][0-9]*)?(m|k|Ki|[MGTPE]i?)?$"
_VARIABLE: Final = "^[-._a-zA-Z][-._a-zA-Z0-9]*$"

LABEL_VALUE: Final = Text(pattern=_LABEL_VALUE, wanted="the value of a label", longest=63)
LABEL_NAME: Final = Text(pattern=_LABEL_NAME, wanted="the name of a label", longest=317)
PLAIN: Final = Text()


def labels(about: str) -> Node:
    """Labels by name."""
    return Named(LABEL_VALUE, about, LABEL_NAME)


def notes(about: str) -> Node:
    """Annotations by name."""
    return Named(PLAIN, about, LABEL_NAME)


def image(about: str) -> Node:
    """The name of an image."""
    return Text(about, r"^[^\s]+$", wanted="the name of an image", longest=512)


PULL_POLICY: Final = Text("When the kubelet pulls the image.", words=("Always", "IfNotPresent", "Never"))
PULL_SECRETS: Final = Each(
    Fields({"name": Text("The Secret's name.", NAME, wanted="the name of a Secret")}, required=("name",)),
    "Secrets, in the pods' own namespace, with which images are pulled.",
)

TOLERATIONS: Final = Each(
    Fields(
        {
            "key": Text("The taint's key; empty with Exists: every one.", longest=317),
            "operator": Text("Equal where nothing is said.", words=("Exists", "Equal", "Lt", "Gt")),
            "value": Text("The taint's value.", longest=63),
            "effect": Text("Empty: every effect.", words=("", "NoSchedule", "PreferNoSchedule", "NoExecute")),
            "tolerationSeconds": Count("For NoExecute: so long.", -INT64, INT64),
        }
    ),
    "Taints to live with.",
)

_NODE_EXPRESSIONS: Final = Each(
    Fields(
        {
            "key": Text("The label, or the field metadata.name.", longest=317),
            "operator": Text("What must hold.", words=("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")),
            "values": Each(PLAIN, "Values to compare with."),
        },
        required=("key", "operator"),
    )
)
_NODE_TERM: Final = Fields({"matchExpressions": _NODE_EXPRESSIONS, "matchFields": _NODE_EXPRESSIONS})
NODE_AFFINITY: Final = Fields(
    {
        "requiredDuringSchedulingIgnoredDuringExecution": Fields(
            {"nodeSelectorTerms": Each(_NODE_TERM, "One of them must hold.", fewest=1)},
            required=("nodeSelectorTerms",),
        ),
        "preferredDuringSchedulingIgnoredDuringExecution": Each(
            Fields(
                {"weight": Count("1 to 100.", 1, 100), "preference": _NODE_TERM},
                required=("weight", "preference"),
            )
        ),
    },
    "By labels of nodes.",
)

_EXPRESSIONS: Final = Each(
    Fields(
        {
            "key": Text("The label.", longest=317),
            "operator": Text("What must hold.", words=("In", "NotIn", "Exists", "DoesNotExist")),
            "values": Each(PLAIN, "Values to compare with, for In and NotIn."),
        },
        required=("key", "operator"),
    ),
    "All must hold.",
)


def selector(about: str) -> Fields:
    """matchLabels and matchExpressions."""
    return Fields({"matchLabels": Named(PLAIN, "All must hold."), "matchExpressions": _EXPRESSIONS}, about)


_POD_TERM: Final = Fields(
    {
        "labelSelector": selector("Of which pods."),
        "namespaces": Each(PLAIN, "In which namespaces; none: the pod's own."),
        "topologyKey": Text("The node's label that says how near.", r"^.+$", wanted="a label of nodes"),
    },
    required=("topologyKey",),
)
_POD_AFFINITY: Final = Fields(
    {
        "requiredDuringSchedulingIgnoredDuringExecution": Each(_POD_TERM),
        "preferredDuringSchedulingIgnoredDuringExecution": Each(
            Fields(
                {"weight": Count("1 to 100.", 1, 100), "podAffinityTerm": _POD_TERM},
                required=("weight", "podAffinityTerm"),
            )
        ),
    }
)


def affinity(about: str) -> Node:
    """Towards nodes, towards pods and away from them."""
    keys = {"nodeAffinity": NODE_AFFINITY, "podAffinity": _POD_AFFINITY, "podAntiAffinity": _POD_AFFINITY}
    return Fields(keys, about)


class _Amounts(Named):
    """How much of which resource of a node, such as cpu. One with a domain in its name is a device, which is
    given to one pod alone: asking for none is all that an exporter may.
    """

    def check(self, value: object, path: str) -> Iterator[Problem]:
        """What is wrong with a value, beyond what the schema can say."""
        yield from super().check(value, path)
        for name, amount in value.items() if isinstance(value, Mapping) else ():
            if "/" in str(name) and amount not in (None, 0, "0"):
                yield Problem(
                    f"{path}.{name}",
                    "would take a device from the pods that compute with it; every GPU is seen without "
                    "asking for one: leave it out",
                )


_AMOUNTS: Final = _Amounts(NumberOrText(pattern=_QUANTITY, wanted="an amount such as 100m or 64Mi"))


def resources(about: str) -> Node:
    """Requests and limits of a container."""
    return Fields({"requests": _AMOUNTS, "limits": _AMOUNTS}, about)


def _reference(name: str) -> Node:
    keys: dict[str, Node] = {
        "name": Text(f"The {name}'s name.", NAME, wanted=f"the name of a {name}"),
        "key": Text("The key in it.", SECRET_KEY, wanted="a key"),
        "optional": Switch("Start without it, too."),
    }
    return Fields(keys, required=("name", "key"))


ENVIRONMENT: Final = Each(
    Fields(
        {
            "name": Text("The variable.", _VARIABLE, wanted="the name of a variable"),
            "value": Text("Its value."),
            "valueFrom": Fields(
                {
                    "secretKeyRef": _reference("Secret"),
                    "configMapKeyRef": _reference("ConfigMap"),
                    "fieldRef": Fields({"fieldPath": Text("A field of the pod.")}, required=("fieldPath",)),
                },
                "Or where its value is.",
            ),
        },
        required=("name",),
    ),
    "Further environment variables, over what the operator sets.",
)


def secret_key(about: str) -> Node:
    """A key of a Secret in the agent's own namespace."""
    keys: dict[str, Node] = {
        "name": Text("The Secret's name.", NAME, wanted="the name of a Secret"),
        "key": Text("The key in it.", SECRET_KEY, wanted="a key of a Secret"),
        "namespace": Text("The agent's own, or nothing: Secrets of others are not read."),
    }
    return Fields(keys, about, required=("name", "key"))
