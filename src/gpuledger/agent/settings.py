"""Settings of the agent process. Targets and receivers are in its configuration file."""

from __future__ import annotations

from dataclasses import dataclass

from gpuledger.http.addresses import Address, parse_address_setting
from gpuledger.model.settings import choice, duration, option, setting, size, text


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """Listen address, queue directory and memory of the agent."""

    listen_address: Address = option(
        "agent.listen_address",
        parse_address_setting,
        Address("", 9401),
        "serve the agent's status page and metrics on this address",
        metavar="ADDR",
    )
    web_config: str = setting(
        "agent.web_config",
        text,
        "",
        "configure TLS, client certificates, basic auth and a rate limit for them with an exporter-toolkit "
        "web configuration file",
        flags=("--web.config.file", "--web.config-file"),
        metavar="FILE",
    )
    queue_directory: str = option(
        "agent.queue_directory",
        text,
        "",
        "keep the remote-write queues in this directory (default: remote-write in the state directory)",
        metavar="DIR",
    )
    page_memory: int = option(
        "agent.page_memory",
        size,
        96 << 20,
        "memory for the cached pages of all targets between scrapes; beyond it pages are packed, which makes "
        "a scrape a sixth slower",
        metavar="SIZE",
    )
    look_interval: float = option(
        "agent.look_interval",
        duration(highest=3600.0),
        1.0,
        "check the configuration file for changes at this interval; 0 reloads only on SIGHUP",
    )
    engine: str = option(
        "agent.engine",
        choice("builtin", "prometheus"),
        "builtin",
        "scrape engine: builtin scrapes in this program; prometheus prints an equivalent configuration for "
        "Prometheus in agent mode and exits",
    )
    drain: float = option(
        "agent.drain",
        duration(highest=600.0),
        5.0,
        "deliver queued samples for at most this long at shutdown",
    )
