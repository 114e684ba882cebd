"""`gpuledger operator`: run the Kubernetes operator for GpuMonitor resources."""

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
from gpuledger.app.flags import build_parser, parse_flags, reject_words
from gpuledger.app.logs import configure_logging
from gpuledger.app.operator_checks import EXPORTER_RESTARTS, check_agent, check_exporter
from gpuledger.app.serving import (
    install_stop_handlers,
    limit_to_descriptors,
    log_addresses,
    log_loop_errors_once,
    warn_about_ignored_flags,
)
from gpuledger.config.cluster import OPERATOR_GROUPS
from gpuledger.config.load import load_values
from gpuledger.config.settings import LogSettings
from gpuledger.host.clock import SystemClock
from gpuledger.http.addresses import Address
from gpuledger.http.hosts import HostNameSettings, allowed_hosts
from gpuledger.http.limits import HttpLimits
from gpuledger.http.routes import Routes
from gpuledger.http.server import HttpServer
from gpuledger.kubernetes.cluster_access import find_access
from gpuledger.kubernetes.settings import ApiServerSettings
from gpuledger.model.errors import UsageError
from gpuledger.model.settings import build_settings
from gpuledger.operator.families import operator_families
from gpuledger.operator.operator import GpuMonitorOperator
from gpuledger.operator.render_context import (
    MonitorReference,
    OperatorIdentity,
    RenderContext,
    read_operator_file,
)
from gpuledger.operator.settings import OperatorSettings
from gpuledger.outputs.responses import metrics_page_handler, probe_routes

log = logging.getLogger("gpuledger.operator")

_ABOUT = """\
Run the Kubernetes operator for GpuMonitor resources: it deploys exporters on GPU nodes and agents that scrape
them and send the samples, reverts manual changes, and reports in the status of each resource.
"""
_EXAMPLES = """\
examples:
  gpuledger operator --config operator.yaml           in a pod of the chart (operator.enabled)
  gpuledger operator --kubeconfig ~/.kube/config --namespace gpu-monitoring
  gpuledger operator --whatap-compat                  also reconciles WhatapAgent resources

operator.yaml, which the chart writes from its values:
  namespace: gpu-monitoring
  image: ghcr.io/gpuledger/gpuledger:1.0.0
  defaultRemoteWrite:
    - url: http://prometheus:9090/api/v1/write

then:
  kubectl get gpumonitors                             GPU nodes, ready exporters, targets that are up
  kubectl describe gpumonitor NAME                    conditions and events
  curl -s localhost:9402/metrics                      metrics of the operator itself

Several replicas can run: a Lease elects the leader, and another replica takes over when the leader fails.
"""


def run(arguments: Sequence[str]) -> int:
    """Run the operator until SIGTERM or SIGINT."""
    groups = OPERATOR_GROUPS.values()
    given = parse_flags(
        build_parser("operator", _ABOUT, _EXAMPLES, OPERATOR_GROUPS), groups, arguments, environ
    )
    reject_words("operator", given.arguments)
    # The file configures only the deployed objects; settings of this program come from flags and variables.
    values = load_values(groups, given.flags, environ, None)
    configure_logging(build_settings(LogSettings, values))
    warn_about_ignored_flags(values)

    settings = build_settings(OperatorSettings, values)
    access = find_access(build_settings(ApiServerSettings, values), environ)
    if access is None:
        raise UsageError("no Kubernetes API server found; name one with --kubernetes-api or --kubeconfig")
    namespace = settings.own_namespace(environ)
    context = (
        read_operator_file(given.config)
        if given.config
        else RenderContext(MonitorReference("", "", "", ""), namespace)
    )
    context = replace(
        context,
        check_agent=check_agent,
        check_exporter=check_exporter,
        exporter_restarts=EXPORTER_RESTARTS,
    )
    # The pod's name is the same after a container restart; the identity in the Lease must differ.
    name = environ.get("POD_NAME") or socket.gethostname()
    identity = OperatorIdentity(access, namespace, f"{name}_{token_hex(4)}")
    operator = GpuMonitorOperator(identity, context, settings, SystemClock())
    return asyncio.run(_serve(operator, settings.listen_address, values))


async def _serve(operator: GpuMonitorOperator, address: Address, values: Mapping[str, Any]) -> int:
    stop = install_stop_handlers()
    log_loop_errors_once(log)
    limits = limit_to_descriptors(build_settings(HttpLimits, values))
    # The probes succeed for an operator that is not the leader, too.
    routes = Routes(
        {
            "/metrics": metrics_page_handler(lambda: operator_families(operator.view())),
            **probe_routes(lambda: ""),
        },
        hosts=allowed_hosts(build_settings(HostNameSettings, values).names, address),
    )
    server = HttpServer([(address, routes)], limits)
    await server.start()
    try:
        log.info("gpuledger %s", __version__)
        log_addresses(log, server)
        await operator.run(stop)
        log.info("stopping")
    finally:
        await server.stop()
    return 0
