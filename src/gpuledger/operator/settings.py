"""What a user sets about the operator; what it is to make of a cluster is in the custom resources."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gpuledger.http.addresses import Address, as_address
from gpuledger.kubernetes.cluster import SERVICE_ACCOUNT, own_namespace
from gpuledger.model.errors import UsageError
from gpuledger.model.settings import boolean, duration, setting, text


@dataclass(frozen=True, slots=True)
class OperatorSettings:
    """Where the operator lives, how several agree on one that acts, and how often it looks and writes."""

    listen_address: Address = setting(
        "operator.listen_address",
        as_address,
        Address("", 9402),
        "serve the operator's own metrics and probes on this address",
        flags=("--listen-address",),
        metavar="ADDR",
    )
    namespace: str = setting(
        "operator.namespace",
        text,
        "",
        "the operator's own namespace: of its Lease, and of what is made unless --config names another "
        "(default: $POD_NAMESPACE, else the ServiceAccount's)",
        flags=("--namespace",),
        metavar="NAME",
    )
    whatap_compat: bool = setting(
        "operator.whatap_compat",
        boolean,
        False,
        "serve WhatapAgent resources too, unless their definition is another product's",
        flags=("--whatap-compat",),
    )
    lease_name: str = setting(
        "operator.lease_name",
        text,
        "gpuledger-operator",
        "operators that name the same Lease in the same namespace agree on one of them that acts",
        flags=("--lease-name",),
        metavar="NAME",
    )
    lease_duration: float = setting(
        "operator.lease_duration",
        duration(lowest=1.0, highest=600.0),
        15.0,
        "another operator takes over when the one that acts has not renewed its Lease for so long",
        flags=("--lease-duration",),
        metavar="DURATION",
    )
    status_interval: float = setting(
        "operator.status_interval",
        duration(lowest=0.1, highest=3600.0),
        10.0,
        "numbers in a resource's status are written so often at most; conditions that change, at once",
        flags=("--status-interval",),
        metavar="DURATION",
    )
    agent_interval: float = setting(
        "operator.agent_interval",
        duration(lowest=0.1, highest=3600.0),
        15.0,
        "ask the agents so often how many targets they have and how many of them are up",
        flags=("--agent-interval",),
        metavar="DURATION",
    )
    resync_interval: float = setting(
        "operator.resync_interval",
        duration(lowest=1.0, highest=86_400.0),
        600.0,
        "list what was made so often, in case that a watch has missed a deletion",
        flags=("--resync-interval",),
        metavar="DURATION",
    )
    progress_deadline: float = setting(
        "operator.progress_deadline",
        duration(lowest=0.1, highest=86_400.0),
        600.0,
        "pods that are not ready and become no more for so long are Degraded, not Progressing",
        flags=("--progress-deadline",),
        metavar="DURATION",
    )

    def own_namespace(self, environment: Mapping[str, str], account: Path = SERVICE_ACCOUNT) -> str:
        """The namespace of the Lease and of what is made. Raises UsageError where nobody says."""
        named = own_namespace(self.namespace, environment, account)
        if not named:
            raise UsageError("which namespace is the operator's own? Set POD_NAMESPACE or --namespace")
        return named
