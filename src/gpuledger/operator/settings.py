"""Settings of the operator process. What it deploys is configured in the custom resources."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gpuledger.http.addresses import Address, parse_address_setting
from gpuledger.kubernetes.cluster_access import SERVICE_ACCOUNT, own_namespace
from gpuledger.model.errors import UsageError
from gpuledger.model.settings import boolean, duration, option, text


@dataclass(frozen=True, slots=True)
class OperatorSettings:
    """Address, namespace, leader election and intervals of the operator."""

    listen_address: Address = option(
        "operator.listen_address",
        parse_address_setting,
        Address("", 9402),
        "serve the operator's own metrics and probes on this address",
        metavar="ADDR",
    )
    namespace: str = option(
        "operator.namespace",
        text,
        "",
        "namespace of the Lease, and of created objects unless --config names another "
        "(default: $POD_NAMESPACE, else the ServiceAccount's)",
        metavar="NAME",
    )
    whatap_compat: bool = option(
        "operator.whatap_compat",
        boolean,
        False,
        "reconcile WhatapAgent resources, too, unless their CRD belongs to another product",
    )
    lease_name: str = option(
        "operator.lease_name",
        text,
        "gpuledger-operator",
        "name of the Lease for leader election; only one of the operators with the same Lease is active",
        metavar="NAME",
    )
    lease_duration: float = option(
        "operator.lease_duration",
        duration(lowest=1.0, highest=600.0),
        15.0,
        "another operator takes over if the leader has not renewed its Lease for this long",
    )
    status_interval: float = option(
        "operator.status_interval",
        duration(lowest=0.1, highest=3600.0),
        10.0,
        "write changed numbers into the status of a resource at most this often; changed conditions are "
        "written at once",
    )
    agent_interval: float = option(
        "operator.agent_interval",
        duration(lowest=0.1, highest=3600.0),
        15.0,
        "how often to query the agents for the numbers of their targets",
    )
    nodes_interval: float = option(
        "operator.nodes_interval",
        duration(lowest=0.1, highest=86_400.0),
        300.0,
        "how often to list the GPU nodes for CronJobs, while a resource has one",
    )
    resync_interval: float = option(
        "operator.resync_interval",
        duration(lowest=1.0, highest=86_400.0),
        600.0,
        "how often to list all objects, in case a watch missed a deletion",
    )
    progress_deadline: float = option(
        "operator.progress_deadline",
        duration(lowest=0.1, highest=86_400.0),
        600.0,
        "a rollout without progress for this long is Degraded, not Progressing",
    )

    def own_namespace(self, environment: Mapping[str, str], account: Path = SERVICE_ACCOUNT) -> str:
        """The namespace of the Lease and of created objects. Raises UsageError if none is set."""
        namespace = own_namespace(self.namespace, environment, account)
        if not namespace:
            raise UsageError("the operator's namespace is not known; set POD_NAMESPACE or --namespace")
        return namespace
