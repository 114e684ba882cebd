"""What rendering knows besides the resource: whose objects they are, and how the operator was set up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from gpuledger.host.yaml_documents import read_document
from gpuledger.kubernetes.access import Access
from gpuledger.model.errors import UsageError
from gpuledger.operator.programs import Check, takes_all
from gpuledger.operator.schema.nodes import Fields, Text
from gpuledger.operator.schema.pods import NAME, PULL_POLICY, PULL_SECRETS, image
from gpuledger.operator.schema.scraping import EXTERNAL_LABELS, REMOTE_WRITE
from gpuledger.operator.sections import made, mappings, same
from gpuledger.operator.spec import Plain


@dataclass(frozen=True, slots=True)
class Owner:
    """The resource that the objects belong to."""

    api_version: str
    kind: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class Facts:
    """What does not depend on the resource's content.

    `namespace` is the operator's own, for GpuMonitors; `whatap_namespace` that of a WhatapAgent.
    `exporter_role` and `agent_role` are the chart's ClusterRoles of these, `agent_own_role` the one for what
    an agent reads in its own namespace. `check_agent` and `check_exporter` are the programs' own readers of
    what they are given, `exporter_restarts` the settings that a running exporter cannot change: these
    programs are not to be imported here.
    """

    owner: Owner
    namespace: str = "gpuledger"
    whatap_namespace: str = "whatap-monitoring"
    image: str = "gpuledger"
    image_pull_policy: str = "IfNotPresent"
    image_pull_secrets: tuple[Plain, ...] = ()
    prometheus_image: str = "quay.io/prometheus/prometheus:v3.5.0"
    exporter_role: str = "gpuledger"
    agent_role: str = "gpuledger-agent"
    agent_own_role: str = "gpuledger-agent-own"
    scc_role: str = ""
    default_remote_write: tuple[Plain, ...] = ()
    external_labels: Mapping[str, str] = field(default_factory=dict)
    check_agent: Check = takes_all
    check_exporter: Check = takes_all
    exporter_restarts: frozenset[str] = frozenset()

    def of(self, owner: Owner) -> Facts:
        """The same for another resource."""
        return replace(self, owner=owner)


_NOBODY: Final = Owner("", "", "", "")
_NAME: Final = Text(pattern=NAME, wanted="a name")
_SETTINGS: Final = Fields(
    {
        "namespace": _NAME,
        "whatapNamespace": _NAME,
        "image": image(""),
        "imagePullPolicy": PULL_POLICY,
        "imagePullSecrets": PULL_SECRETS,
        "prometheusImage": image(""),
        "exporterRole": _NAME,
        "agentRole": _NAME,
        "agentOwnRole": _NAME,
        "sccRole": Text(pattern=f"{NAME}|^$", wanted="a name"),
        "defaultRemoteWrite": REMOTE_WRITE,
        "externalLabels": EXTERNAL_LABELS,
    }
)
_FIELDS: Final = {
    "namespace": ("namespace", same),
    "whatapNamespace": ("whatap_namespace", same),
    "image": ("image", same),
    "imagePullPolicy": ("image_pull_policy", same),
    "imagePullSecrets": ("image_pull_secrets", mappings),
    "prometheusImage": ("prometheus_image", same),
    "exporterRole": ("exporter_role", same),
    "agentRole": ("agent_role", same),
    "agentOwnRole": ("agent_own_role", same),
    "sccRole": ("scc_role", same),
    "defaultRemoteWrite": ("default_remote_write", mappings),
    "externalLabels": ("external_labels", same),
}


def read_facts(file: Path) -> Facts:
    """The operator's own configuration file, as the chart writes it; the owner is nobody yet.

    Raises UsageError with one line that names the file and the key.
    """
    said = read_document(file) or {}
    problem = next(_SETTINGS.check(said, str(file)), None)
    if problem is not None:
        raise UsageError(str(problem))
    return made(Facts, {**said, "owner": _NOBODY}, {**_FIELDS, "owner": ("owner", same)})


@dataclass(frozen=True, slots=True)
class Place:
    """The API server, the operator's own namespace, and the name by which it holds the Lease."""

    access: Access
    namespace: str
    identity: str
