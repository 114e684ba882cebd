"""Which cluster the agent looks for targets in, as whom, and which share of them is its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gpuledger.agent.discovery.discovery import Scale
from gpuledger.agent.discovery.sharding import Shard, own_stateful_set, parse_shard
from gpuledger.kubernetes.access import Access
from gpuledger.kubernetes.cluster import SERVICE_ACCOUNT, find_access, own_namespace
from gpuledger.kubernetes.settings import ApiServerSettings
from gpuledger.model.errors import UsageError
from gpuledger.model.settings import setting, text


def _shard(value: object) -> str:
    written = text(value)
    if written != "auto":
        parse_shard(written)
    return written


@dataclass(frozen=True, slots=True)
class ClusterSettings(ApiServerSettings):
    """The API server, this agent's namespace and its shard."""

    namespace: str = setting(
        "kubernetes.namespace",
        text,
        "",
        "the agent's own namespace: of the Secrets that targets name, and of its StatefulSet (default: "
        "$POD_NAMESPACE, else the ServiceAccount's)",
        flags=("--namespace",),
        metavar="NAME",
    )
    shard: str = setting(
        "agent.shard",
        _shard,
        "auto",
        "scrape this part of all targets: 0/3 is the first of three; auto takes the ordinal of $POD_NAME in "
        "its StatefulSet, and of how many its replicas are, now and whenever they change; all, without",
        flags=("--shard",),
        metavar="INDEX/COUNT",
    )

    def access(self, environment: Mapping[str, str]) -> Access | None:
        """The API server, None where there is none. Raises GpuledgerError for what cannot be used."""
        return find_access(self, environment)

    def own_namespace(self, environment: Mapping[str, str], account: Path = SERVICE_ACCOUNT) -> str:
        """The agent's namespace; empty where nobody says."""
        return own_namespace(self.namespace, environment, account)

    def own_shard(self, environment: Mapping[str, str]) -> Shard | Scale:
        """The share that is fixed, or the StatefulSet that tells it. Raises UsageError."""
        if self.shard != "auto":
            return parse_shard(self.shard)
        pod = environment.get("POD_NAME", "")
        if not pod:
            return Shard()
        name, ordinal = own_stateful_set(pod)
        namespace = self.own_namespace(environment)
        if not namespace:
            raise UsageError("--shard auto: of which namespace is this pod? Set POD_NAMESPACE or --namespace")
        return Scale(namespace, name, ordinal)
