"""Schema nodes of fields that are copied into pods; they have the keys of Kubernetes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from gpuledger.operator.schema import cel_rules
from gpuledger.operator.schema.nodes import (
    INT64,
    BooleanNode,
    IntegerNode,
    IntOrStringNode,
    ListNode,
    MapNode,
    ObjectNode,
    Problem,
    SchemaNode,
    TextNode,
)
from gpuledger.workloads.pods.capacities import parse_quantity

NAME: Final = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
SECRET_KEY: Final = "^[-._a-zA-Z0-9]+$"
_LABEL_NAME: Final = "^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
_LABEL_VALUE: Final = "^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$"
_QUANTITY: Final = "^[0-9]+([.][0-9]*)?(m|k|Ki|[MGTPE]i?|[eE][0-9]{1,2})?$"
_LEAST_BYTES: Final = 4 * 2**20
_MOST_CORES: Final = 8
_MOST_LABELS: Final = 64
_MOST_TERMS: Final = 64
_VARIABLE: Final = "^[-._a-zA-Z][-._a-zA-Z0-9]*$"

LABEL_VALUE: Final = TextNode(pattern=_LABEL_VALUE, expected="the value of a label", max_length=63)
LABEL_NAME: Final = TextNode(pattern=_LABEL_NAME, expected="the name of a label", max_length=317)
PLAIN: Final = TextNode()


def labels_node(description: str) -> SchemaNode:
    """Labels by name."""
    return MapNode(LABEL_VALUE, description, LABEL_NAME, _MOST_LABELS, (cel_rules.LABEL_NAMES,))


def annotations_node(description: str) -> SchemaNode:
    """Annotations by name."""
    return MapNode(PLAIN, description, LABEL_NAME, _MOST_LABELS, (cel_rules.LABEL_NAMES,))


def image_node(description: str) -> SchemaNode:
    """The name of an image."""
    return TextNode(description, r"^[^\s]+$", expected="the name of an image", max_length=512)


def name_node(description: str, expected: str) -> TextNode:
    """The name of an object."""
    return TextNode(description, NAME, expected=expected)


PULL_POLICY: Final = TextNode(
    "When the kubelet pulls the image.", choices=("Always", "IfNotPresent", "Never")
)
PULL_SECRETS: Final = ListNode(
    ObjectNode({"name": name_node("Name of the Secret.", "the name of a Secret")}, required=("name",)),
    "Secrets with credentials for image registries, in the namespace of the pods.",
)

TOLERATIONS: Final = ListNode(
    ObjectNode(
        {
            "key": TextNode("Key of the taint; empty with Exists: all taints.", max_length=317),
            "operator": TextNode("Equal by default.", choices=("Exists", "Equal", "Lt", "Gt")),
            "value": TextNode("Value of the taint.", max_length=63),
            "effect": TextNode(
                "Empty: all effects.", choices=("", "NoSchedule", "PreferNoSchedule", "NoExecute")
            ),
            "tolerationSeconds": IntegerNode("How long NoExecute is tolerated.", -INT64, INT64),
        },
        rules=cel_rules.TOLERATION,
    ),
    "Taints of nodes that the pods tolerate.",
    max_items=128,
)


def _expressions(key: str, operators: tuple[str, ...], values: str, description: str = "") -> ListNode:
    keys: dict[str, SchemaNode] = {
        "key": TextNode(key, max_length=317),
        "operator": TextNode("How the value is compared.", choices=operators),
        "values": ListNode(PLAIN, values),
    }
    item = ObjectNode(keys, required=("key", "operator"), rules=(cel_rules.LABEL_EXPRESSION,))
    return ListNode(item, description, max_items=_MOST_TERMS)


def _preferred(key: str, term: ObjectNode) -> ListNode:
    keys: dict[str, SchemaNode] = {"weight": IntegerNode("1 to 100.", 1, 100), key: term}
    return ListNode(ObjectNode(keys, required=tuple(keys)), max_items=_MOST_TERMS)


_OPERATORS: Final = ("In", "NotIn", "Exists", "DoesNotExist")
_NODE_EXPRESSIONS: Final = _expressions(
    "Name of the label, or the field metadata.name.", (*_OPERATORS, "Gt", "Lt"), "Values to compare with."
)
_NODE_TERM: Final = ObjectNode({"matchExpressions": _NODE_EXPRESSIONS, "matchFields": _NODE_EXPRESSIONS})
_NODE_AFFINITY: Final = ObjectNode(
    {
        "requiredDuringSchedulingIgnoredDuringExecution": ObjectNode(
            {
                "nodeSelectorTerms": ListNode(
                    _NODE_TERM, "At least one term must hold.", min_items=1, max_items=_MOST_TERMS
                )
            },
            required=("nodeSelectorTerms",),
        ),
        "preferredDuringSchedulingIgnoredDuringExecution": _preferred("preference", _NODE_TERM),
    },
    "Rules by labels of nodes.",
)

_EXPRESSIONS: Final = _expressions(
    "Name of the label.",
    _OPERATORS,
    "Values to compare with, for In and NotIn.",
    "Expressions, all of which must hold.",
)


def selector_node(description: str) -> ObjectNode:
    """A label selector: matchLabels and matchExpressions."""
    return ObjectNode(
        {"matchLabels": MapNode(PLAIN, "Labels, all of which must match."), "matchExpressions": _EXPRESSIONS},
        description,
    )


_POD_TERM: Final = ObjectNode(
    {
        "labelSelector": selector_node("Selects the other pods."),
        "namespaces": ListNode(PLAIN, "Namespaces of the other pods; by default the pod's own."),
        "topologyKey": TextNode(
            "Node label; nodes with the same value are the same place.", r"^.+$", expected="a label of nodes"
        ),
    },
    required=("topologyKey",),
)
_POD_AFFINITY: Final = ObjectNode(
    {
        "requiredDuringSchedulingIgnoredDuringExecution": ListNode(_POD_TERM, max_items=_MOST_TERMS),
        "preferredDuringSchedulingIgnoredDuringExecution": _preferred("podAffinityTerm", _POD_TERM),
    }
)


def affinity_node(description: str) -> SchemaNode:
    """Affinity to nodes and pods, and anti-affinity to pods."""
    keys = {"nodeAffinity": _NODE_AFFINITY, "podAffinity": _POD_AFFINITY, "podAntiAffinity": _POD_AFFINITY}
    return ObjectNode(keys, description)


class _AmountsNode(MapNode):
    """Amounts of a node's resources, such as cpu. A name with a domain is a device, which Kubernetes
    allocates exclusively: an exporter may not request any.
    """

    def check(self, value: object, path: str) -> Iterator[Problem]:
        """See SchemaNode; also rejects devices, which the OpenAPI schema cannot express."""
        yield from super().check(value, path)
        for name, amount in value.items() if isinstance(value, Mapping) else ():
            if "/" in str(name) and amount not in (None, 0, "0"):
                yield Problem(
                    f"{path}.{name}",
                    "would allocate a device that workloads need; all GPUs are visible without a request: "
                    "leave it out",
                )
            elif problem := _find_wrong_unit(str(name), amount):
                yield Problem(f"{path}.{name}", problem)


def _find_wrong_unit(name: str, amount: object) -> str:
    """What is wrong with an amount without its unit, which Kubernetes accepts; else empty."""
    number = parse_quantity(amount)
    if number is None:
        return ""
    if name in ("memory", "ephemeral-storage") and number < _LEAST_BYTES:
        return f"{amount} is {float(number):g} bytes, with which no container starts; add a unit, as in 128Mi"
    if name == "cpu" and number > _MOST_CORES:
        return f"{amount} is {float(number):g} cores, more than the program can use; add a unit, as in 100m"
    return ""


class VolumeSizeNode(IntOrStringNode):
    """The size of a volume."""

    rules = (cel_rules.VOLUME_SIZE,)

    def check(self, value: object, path: str) -> Iterator[Problem]:
        """See SchemaNode; also rejects a size without its unit, which is far too small."""
        problems = [*super().check(value, path)]
        yield from problems
        number = None if problems else parse_quantity(value)
        if number is not None and number < _LEAST_BYTES:
            yield Problem(path, f"{value} is less than 4Mi; set a size with its unit, as in 2Gi")


class _ResourcesNode(ObjectNode):
    """Requests and limits. They are read as strings: older API servers refuse numbers in an apply."""

    def check(self, value: object, path: str) -> Iterator[Problem]:
        """See SchemaNode; also rejects requests above their limits."""
        problems = [*super().check(value, path)]
        yield from problems
        if problems or not isinstance(value, Mapping):
            return
        limits = value.get("limits") or {}
        for name, amount in (value.get("requests") or {}).items():
            request, limit = parse_quantity(amount), parse_quantity(limits.get(name))
            if request is not None and limit is not None and request > limit:
                yield Problem(f"{path}.requests.{name}", f"{amount} is above the limit of {limits[name]}")

    def read(self, value: Any) -> dict[str, dict[str, str]]:
        """See SchemaNode."""
        return {
            part: {name: str(amount) for name, amount in amounts.items() if amount is not None}
            for part, amounts in value.items()
            if amounts is not None
        }


_AMOUNTS: Final = _AmountsNode(
    IntOrStringNode(pattern=_QUANTITY, expected="an amount such as 100m or 64Mi"),
    max_items=16,
    rules=cel_rules.AMOUNTS,
)


def resources_node(description: str) -> SchemaNode:
    """Requests and limits of a container."""
    keys = {"requests": _AMOUNTS, "limits": _AMOUNTS}
    return _ResourcesNode(keys, description, rules=cel_rules.RESOURCES)


def _reference(kind: str, expected: str, description: str = "", **more: SchemaNode) -> SchemaNode:
    keys: dict[str, SchemaNode] = {
        "name": name_node(f"Name of the {kind}.", f"the name of a {kind}"),
        "key": TextNode(f"Key in the {kind}.", SECRET_KEY, expected=expected),
    }
    return ObjectNode({**keys, **more}, description, required=("name", "key"))


_OPTIONAL: Final = BooleanNode("Start the container even if it is missing.")


ENVIRONMENT: Final = ListNode(
    ObjectNode(
        {
            "name": TextNode("Name of the variable.", _VARIABLE, expected="the name of a variable"),
            "value": TextNode("Value of the variable."),
            "valueFrom": ObjectNode(
                {
                    "secretKeyRef": _reference("Secret", "a key", optional=_OPTIONAL),
                    "configMapKeyRef": _reference("ConfigMap", "a key", optional=_OPTIONAL),
                    "fieldRef": ObjectNode(
                        {
                            "fieldPath": TextNode("A field of the pod."),
                            "apiVersion": TextNode("Version of the field's path; v1 by default."),
                        },
                        required=("fieldPath",),
                    ),
                    "resourceFieldRef": ObjectNode(
                        {
                            "resource": TextNode("A request or limit, such as limits.memory."),
                            "containerName": TextNode("A container; this one by default."),
                            "divisor": IntOrStringNode(
                                "Unit of the value.", _QUANTITY, "an amount such as 1 or 1Mi"
                            ),
                        },
                        required=("resource",),
                    ),
                    "fileKeyRef": ObjectNode(
                        {
                            "volumeName": name_node("Name of the volume.", "the name of a volume"),
                            "path": TextNode("File in the volume.", r"^.+$", expected="a path"),
                            "key": TextNode("Variable in the file.", r"^.+$", expected="a key"),
                            "optional": _OPTIONAL,
                        },
                        "A variable in a file that an init container writes, since Kubernetes 1.34.",
                        required=("volumeName", "path", "key"),
                    ),
                },
                "Source of the value, instead of `value`.",
                rules=(cel_rules.VARIABLE_SOURCE,),
            ),
        },
        required=("name",),
        rules=(cel_rules.VARIABLE,),
    ),
    "Further environment variables; they override those that the operator sets.",
    max_items=1000,
)


VOLUMES: Final = ListNode(
    ObjectNode(
        {"name": name_node("Name of the volume.", "the name of a volume")}, required=("name",), open=True
    ),
    "Further volumes of the pods, in Kubernetes' form.",
)
VOLUME_MOUNTS: Final = ListNode(
    ObjectNode(
        {
            "name": name_node("Name of the volume.", "the name of a volume"),
            "mountPath": TextNode("Path in the container.", r"^[^:]+$", expected="a path"),
        },
        required=("name", "mountPath"),
        open=True,
    ),
    "Further volume mounts of the container, in Kubernetes' form.",
)
PEERS: Final = ListNode(
    ObjectNode(open=True),
    "Peers that may scrape, as in a NetworkPolicy, besides operator and agent; all by default.",
)


def secret_key_node(description: str) -> SchemaNode:
    """A key of a Secret in the agent's own namespace."""
    namespace = TextNode("Only the agent's own namespace is allowed; omit it.")
    return _reference("Secret", "a key of a Secret", description, namespace=namespace)
