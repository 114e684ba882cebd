"""The Settings of `gpuledger operator`, under the titles that --help shows."""

from __future__ import annotations

from gpuledger.config.settings import LogSettings
from gpuledger.operator.settings import OperatorSettings
from gpuledger.outputs.allowed_hosts import HostNames
from gpuledger.outputs.limits import Limits
from gpuledger.workloads.pods.settings import ApiServerSettings

OPERATOR: dict[str, type] = {
    "the operator": OperatorSettings,
    "under which names it is asked": HostNames,
    "how much of it clients may use": Limits,
    "the cluster": ApiServerSettings,
    "log": LogSettings,
}
