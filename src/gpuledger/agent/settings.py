"""What a user sets about the agent itself; what it scrapes, and for whom, is in its configuration file."""

from __future__ import annotations

from dataclasses import dataclass

from gpuledger.http.addresses import Address, as_address
from gpuledger.model.settings import choice, duration, setting, size, text


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """Where the agent tells of itself, and where what it could not deliver yet waits."""

    listen_address: Address = setting(
        "agent.listen_address",
        as_address,
        Address("", 9401),
        "serve the agent's own page and metrics on this address",
        flags=("--listen-address",),
        metavar="ADDR",
    )
    web_config: str = setting(
        "agent.web_config",
        text,
        "",
        "TLS, client certificates, basic auth and a rate limit for them, as exporter-toolkit's file says",
        flags=("--web.config.file", "--web.config-file"),
        metavar="FILE",
    )
    queue_directory: str = setting(
        "agent.queue_directory",
        text,
        "",
        "what waits to be delivered is in this directory; without a word in remote-write below the state "
        "directory",
        flags=("--queue-directory",),
        metavar="DIR",
    )
    page_memory: int = setting(
        "agent.page_memory",
        size,
        96 << 20,
        "what is remembered of the last pages may take so much memory between scrapes, all targets together; "
        "beyond it pages are packed, for a sixth of a scrape's time",
        flags=("--page-memory",),
        metavar="SIZE",
    )
    look_interval: float = setting(
        "agent.look_interval",
        duration(highest=3600.0),
        1.0,
        "look so often whether the configuration has changed; 0 waits for SIGHUP",
        flags=("--look-interval",),
        metavar="DURATION",
    )
    engine: str = setting(
        "agent.engine",
        choice("builtin", "prometheus"),
        "builtin",
        "who scrapes: builtin is this program; prometheus prints the same work as a configuration for a "
        "Prometheus in agent mode, and ends",
        flags=("--engine",),
        metavar="builtin|prometheus",
    )
    drain: float = setting(
        "agent.drain",
        duration(highest=600.0),
        5.0,
        "when told to stop, go on delivering for so long at most",
        flags=("--drain",),
        metavar="DURATION",
    )
