"""Settings of the operator process. What it deploys is configured in the custom resources."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gpuledger.http.addresses import Address, parse_address_setting
from gpuledger.kubernetes.cluster_access import SERVICE_ACCOUNT, own_namespace
from gpuledger.model.errors import UsageError
from gpuledger.model.settings import boolean, duration, setting, text


@dataclass(frozen=True, slots=True)
class OperatorSettings:
    """Address, namespace, leader election and intervals of the operator."""

    listen_address: Address = setting(
        "operator.listen_address",
        parse_address_setting,
        Address("", 9402),
        "serve the operator's own metrics and probes on this address",
        flags=("--listen-address",),
        metavar="ADDR",
    )
    namespace: str = setting(
        "operator.namespace",
        text,
        "",
        "namespace of the Lease, and of created objects unless --config names another "
        "(default: $POD_NAMESPACE, else the ServiceAccount's)",
        flags=("--namespace",),
        metavar="NAME",
    )
    whatap_compat: bool = setting(
        "operator.whatap_compat",
        boolean,
        False,
        "reconcile WhatapAgent resources, too, unless their CRD belongs to another product",
        flags=("--whatap-compat",),
    )
    lease_name: str = setting(
        "operator.lease_name",
        text,
        "gpuledger-operator",
        "name of the Lease for leader election; only one of the operators with the same Lease is active",
        flags=("--lease-name",),
        metavar="NAME",
    )
    lease_duration: float = setting(
        "operator.lease_duration",
        duration(lowest=1.0, highest=600.0),
        15.0,
        "another operator takes over if the leader has not renewed its Lease for this long",
        flags=("--lease-duration",),
        metavar="DURATION",
    )
    status_interval: float = setting(
        "operator.status_interval",
        duration(lowest=0.1, highest=3600.0),
        10.0,
        "write changed numbers into the status of a resource at most this often; changed conditions are "
        "written at once",
        flags=("--status-interval",),
        metavar="DURATION",
    )
    agent_interval: float = setting(
        "operator.agent_interval",
        duration(lowest=0.1, highest=3600.0),
        15.0,
        "how often to query the agents for the numbers of their targets",
        flags=("--agent-interval",),
        metavar="DURATION",
    )
    resync_interval: float = setting(
        "operator.resync_interval",
        duration(lowest=1.0, highest=86_400.0),
        600.0,
        "how often to list all objects, in case a watch missed a deletion",
        flags=("--resync-interval",),
        metavar="DURATION",
    )
    progress_deadline: float = setting(
        "operator.progress_deadline",
        duration(lowest=0.1, highest=86_400.0),
        600.0,
        "a rollout without progress for this long is Degraded, not Progressing",
        flags=("--progress-deadline",),
        metavar="DURATION",
    )

    def own_namespace(self, environment: Mapping[str, str], account: Path = SERVICE_ACCOUNT) -> str:
        """The namespace of the Lease and of created objects. Raises UsageError if none is set."""
        namespace = own_namespace(self.namespace, environment, account)
        if not namespace:
            raise UsageError("the operator's namespace is not known; set POD_NAMESPACE or --namespace")
        return namespace
