"""The Settings of `gpuledger agent`, under the titles that --help shows."""

from __future__ import annotations

from gpuledger.agent.settings import AgentSettings
from gpuledger.config.settings import LogSettings

AGENT: dict[str, type] = {"the agent": AgentSettings, "log": LogSettings}
