"""`gpuledger fleet`: serve one page and API for the nodes of a lab."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from os import environ
from typing import Any

from gpuledger import __version__
from gpuledger.app.flag_checks import require_once, require_words
from gpuledger.app.flags import parse_command
from gpuledger.app.logs import configure_logging
from gpuledger.app.serving import create_server, log_addresses, open_web_security, page_url, prepare_loop
from gpuledger.config.commands import FLEET_GROUPS
from gpuledger.fleet.fleet import NodeFleet, ReadingPace
from gpuledger.fleet.fleet_api import FleetApi, fleet_routes
from gpuledger.fleet.idle_week import IdleWeek
from gpuledger.fleet.lists.configured_lists import configured_lists
from gpuledger.fleet.membership import Membership
from gpuledger.fleet.node_client import NodeClient, NodeCredentials
from gpuledger.fleet.settings import FleetCredentialSettings, FleetServerSettings, NodeListSettings
from gpuledger.host.clock import SystemClock
from gpuledger.host.settings import configured_time_zone
from gpuledger.http.hosts import HostNameSettings, allowed_hosts
from gpuledger.kubernetes.cluster_access import find_access
from gpuledger.kubernetes.settings import ApiServerSettings
from gpuledger.ledger.report.settings import Prices, TeamSettings
from gpuledger.ledger.report.statement.terms import StatementTerms
from gpuledger.model.settings import build_settings

log = logging.getLogger("gpuledger.fleet")

# Started on demand.
_THREADS = 32

_ABOUT = """\
Show the GPUs of many machines on one page: which are free now, who holds the others, and what idle ones cost.
Reads the API of each node's `gpuledger serve`; keeps nothing on disk.
"""
_EXAMPLES = """\
examples:
  gpuledger fleet --node gpu-1 --node gpu-2            two machines, http on port 9400; page on port 9410
  gpuledger fleet --nodes-file /etc/gpuledger/nodes    one address or URL a line, or file_sd of Prometheus
  gpuledger fleet --slurm                              all GPU nodes of this Slurm cluster
  gpuledger fleet --dns-srv _gpuledger._tcp.lab.example.com --scheme https --ca-file /etc/ssl/lab.pem
  gpuledger fleet --kubernetes-pods app.kubernetes.io/name=gpuledger --port 9400
  gpuledger fleet --nodes-file nodes --user reader --password-file /etc/gpuledger/password

then:
  gpuledger top --fleet http://localhost:9410          the same in a terminal
  gpuledger free --fleet http://localhost:9410         only the GPUs that are free
  gpuledger report --fleet http://localhost:9410 --by team --in 'last month'

Prices, teams and the time zone of --config count for all nodes. The page names users: protect it with
--web.config.file, as docs/fleet.md shows.
"""


# Lists of nodes, by key: an empty one, or the first of two, would leave out its nodes.
_LISTS = {
    "fleet.nodes_file": "a file",
    "fleet.http_sd": "a URL",
    "fleet.dns_srv": "a name",
    "fleet.kubernetes_pods": "labels",
}


def run(arguments: Sequence[str]) -> int:
    """Serve until SIGTERM or SIGINT."""
    given, read = parse_command("fleet", _ABOUT, _EXAMPLES, FLEET_GROUPS, arguments)
    require_words(given.flags, _LISTS)
    require_once(given.flags, dict.fromkeys(_LISTS, "name one; other kinds of lists can be beside it"))
    values = read()
    configure_logging(values)
    return asyncio.run(_serve(values))


async def _serve(values: Mapping[str, Any]) -> int:
    stop = prepare_loop(log)
    settings = build_settings(FleetServerSettings, values)
    nodes = build_settings(NodeListSettings, values)
    prices, zone = build_settings(Prices, values), configured_time_zone(values)
    teams = build_settings(TeamSettings, values).teams
    clock = SystemClock()
    credentials = NodeCredentials(build_settings(FleetCredentialSettings, values))
    lists = configured_lists(
        nodes,
        lambda address: NodeClient(address, credentials, settings.timeout),
        lambda: find_access(build_settings(ApiServerSettings, values), environ),
    )
    pace = ReadingPace(settings.interval, settings.timeout, nodes.refresh)
    fleet = NodeFleet(Membership(lists, clock), credentials, clock, pace)
    week = IdleWeek(lambda: fleet.nodes, prices, zone, clock, fleet.note_change)
    api = FleetApi(fleet, week, lambda: StatementTerms("owner", "", prices, teams, zone))
    hosts = allowed_hosts(build_settings(HostNameSettings, values).names, settings.listen_address)
    web = open_web_security(settings.web_config)
    routes = fleet_routes(api, lambda: fleet.unready_reason, hosts)
    # Each node keeps a connection open.
    server = create_server([(settings.listen_address, routes)], values, web, reserved=None)
    loop = asyncio.get_running_loop()
    # Threads for DNS lookups: with asyncio's default, a few names that do not resolve would block all nodes.
    loop.set_default_executor(ThreadPoolExecutor(_THREADS, "fleet"))
    loop.add_signal_handler(signal.SIGHUP, fleet.refresh_soon)
    await server.start()
    try:
        fleet.start()
        week.start()
        log.info("gpuledger %s, lists of nodes: %s", __version__, ", ".join(one.name for one in lists))
        log_addresses(log, server, web)
        log.info("page: %s", page_url(server, web))
        await stop.wait()
        log.info("stopping")
    finally:
        await server.stop()
        await week.stop()
        await fleet.stop()
    return 0
