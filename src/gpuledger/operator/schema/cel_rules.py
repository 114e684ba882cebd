"""CEL rules of the CRDs: what API servers refuse although its type is right.

They are for Kubernetes 1.30 and newer, with functions of 1.29: since 1.30 a stored value that breaks a new
rule remains valid until it is changed, so that an upgrade of the CRD refuses no change of another field.
"""

from __future__ import annotations

from typing import Final

from gpuledger.operator.schema.nodes import CelRule

# Pods

LABEL_NAMES: Final = CelRule(
    "self.all(name, name.matches('^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?"
    "[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$'))",
    "expected names of labels as keys",
)
TOLERATION: Final = (
    CelRule(
        "!has(self.operator) || self.operator != 'Exists' || !has(self.value) || self.value == ''",
        "operator Exists takes no value",
    ),
    CelRule(
        "has(self.key) && self.key != '' || has(self.operator) && self.operator == 'Exists'",
        "without a key, the operator must be Exists",
    ),
    CelRule(
        "!has(self.tolerationSeconds) || has(self.effect) && self.effect == 'NoExecute'",
        "tolerationSeconds needs the effect NoExecute",
    ),
)
LABEL_EXPRESSION: Final = CelRule(
    "self.operator in ['In', 'NotIn'] ? has(self.values) && size(self.values) > 0"
    " : self.operator in ['Exists', 'DoesNotExist'] ? !has(self.values) || size(self.values) == 0"
    " : has(self.values) && size(self.values) == 1",
    "In and NotIn need values, Gt and Lt exactly one, Exists and DoesNotExist none",
)
VARIABLE: Final = CelRule(
    "!has(self.value) || self.value == '' || !has(self.valueFrom)",
    "value conflicts with valueFrom; set only one of them",
)
VARIABLE_SOURCE: Final = CelRule(
    "[has(self.secretKeyRef), has(self.configMapKeyRef), has(self.fieldRef), has(self.resourceFieldRef), "
    "has(self.fileKeyRef)].filter(given, given).size() == 1",
    "expected exactly one source",
)
AMOUNTS: Final = (
    CelRule(
        "self.all(name, !name.contains('/') || string(self[name]) == '0')",
        "would allocate a device that workloads need; all GPUs are visible without a request: leave it out",
    ),
    *(
        CelRule(
            f"!('{name}' in self) || quantity(string(self['{name}'])).compareTo(quantity('4Mi')) >= 0",
            f"{name} has too few bytes to start a container; add a unit, as in 128Mi",
        )
        for name in ("memory", "ephemeral-storage")
    ),
    CelRule(
        "!('cpu' in self) || quantity(string(self['cpu'])).compareTo(quantity('8')) <= 0",
        "cpu has more cores than the program can use; add a unit, as in 100m",
    ),
)
VOLUME_SIZE: Final = CelRule(
    "quantity(string(self)).compareTo(quantity('4Mi')) >= 0",
    "less than 4Mi; set a size with its unit, as in 2Gi",
)
# A loop over all names would cost more than the API server allows.
RESOURCES: Final = tuple(
    CelRule(
        "!has(self.requests) || !has(self.limits)"
        f" || !('{name}' in self.requests) || !('{name}' in self.limits)"
        f" || quantity(string(self.requests['{name}']))"
        f".compareTo(quantity(string(self.limits['{name}']))) <= 0",
        f"the request for {name} is above the limit",
    )
    for name in ("cpu", "memory", "ephemeral-storage")
)

# Exporters

EXPORTER: Final = (
    CelRule(
        "!has(self.mode) || !(self.mode in ['collect', 'cronjob']) || !has(self.webConfig)"
        " && (!has(self.extraPorts) || size(self.extraPorts) == 0)",
        "modes collect and cronjob serve no page: leave out extraPorts and webConfig",
    ),
    CelRule(
        "!has(self.mode) || self.mode != 'cronjob' || !has(self.dialects)"
        " || self.dialects.all(one, one in ['process', 'session'])",
        "mode cronjob supports only the dialects process and session; set mode to collect or daemonset",
    ),
    CelRule(
        "!has(self.extraPorts) || self.extraPorts.all(one, one.port != (has(self.port) ? self.port : 9400))",
        "a port of extraPorts is that of the metrics page",
    ),
)
EXTRA_PORT: Final = CelRule("self.name != 'metrics'", "the name metrics is that of the metrics page")
EXTRA_PORTS: Final = CelRule(
    "self.all(one, self.exists_one(other, other.name == one.name)"
    " && self.exists_one(other, other.port == one.port))",
    "expected another name and number for each port",
)

# Relabeling and receivers

ACTIONS: Final = (
    *("replace", "keep", "drop", "keepequal", "dropequal", "hashmod"),
    *("labelmap", "labeldrop", "labelkeep", "lowercase", "uppercase"),
)
_ACTION: Final = "(!has(self.action) || self.action == '' ? 'replace' : self.action.lowerAscii())"
_WITH_TARGET: Final = ("replace", "hashmod", "lowercase", "uppercase", "keepequal", "dropequal")
RELABELING: Final = (
    CelRule(f"{_ACTION} in {[*ACTIONS]}", f"expected an action: {', '.join(ACTIONS)}"),
    CelRule(
        f"{_ACTION} != 'hashmod' || has(self.modulus) && self.modulus > 0",
        "hashmod needs a modulus of at least 1",
    ),
    CelRule(
        f"!({_ACTION} in {[*_WITH_TARGET]}) || has(self.target_label) && self.target_label != ''"
        " || has(self.targetLabel) && self.targetLabel != ''",
        "this action needs a target_label",
    ),
    CelRule(
        "!(has(self.target_label) && has(self.targetLabel))"
        " && !(has(self.source_labels) && has(self.sourceLabels))",
        "a key is given in both spellings; give only one of them",
    ),
)
# Evaluating an invalid expression fails, with the reason.
RE2: Final = CelRule(
    "''.matches('^(?:' + self + ')$') in [true, false]", "is not a valid RE2 regular expression"
)

RECEIVER: Final = (
    CelRule(
        "!(has(self.basicAuth) && has(self.authorization))",
        "give only one of basicAuth and authorization",
    ),
    # A rule of the URL itself would repeat the password in its message.
    CelRule(
        "!self.url.matches('^[a-z]+://[^/?#]*@')",
        "url contains credentials, which all readers of the resource can see; use basicAuth, which names a "
        "Secret",
    ),
)
# Without a name, a receiver is named after its URL.
RECEIVERS: Final = CelRule(
    "self.all(one, has(one.name) ? self.exists_one(other, has(other.name) && other.name == one.name)"
    " : self.exists_one(other, !has(other.name) && other.url == one.url))",
    "each receiver needs another name for its queue",
)
HEADERS: Final = (
    CelRule(
        "self.all(name, name.matches('^[-!#$%&*+.^_`|~0-9A-Za-z]+$'))", "expected names of headers as keys"
    ),
    CelRule(
        "!self.exists(name, name.lowerAscii() in ['authorization', 'host', 'content-encoding',"
        " 'content-length', 'content-type', 'user-agent', 'connection', 'transfer-encoding'])",
        "sets a header that the agent sets itself; use basicAuth or authorization for credentials",
    ),
)
LABELS_OF_SERIES: Final = CelRule(
    "self.all(name, name.matches('^[a-zA-Z_][a-zA-Z0-9_]*$'))", "expected names of labels as keys"
)
QUEUE: Final = CelRule(
    "!has(self.minShards) || !has(self.maxShards) || self.minShards <= self.maxShards",
    "maxShards is below minShards",
)
BASIC_AUTH: Final = CelRule("has(self.username)", "username is missing")
AUTHORIZATION: Final = (
    CelRule(
        "has(self.credentialsSecret) != has(self.credentialsFile)",
        "expected one of credentialsSecret and credentialsFile",
    ),
    CelRule(
        "!has(self.type) || self.type.lowerAscii() != 'basic'",
        "type must not be Basic; use basicAuth instead",
    ),
)
TLS: Final = (
    *(
        CelRule(
            f"!(has(self.{name}Secret) && has(self.{name}File))",
            f"{name}Secret conflicts with {name}File; set only one of them",
        )
        for name in ("ca", "cert", "key")
    ),
    CelRule(
        "(has(self.certSecret) || has(self.certFile)) == (has(self.keySecret) || has(self.keyFile))",
        "a client certificate needs both certificate and key",
    ),
)
