"""The lists of nodes that the settings name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gpuledger.fleet.lists.dns_nodes import DnsNodes
from gpuledger.fleet.lists.http_nodes import HttpNodes
from gpuledger.fleet.lists.node_list import AddressDefaults, FileNodes, GivenNodes, NodeList
from gpuledger.fleet.lists.scheduler_nodes import PodNodes, SlurmNodes
from gpuledger.fleet.node_address import NodeAddress
from gpuledger.fleet.node_client import NodeClient
from gpuledger.fleet.settings import NodeListSettings
from gpuledger.kubernetes.access import ApiServerAccess
from gpuledger.model.errors import UsageError


def configured_lists(
    settings: NodeListSettings,
    client_of: Callable[[NodeAddress], NodeClient],
    access: Callable[[], ApiServerAccess | None],
) -> list[NodeList]:
    """The lists, in a fixed order. Raises UsageError if there is none, and for a malformed one."""
    defaults = AddressDefaults(settings.scheme, settings.port)
    found: list[NodeList] = []
    if settings.nodes:
        found.append(GivenNodes(settings.nodes, defaults))
    if settings.file:
        file = FileNodes(Path(settings.file), defaults)
        # A wrong name is an error at the start; later, the last nodes are kept.
        file.read_file()
        found.append(file)
    if settings.http_sd:
        found.append(HttpNodes(settings.http_sd, defaults, client_of))
    if settings.dns_srv:
        found.append(DnsNodes(settings.dns_srv, defaults))
    if settings.slurm:
        found.append(SlurmNodes(defaults))
    if settings.pods:
        server = access()
        if server is None:
            raise UsageError(
                "--kubernetes-pods needs an API server: run the fleet in a pod, or name one with "
                "--kubernetes-api or --kubeconfig"
            )
        found.append(PodNodes(settings.pods, defaults, server))
    if not found:
        raise UsageError(
            "no list of nodes: give --node gpu-1, --nodes-file FILE, --http-sd URL, --dns-srv NAME, --slurm "
            "or --kubernetes-pods LABELS"
        )
    return found
