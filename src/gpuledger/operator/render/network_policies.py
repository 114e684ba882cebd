"""Renders the NetworkPolicies of exporters and agents, equivalent to those of the chart."""

from __future__ import annotations

from typing import Any, Final

from gpuledger.operator.render.naming import COMPONENT, Manifest, Naming
from gpuledger.operator.render.pods import to_plain

# It runs in the same namespace, and reads the numbers of the status from exporters and agents.
_OPERATOR: Final[Manifest] = {"podSelector": {"matchLabels": {COMPONENT: "operator"}}}


def network_policies(naming: Naming, *, agent: bool) -> list[Manifest]:
    """The NetworkPolicies, if enabled. `agent`: the agent is deployed.

    Targets and receivers of an agent may be anywhere, so only its ingress is restricted.
    """
    monitor, names = naming.monitor, naming.names
    found: list[Manifest] = []
    if not monitor.network_policy.enabled:
        return found
    if monitor.exporter.enabled:
        ports = ["metrics", *(port.name for port in monitor.exporter.extra_ports)]
        if monitor.exporter.collects:
            ports = []
        own = [{"podSelector": {"matchLabels": naming.selector("agent")}}] if agent else []
        egress = [{"ports": _egress(naming)}]
        found.append(_policy(naming, names.exporter, "exporter", ports, own, egress=egress))
    if agent:
        found.append(_policy(naming, names.agent, "agent", ["metrics"], []))
    return found


def _policy(
    naming: Naming, name: str, component: str, ports: list[str], own: list[Manifest], **egress: Any
) -> Manifest:
    """A policy that admits the configured peers, and with them those of the same resource."""
    peers = to_plain(naming.monitor.network_policy.peers)
    admitted = {"from": [*peers, *own, _OPERATOR]} if peers else {}
    ingress = {"ports": [_port(port) for port in ports], **admitted}
    spec = {
        "podSelector": {"matchLabels": naming.selector(component)},
        "policyTypes": ["Ingress", *(["Egress"] if egress else [])],
        "ingress": [ingress] if ports else [],
        **egress,
    }
    return naming.object("networking.k8s.io/v1", "NetworkPolicy", name, component, spec=spec)


def _egress(naming: Naming) -> list[Manifest]:
    # On OpenShift, a policy applies to the port behind the DNS Service.
    dns = [53, 5353] if naming.context.scc_role else [53]
    found = [_port(number, protocol) for number in dns for protocol in ("UDP", "TCP")]
    return [*found, *(_port(number) for number in naming.monitor.network_policy.api_server_ports)]


def _port(port: int | str, protocol: str = "TCP") -> Manifest:
    return {"port": port, "protocol": protocol}
