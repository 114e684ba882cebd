"""`gpuledger agent`: scrape exporters and send their samples to Prometheus remote-write receivers."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from os import environ
from pathlib import Path
from typing import Any

from gpuledger import __version__
from gpuledger.agent.agent import Agent
from gpuledger.agent.cluster_secrets import ClusterSecrets
from gpuledger.agent.config.agent_config import AgentConfig, read_agent_config
from gpuledger.agent.discovery.discovery import Discovery, StatefulSetMember
from gpuledger.agent.discovery.settings import ClusterSettings
from gpuledger.agent.discovery.sharding import Shard
from gpuledger.agent.scrape.state import PageMemoryBudget
from gpuledger.agent.settings import AgentSettings
from gpuledger.agent.status_page import agent_routes
from gpuledger.app.flags import parse_command
from gpuledger.app.logs import configure_logging
from gpuledger.app.serving import (
    create_server,
    log_addresses,
    open_web_security,
    prepare_loop,
    warn_about_ignored_flags,
)
from gpuledger.config.cluster import AGENT_GROUPS
from gpuledger.config.load import load_values
from gpuledger.host.clock import SystemClock
from gpuledger.host.files import FileWatch, file_states
from gpuledger.host.yaml_documents import read_yaml
from gpuledger.http.hosts import HostNameSettings, allowed_hosts
from gpuledger.kubernetes.access import ApiServerAccess
from gpuledger.kubernetes.cluster_access import find_access, own_namespace
from gpuledger.ledger.store.state_directory import create_state_dir
from gpuledger.model.errors import GpuledgerError, UsageError
from gpuledger.model.settings import build_settings

log = logging.getLogger("gpuledger.agent")

# Threads for DNS lookups and fsync. With asyncio's default (six on two cores) a few unresolvable names would
# block them all. Threads are started on demand.
_THREADS = 32

_ABOUT = """\
Scrape exporters (gpuledger, dcgm-exporter, any that Prometheus can scrape), relabel the samples, and send
them by Prometheus remote write. Samples that cannot be sent are queued on disk.
"""
_EXAMPLES = """\
examples:
  gpuledger agent --config agent.yaml                 reloads agent.yaml whenever it changes
  gpuledger agent --config agent.yaml --engine prometheus > prometheus.yml
  gpuledger agent --config agent.yaml --queue-directory /var/lib/gpuledger/remote-write

agent.yaml:
  features:
    openAgent:
      globalInterval: 15s
      targets:
        - targetName: gpu-nodes
          type: StaticEndpoints
          endpoints:
            - address: gpu-node-1:9400
  remote_write:
    - url: http://prometheus:9090/api/v1/write

then:
  curl -s localhost:9401/metrics                      metrics of the agent itself
  xdg-open http://localhost:9401/                     status page: targets and receivers
"""


def run(arguments: Sequence[str]) -> int:
    """Scrape and send until SIGTERM or SIGINT."""
    given, _ = parse_command("agent", _ABOUT, _EXAMPLES, AGENT_GROUPS, arguments)
    if given.config is None:
        raise UsageError(
            "the agent needs --config FILE with its targets and receivers; see gpuledger agent --help"
        )
    # The file has the agent's own format: settings of the program come from flags and variables only.
    values = load_values(AGENT_GROUPS.values(), given.flags, environ, None)
    configure_logging(values)
    warn_about_ignored_flags(values)
    if build_settings(AgentSettings, values).engine == "prometheus":
        return _print_prometheus(given.config, build_settings(ClusterSettings, values))
    return asyncio.run(_serve(given.config, values))


def _print_prometheus(file: Path, settings: ClusterSettings) -> int:
    import yaml

    from gpuledger.agent.prometheus_engine import prometheus_config

    config = read_agent_config(file, environ)
    share = settings.own_shard(environ)
    if isinstance(share, StatefulSetMember):
        raise UsageError("--engine prometheus needs a fixed number of shards; give --shard INDEX/COUNT")
    # In a pod Prometheus finds the API server automatically.
    access = find_access(settings, environ) if settings.api or settings.kubeconfig else None
    written = read_yaml(file)
    sys.stdout.write(yaml.safe_dump(prometheus_config(config, written, access, share), sort_keys=False))
    return 0


async def _serve(file: Path, values: Mapping[str, Any]) -> int:
    stop = prepare_loop(log)
    settings, cluster = build_settings(AgentSettings, values), build_settings(ClusterSettings, values)
    clock = SystemClock()
    watch = FileWatch((file,))
    access = find_access(cluster, environ)
    vault = ClusterSecrets(access, own_namespace(cluster.namespace, environ), clock)

    def read() -> AgentConfig:
        found = read_agent_config(file, environ, vault)
        if access is None and found.selections and not found.automatic:
            raise _no_cluster()
        return found

    config = read()
    if access is None and config.automatic:
        log.warning(
            "no targets: the configuration lists none, and there is no cluster to discover exporters in"
        )
    memory = PageMemoryBudget(settings.page_memory)
    discovery = _discovery(access, cluster.own_shard(environ), clock)
    agent = Agent(config, _queues(settings, environ), clock, discovery, memory)
    hosts = allowed_hosts(build_settings(HostNameSettings, values).names, settings.listen_address)
    listener = (settings.listen_address, agent_routes(agent.view, hosts))
    web = open_web_security(settings.web_config)
    # Each target keeps a connection open.
    server = create_server([listener], values, web, reserved=None)
    reload_requested = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(_THREADS, "agent"))
    loop.add_signal_handler(signal.SIGHUP, reload_requested.set)
    # Bind the port first: an agent that cannot listen must not open the queues.
    await server.start()
    try:
        agent.start()
        view = agent.view()
        log.info(
            "gpuledger %s, targets: %d, receivers: %d", __version__, len(view.loops), len(view.receivers)
        )
        log_addresses(log, server, web)
        reloading = asyncio.create_task(
            _reload(file, read, vault, agent, watch, settings.look_interval, reload_requested)
        )
        await stop.wait()
        log.info("stopping")
        reloading.cancel()
        # Let a reload in progress finish or be cancelled before the agent stops.
        await asyncio.gather(reloading, return_exceptions=True)
        await agent.stop(settings.drain)
    finally:
        vault.stop()
        await server.stop()
    return 0


async def _reload(
    file: Path,
    read: Callable[[], AgentConfig],
    vault: ClusterSecrets,
    agent: Agent,
    watch: FileWatch,
    every: float,
    reload_requested: asyncio.Event,
) -> None:
    """Reload the configuration when it has changed or on SIGHUP; an invalid one changes nothing."""
    while True:
        with suppress(TimeoutError):
            async with asyncio.timeout(every or None):
                await reload_requested.wait()
        is_signal = reload_requested.is_set()
        if not is_signal and not watch.has_changed():
            continue
        reload_requested.clear()
        states = file_states((file,))
        try:
            if file.exists() and not file.is_file():
                # A second read of a pipe blocks until something is written into it.
                raise UsageError(f"{file} is not a regular file and cannot be read again")
            with vault.watch_only_used():
                await agent.apply_config(read())
        except GpuledgerError as error:
            # A person who sends a signal waits for the line.
            if is_signal or str(error) != agent.error:
                log.error("%s; the previous configuration remains in force", error)
            agent.error = str(error)
        except Exception:
            # An internal error with one file must not prevent later reloads.
            log.exception("cannot apply the configuration %s", file)
            agent.error = "internal error; see the log of gpuledger agent"
        else:
            log.info("configuration %s reloaded", file)
        watch.set_baseline(states)


def _discovery(
    access: ApiServerAccess | None, share: Shard | StatefulSetMember, clock: SystemClock
) -> Discovery:
    """Discovery of targets in a cluster, and the sharding of all targets."""
    if isinstance(share, StatefulSetMember):
        if access is None:
            raise _no_cluster()
        return Discovery(access, clock, scale=share)
    return Discovery(access, clock, shard=share)


def _no_cluster() -> UsageError:
    return UsageError(
        "no API server to discover targets or replicas with; name one with --kubernetes-api or --kubeconfig, "
        "or list only StaticEndpoints and give --shard INDEX/COUNT"
    )


def _queues(settings: AgentSettings, environment: Mapping[str, str]) -> Path:
    if settings.queue_directory:
        return Path(settings.queue_directory)
    named = environment.get("GPULEDGER_STATE_DIR", "")
    if named == "none":
        raise UsageError("GPULEDGER_STATE_DIR=none: the queue needs a directory; give --queue-directory")
    try:
        return create_state_dir(named, environment) / "remote-write"
    except OSError as error:
        raise UsageError(
            f"no directory for the queue of unsent samples ({error.strerror}): give --queue-directory"
        ) from None
