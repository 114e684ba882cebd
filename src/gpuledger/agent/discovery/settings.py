"""Settings of discovery: the API server, the agent's namespace and its shard."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpuledger.agent.discovery.discovery import StatefulSetMember
from gpuledger.agent.discovery.sharding import Shard, parse_shard, parse_stateful_set_pod
from gpuledger.kubernetes.cluster_access import own_namespace
from gpuledger.kubernetes.settings import ApiServerSettings
from gpuledger.model.errors import UsageError
from gpuledger.model.settings import option, text


def _shard(value: object) -> str:
    written = text(value)
    if written != "auto":
        parse_shard(written)
    return written


@dataclass(frozen=True, slots=True)
class ClusterSettings(ApiServerSettings):
    """The API server, this agent's namespace and its shard."""

    namespace: str = option(
        "kubernetes.namespace",
        text,
        "",
        "the agent's namespace, which holds the Secrets that targets refer to and its StatefulSet (default: "
        "$POD_NAMESPACE, else the ServiceAccount's)",
        metavar="NAME",
    )
    shard: str = option(
        "agent.shard",
        _shard,
        "auto",
        "scrape this shard of the targets: 0/3 is the first of three; auto uses the ordinal of $POD_NAME and "
        "the current number of replicas of its StatefulSet, or scrapes all targets without $POD_NAME",
        metavar="INDEX/COUNT",
    )

    def own_shard(self, environment: Mapping[str, str]) -> Shard | StatefulSetMember:
        """Return the fixed shard, or the StatefulSet that determines it. Raises UsageError."""
        if self.shard != "auto":
            return parse_shard(self.shard)
        pod = environment.get("POD_NAME", "")
        if not pod:
            return Shard()
        name, ordinal = parse_stateful_set_pod(pod)
        namespace = own_namespace(self.namespace, environment)
        if not namespace:
            raise UsageError("--shard auto: the pod's namespace is unknown; set POD_NAMESPACE or --namespace")
        return StatefulSetMember(namespace, name, ordinal)
