"""The Settings of `gpuledger agent` and `gpuledger operator`, under the titles that --help shows."""

from __future__ import annotations

from gpuledger.agent.discovery.settings import ClusterSettings
from gpuledger.agent.settings import AgentSettings
from gpuledger.config.compatibility import RemovedSettings
from gpuledger.config.settings import LogSettings
from gpuledger.http.hosts import HostNameSettings
from gpuledger.http.limits import HttpLimits
from gpuledger.kubernetes.settings import ApiServerSettings
from gpuledger.operator.settings import OperatorSettings

AGENT_GROUPS: dict[str, type] = {
    "agent": AgentSettings,
    "allowed host names": HostNameSettings,
    "limits of the HTTP server": HttpLimits,
    "Kubernetes cluster": ClusterSettings,
    "log": LogSettings,
    "removed settings": RemovedSettings,
}


OPERATOR_GROUPS: dict[str, type] = {
    "operator": OperatorSettings,
    "allowed host names": HostNameSettings,
    "limits of the HTTP server": HttpLimits,
    "Kubernetes cluster": ApiServerSettings,
    "log": LogSettings,
    "removed settings": RemovedSettings,
}
