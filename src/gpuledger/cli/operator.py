"""`gpuledger operator`: makes of a Kubernetes cluster what its custom resources ask for."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import environ
from secrets import token_hex
from typing import Any

from gpuledger import __version__
from gpuledger.app.flags import no_words, parse, parser
from gpuledger.app.logs import set_up
from gpuledger.app.operator_checks import EXPORTER_RESTARTS, check_agent, check_exporter
from gpuledger.app.serving import complain_once, hear, say_addresses, stop_request, within_descriptors
from gpuledger.config.assemble import assemble
from gpuledger.config.cluster import OPERATOR
from gpuledger.config.settings import LogSettings
from gpuledger.host.clock import SystemClock
from gpuledger.http.addresses import Address
from gpuledger.http.hosts import HostNames, allowed_hosts
from gpuledger.http.limits import Limits
from gpuledger.http.server import HttpServer
from gpuledger.kubernetes.cluster import find_access
from gpuledger.kubernetes.settings import ApiServerSettings
from gpuledger.model.errors import UsageError
from gpuledger.model.settings import build
from gpuledger.operator.facts import Facts, Owner, Place, read_facts
from gpuledger.operator.operator import Operator
from gpuledger.operator.routes import routes_of
from gpuledger.operator.settings import OperatorSettings
from gpuledger.operator.watching import quiet

log = logging.getLogger("gpuledger.operator")

_ABOUT = """\
Make of a Kubernetes cluster what its GpuMonitor resources ask for: exporters on GPU nodes, agents that scrape
them and deliver; keep it so when somebody changes it by hand; say in each resource's status how it stands.
"""
_EXAMPLES = """\
examples:
  gpuledger operator --config operator.yaml           in a pod of the chart (operator.enabled)
  gpuledger operator --kubeconfig ~/.kube/config --namespace gpu-monitoring
  gpuledger operator --whatap-compat                  serves WhatapAgent resources, too

operator.yaml, which the chart writes from its values:
  namespace: gpu-monitoring
  image: ghcr.io/gpuledger/gpuledger:1.0.0
  defaultRemoteWrite:
    - url: http://prometheus:9090/api/v1/write

then:
  kubectl get gpumonitors                             nodes, exporters that are ready, targets that are up
  kubectl describe gpumonitor NAME                    conditions and events
  curl -s localhost:9402/metrics                      what the operator did, in numbers

Several operators may run: they agree by a Lease on one that acts, and another takes over when it is gone.
"""


def run(arguments: Sequence[str]) -> int:
    """Serve resources until SIGTERM or SIGINT."""
    groups = OPERATOR.values()
    given = parse(parser("operator", _ABOUT, _EXAMPLES, OPERATOR), groups, arguments, environ)
    no_words("operator", given.words)
    # The file says what is made, not how this program runs: that stands in flags and variables.
    values = assemble(groups, given.flags, environ, None)
    set_up(build(LogSettings, values))
    quiet()
    settings = build(OperatorSettings, values)
    access = find_access(build(ApiServerSettings, values), environ)
    if access is None:
        raise UsageError("there is no API server to ask; name one with --kubernetes-api or --kubeconfig")
    namespace = settings.own_namespace(environ)
    facts = read_facts(given.config) if given.config else Facts(Owner("", "", "", ""), namespace)
    facts = replace(
        facts,
        check_agent=check_agent,
        check_exporter=check_exporter,
        exporter_restarts=EXPORTER_RESTARTS,
    )
    # A pod's name comes again after a restart of its container; a Lease must not.
    name = environ.get("POD_NAME") or socket.gethostname()
    place = Place(access, namespace, f"{name}_{token_hex(4)}")
    return asyncio.run(
        _serve(Operator(place, facts, settings, SystemClock()), settings.listen_address, values)
    )


async def _serve(operator: Operator, listening: Address, values: Mapping[str, Any]) -> int:
    told = stop_request()
    complain_once(log)
    hosts = allowed_hosts(build(HostNames, values).names, listening)
    limits = within_descriptors(build(Limits, values))
    server = HttpServer([(listening, routes_of(operator.view, hosts))], limits)
    await server.start()
    try:
        log.info("gpuledger %s", __version__)
        say_addresses(log, server)
        await operator.run(told, lambda: hear(told))
        log.info("stopping")
    finally:
        await server.stop()
    return 0
