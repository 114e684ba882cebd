"""The Settings of `gpuledger operator`, under the titles that --help shows."""

from __future__ import annotations

from gpuledger.config.settings import LogSettings
from gpuledger.operator.settings import OperatorSettings
from gpuledger.workloads.pods.settings import ApiServerSettings

OPERATOR: dict[str, type] = {
    "the operator": OperatorSettings,
    "the cluster": ApiServerSettings,
    "log": LogSettings,
}
