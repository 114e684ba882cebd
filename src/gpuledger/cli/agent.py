"""`gpuledger agent`: scrapes exporters and delivers what they tell to Prometheus remote-write receivers."""

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
from typing import TYPE_CHECKING, Any

from gpuledger import __version__
from gpuledger.agent.agent import Agent
from gpuledger.agent.config.file import AgentConfig, read_agent_config
from gpuledger.agent.discovery.discovery import Discovery, Scale
from gpuledger.agent.discovery.settings import ClusterSettings
from gpuledger.agent.discovery.sharding import Shard
from gpuledger.agent.pages import routes_of
from gpuledger.agent.scrape.state import PageMemory
from gpuledger.agent.secrets import Vault
from gpuledger.agent.settings import AgentSettings
from gpuledger.app.flags import no_words, parse, parser
from gpuledger.app.logs import set_up
from gpuledger.app.serving import complain_once, say_addresses, stop_request, within_descriptors
from gpuledger.config.assemble import assemble
from gpuledger.config.cluster import AGENT
from gpuledger.config.settings import LogSettings
from gpuledger.host.clock import SystemClock
from gpuledger.host.files import FileWatch
from gpuledger.host.yaml_documents import read_document
from gpuledger.http.connection import Connection
from gpuledger.http.hosts import HostNames, allowed_hosts
from gpuledger.http.limits import Limits
from gpuledger.http.server import HttpServer
from gpuledger.kubernetes.access import Access
from gpuledger.ledger.store.place import state_dir
from gpuledger.model.errors import GpuledgerError, UsageError
from gpuledger.model.settings import build

if TYPE_CHECKING:
    from gpuledger.http.web_config.web import Web

log = logging.getLogger("gpuledger.agent")

# Names are looked up by these, and files brought to the disk: asyncio's own, six on two cores, would all wait
# for the servers of a few dead names. A thread is made when it is needed.
_THREADS = 32

_ABOUT = """\
Scrape exporters (this one, dcgm-exporter, any that Prometheus can scrape), relabel what they tell, and
deliver it by Prometheus remote write. What cannot be delivered now waits on disk.
"""
_EXAMPLES = """\
examples:
  gpuledger agent --config agent.yaml                 what agent.yaml says, anew whenever it changes
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
  curl -s localhost:9401/metrics                      what it scrapes and delivers, in numbers
  xdg-open http://localhost:9401/                     the same for people
"""


def run(arguments: Sequence[str]) -> int:
    """Scrape and deliver until SIGTERM or SIGINT."""
    groups = AGENT.values()
    given = parse(parser("agent", _ABOUT, _EXAMPLES, AGENT), groups, arguments, environ)
    no_words("agent", given.words)
    if given.config is None:
        raise UsageError(
            "the agent needs --config FILE: what it scrapes, and for whom; see gpuledger agent --help"
        )
    # The file is the agent's own: what is set about the program itself stands in flags and variables.
    values = assemble(groups, given.flags, environ, None)
    set_up(build(LogSettings, values))
    if build(AgentSettings, values).engine == "prometheus":
        return _print_prometheus(given.config, build(ClusterSettings, values))
    return asyncio.run(_serve(given.config, values))


def _print_prometheus(file: Path, settings: ClusterSettings) -> int:
    import yaml

    from gpuledger.agent.prometheus_engine import prometheus_config

    config = read_agent_config(file, environ)
    share = settings.own_shard(environ)
    if isinstance(share, Scale):
        raise UsageError("--engine prometheus: the number of shards must be known; give --shard INDEX/COUNT")
    # In the cluster Prometheus finds the API server by itself.
    access = settings.access(environ) if settings.api or settings.kubeconfig else None
    written = read_document(file)
    sys.stdout.write(yaml.safe_dump(prometheus_config(config, written, access, share), sort_keys=False))
    return 0


async def _serve(file: Path, values: Mapping[str, Any]) -> int:
    told = stop_request()
    complain_once(log)
    settings, cluster = build(AgentSettings, values), build(ClusterSettings, values)
    clock = SystemClock()
    watch = FileWatch((file,))
    access = cluster.access(environ)
    vault = Vault(access, cluster.own_namespace(environ), clock)

    def read() -> AgentConfig:
        found = read_agent_config(file, environ, vault)
        if access is None and found.selections and not found.automatic:
            raise _no_cluster()
        return found

    config = read()
    if access is None and config.automatic:
        log.warning("no targets are named, and there is no cluster to look for exporters in")
    memory = PageMemory(settings.page_memory)
    discovery = _discovery(access, cluster.own_shard(environ), clock)
    agent = Agent(config, _queues(settings, environ), clock, discovery, memory)
    # Each target is a connection that stays open.
    limits = within_descriptors(build(Limits, values), beside=None)
    hosts = allowed_hosts(build(HostNames, values).names, settings.listen_address)
    listener = (settings.listen_address, routes_of(agent.view, hosts))
    web = _web(settings, clock)
    server = HttpServer([listener], limits, speaker=web.speaker if web else Connection)
    nudged = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(_THREADS, "agent"))
    loop.add_signal_handler(signal.SIGHUP, nudged.set)
    # Port first: who cannot listen must not have opened the queues.
    await server.start()
    try:
        agent.start()
        view = agent.view()
        log.info(
            "gpuledger %s, targets: %d, receivers: %d", __version__, len(view.loops), len(view.receivers)
        )
        say_addresses(log, server, web.scheme if web else "http")
        reloading = asyncio.create_task(
            _reload(file, read, vault, agent, watch, settings.look_interval, nudged)
        )
        await told.wait()
        log.info("stopping")
        reloading.cancel()
        # Half of a change must not go on beside the end.
        await asyncio.gather(reloading, return_exceptions=True)
        await agent.stop(settings.drain)
    finally:
        vault.stop()
        await server.stop()
    return 0


async def _reload(
    file: Path,
    read: Callable[[], AgentConfig],
    vault: Vault,
    agent: Agent,
    watch: FileWatch,
    every: float,
    nudged: asyncio.Event,
) -> None:
    """Take the configuration anew when it has changed or SIGHUP has come; a bad one changes nothing."""
    while True:
        with suppress(TimeoutError):
            await asyncio.wait_for(nudged.wait(), every or None)
        if not nudged.is_set() and not watch.look():
            continue
        nudged.clear()
        states = watch.states((file,))
        try:
            if file.exists() and not file.is_file():
                # A pipe is read once, and a second time only when somebody writes into it: all would wait.
                raise UsageError(f"{file} is no file that can be read again")
            with vault.reading():
                await agent.become(read())
        except GpuledgerError as error:
            if str(error) != agent.error:
                log.error("%s; the configuration of before stays in force", error)
            agent.error = str(error)
        except Exception:
            # A defect met on one file must not end the looking for others.
            log.exception("the configuration %s could not be taken", file)
            agent.error = "internal error; the log of gpuledger agent has the reason"
        else:
            log.info("the configuration %s was read anew", file)
        watch.take(states)


def _discovery(access: Access | None, share: Shard | Scale, clock: SystemClock) -> Discovery | None:
    """What finds targets in a cluster and shares them out; None where neither is to be done."""
    if isinstance(share, Scale):
        if access is None:
            raise _no_cluster()
        return Discovery(access, clock, scale=share)
    return None if access is None and share == Shard() else Discovery(access, clock, shard=share)


def _no_cluster() -> UsageError:
    return UsageError(
        "there is no API server to ask for targets or replicas; name one with --kubernetes-api or "
        "--kubeconfig, or list StaticEndpoints alone and give --shard INDEX/COUNT"
    )


def _queues(settings: AgentSettings, environment: Mapping[str, str]) -> Path:
    if settings.queue_directory:
        return Path(settings.queue_directory)
    named = environment.get("GPULEDGER_STATE_DIR", "")
    if named == "none":
        raise UsageError("what waits to be delivered needs a place: give --queue-directory")
    try:
        return state_dir(named, environment) / "remote-write"
    except OSError as error:
        raise UsageError(
            f"no directory for what waits to be delivered ({error.strerror}): give --queue-directory"
        ) from None


def _web(settings: AgentSettings, clock: SystemClock) -> Web | None:
    if not settings.web_config:
        return None
    from gpuledger.http.web_config.web import Web

    return Web(Path(settings.web_config), clock)
