"""The Settings of `gpuledger operator`, under the titles that --help shows."""

from __future__ import annotations

from gpuledger.agent.discovery.settings import ClusterSettings
from gpuledger.agent.settings import AgentSettings
from gpuledger.config.settings import LogSettings
from gpuledger.http.hosts import HostNames
from gpuledger.http.limits import Limits
from gpuledger.kubernetes.settings import ApiServerSettings
from gpuledger.operator.settings import OperatorSettings

AGENT: dict[str, type] = {
    "the agent": AgentSettings,
    "under which names it is asked": HostNames,
    "how much of it clients may use": Limits,
    "the cluster": ClusterSettings,
    "log": LogSettings,
}


OPERATOR: dict[str, type] = {
    "the operator": OperatorSettings,
    "under which names it is asked": HostNames,
    "how much of it clients may use": Limits,
    "the cluster": ApiServerSettings,
    "log": LogSettings,
}
