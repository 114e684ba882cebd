"""The Settings of `gpuledger agent`, under the titles that --help shows."""

from __future__ import annotations

from gpuledger.agent.discovery.settings import ClusterSettings
from gpuledger.agent.settings import AgentSettings
from gpuledger.config.settings import LogSettings
from gpuledger.outputs.allowed_hosts import HostNames
from gpuledger.outputs.limits import Limits

AGENT: dict[str, type] = {
    "the agent": AgentSettings,
    "under which names it is asked": HostNames,
    "how much of it clients may use": Limits,
    "the cluster": ClusterSettings,
    "log": LogSettings,
}
