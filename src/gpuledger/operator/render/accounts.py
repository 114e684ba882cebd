"""ServiceAccounts, and the chart's static roles bound to them: the operator can give no more than these."""

from __future__ import annotations

from typing import Final

from gpuledger.operator.render.names import Manifest, Naming

_GROUP: Final = "rbac.authorization.k8s.io"


def accounts(naming: Naming) -> list[Manifest]:
    """Of exporters and agents that are wanted."""
    monitor, facts, names = naming.monitor, naming.facts, naming.names
    found: list[Manifest] = []
    if monitor.exporter.enabled:
        found.append(naming.object("v1", "ServiceAccount", names.exporter_account, "exporter"))
        if monitor.exporter.pod_names in ("auto", "api"):
            found.append(
                _bound(naming, "exporter", names.exporter, names.exporter_account, facts.exporter_role, True)
            )
        if facts.scc_role:
            name = f"{names.exporter}-scc"
            found.append(_bound(naming, "exporter", name, names.exporter_account, facts.scc_role, False))
    if monitor.agent.enabled:
        account = names.agent_account
        found += [
            naming.object("v1", "ServiceAccount", account, "agent"),
            _bound(naming, "agent", names.agent_binding, account, facts.agent_role, True),
            # How many agents share the work.
            _bound(naming, "agent", names.agent_binding, account, facts.agent_own_role, False),
        ]
    return found


def _bound(naming: Naming, component: str, name: str, account: str, role: str, cluster: bool) -> Manifest:
    return naming.object(
        f"{_GROUP}/v1",
        "ClusterRoleBinding" if cluster else "RoleBinding",
        name,
        component,
        cluster=cluster,
        roleRef={"apiGroup": _GROUP, "kind": "ClusterRole", "name": role},
        subjects=[{"kind": "ServiceAccount", "name": account, "namespace": naming.names.namespace}],
    )
