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
from gpuledger.app.flags import parse_command
from gpuledger.app.logs import configure_logging
from gpuledger.app.operator_checks import EXPORTER_RESTARTS, check_agent, check_exporter
from gpuledger.app.serving import create_server, log_addresses, prepare_loop, warn_about_ignored_flags
from gpuledger.config.cluster import OPERATOR_GROUPS
from gpuledger.config.load import load_values
from gpuledger.host.clock import SystemClock
from gpuledger.http.addresses import Address
from gpuledger.http.hosts import HostNameSettings, allowed_hosts
from gpuledger.http.routes import Routes
from gpuledger.kubernetes.cluster_access import find_access
from gpuledger.kubernetes.settings import ApiServerSettings
from gpuledger.model.errors import UsageError
from gpuledger.model.settings import build_settings
from gpuledger.operator.families import operator_families
from gpuledger.operator.operator import GpuMonitorOperator
from gpuledger.operator.render_context import (
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
    given, _ = parse_command("operator", _ABOUT, _EXAMPLES, OPERATOR_GROUPS, arguments)
    # The file configures only the deployed objects; settings of this program come from flags and variables.
    values = load_values(OPERATOR_GROUPS.values(), given.flags, environ, None)
    configure_logging(values)
    warn_about_ignored_flags(values)

    settings = build_settings(OperatorSettings, values)
    access = find_access(build_settings(ApiServerSettings, values), environ)
    if access is None:
        raise UsageError("no Kubernetes API server found; name one with --kubernetes-api or --kubeconfig")
    namespace = settings.own_namespace(environ)
    context = read_operator_file(given.config) if given.config else RenderContext(namespace=namespace)
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
    stop = prepare_loop(log)
    # The probes succeed for an operator that is not the leader, too.
    routes = Routes(
        {
            "/metrics": metrics_page_handler(lambda: operator_families(operator.view())),
            **probe_routes(lambda: ""),
        },
        hosts=allowed_hosts(build_settings(HostNameSettings, values).names, address),
    )
    server = create_server([(address, routes)], values)
    await server.start()
    try:
        log.info("gpuledger %s", __version__)
        log_addresses(log, server)
        await operator.run(stop)
        log.info("stopping")
    finally:
        await server.stop()
    return 0
