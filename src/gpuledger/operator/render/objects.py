"""From what a resource asks for to the objects that make it so: pure, and the same for the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from gpuledger.operator.facts import Facts
from gpuledger.operator.programs import Complaint
from gpuledger.operator.render.agent import agent_config, config_map, service, stateful_set
from gpuledger.operator.render.exporter import csv_config, daemon_set, exporter_config, exporter_service
from gpuledger.operator.render.names import COMPONENT, Manifest, Naming, naming_of
from gpuledger.operator.render.pods import ambiguous
from gpuledger.operator.render.program import agent_run, exporter_run, owned
from gpuledger.operator.render.secrets import Secrets
from gpuledger.operator.render.targets import scrapes_its_own
from gpuledger.operator.spec import GpuMonitor, Pods, Problem

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


# Flags that fields of an exporter become.
_FIELDS: Final = {
    "--source": "source",
    "--gpu-count": "gpuCount",
    "--devices": "devices",
    "--passwd-file": "passwdFile",
    "--state-dir": "stateDir",
    "--metrics-path": "metricsPath",
}


def of_exporter(complaint: Complaint, monitor: GpuMonitor) -> Problem:
    """At the exporter's field."""
    path, exporter = monitor.exporter_path, monitor.exporter
    flags = {one.partition("=")[0] for one in exporter.pods.args}
    place, _, message = complaint.text.partition(": ")
    if complaint.part == "environment":
        return _of_variable(complaint.text, exporter.pods, path, monitor)
    if complaint.part == "arguments" and place in _FIELDS and place not in flags:
        return Problem(f"{path}.{_FIELDS[place]}", message)
    if complaint.part == "arguments" or f"--{complaint.part}" in flags:
        return Problem(f"{path}.args", complaint.text)
    if complaint.part == "dialect":
        where = "config" if "dialect" in exporter.config else monitor.env_key
        return Problem(f"{path}.{where}", complaint.text)
    return Problem(
        f"{path}.{'config' if complaint.part == 'configuration' else complaint.part}", complaint.text
    )


def of_agent(complaint: Complaint, monitor: GpuMonitor) -> Problem:
    """At the agent's field, or the operator's own. The agent calls its keys
    `features.openAgent.KEY: what is wrong`, and those that Prometheus has no words for by target or receiver.
    """
    path, agent = monitor.agent_path, monitor.agent
    if complaint.part == "arguments":
        return Problem(f"{path}.args", complaint.text)
    if complaint.part == "environment":
        return _of_variable(complaint.text, agent.pods, path, monitor)
    receivers = f"{path}.remoteWrite" if agent.remote_write else "operator.defaultRemoteWrite"
    paths = {
        "features.openAgent": path,
        "global.external_labels": f"{path}.externalLabels",
        "remote_write": receivers,
    }
    place, _, message = complaint.text.partition(": ")
    for before, behind in paths.items():
        if place.startswith(before):
            return Problem(behind + place.removeprefix(before), message)
    for at, target in enumerate(agent.targets or ()):
        if place == target["targetName"]:
            return Problem(f"{path}.targets[{at}]", message)
    for at, receiver in enumerate(agent.remote_write):
        if place == receiver.get("name"):
            return Problem(f"{receivers}[{at}]", message)
    return Problem(path, complaint.text)


def _of_variable(text: str, pods: Pods, path: str, monitor: GpuMonitor) -> Problem:
    """Of two of one name the later counts."""
    place, _, message = text.partition(": ")
    where = f"{path}.{monitor.env_key}"
    for at, one in reversed(list(enumerate(pods.env))):
        if one["name"] == place:
            return Problem(f"{where}[{at}].value", message)
    return Problem(where, text)


@dataclass(frozen=True, slots=True)
class Rendered:
    """`objects` are to be there, as they are, in this order. `seeds` are made where they are not there and
    then left to whoever edits them, until the resource goes. With `problems` nothing is to be applied.
    `receiver_missing`: an agent is wanted and nobody is named to deliver to, so there is none.
    """

    objects: tuple[Mapping[str, Any], ...]
    problems: tuple[Problem, ...] = ()
    receiver_missing: bool = False
    seeds: tuple[Mapping[str, Any], ...] = ()

    def without_exporters(self) -> Rendered:
        """The same without exporters and what is theirs: an agent goes on with its other targets."""
        return replace(
            self,
            objects=tuple(one for one in self.objects if not _is_exporters(one)),
            seeds=tuple(one for one in self.seeds if not _is_exporters(one)),
        )


def render(monitor: GpuMonitor, facts: Facts) -> Rendered:
    """The objects of a resource. Nothing is raised, whatever its schema admits."""
    naming = naming_of(monitor, facts)
    objects = accounts(naming)
    seeds: list[Manifest] = []
    problems: list[Problem] = []
    if monitor.exporter.enabled:
        pods = daemon_set(naming)
        problems += _exporter_problems(naming, pods)
        objects += [*exporter_config(naming), *exporter_service(naming), pods]
        if naming.whatap and not monitor.exporter.collectors:
            seeds.append(csv_config(naming))
    missing = monitor.agent.enabled and not (monitor.agent.remote_write or facts.default_remote_write)
    if monitor.agent.enabled and not missing:
        secrets = Secrets(naming.names.namespace)
        config = agent_config(naming, secrets)
        pods = stateful_set(naming, config, secrets)
        problems += [*secrets.problems, *_agent_problems(naming, config, secrets, pods)]
        objects += [config_map(naming, config), service(naming), pods]
    return Rendered(tuple(objects), tuple(problems), missing, tuple(seeds))


def _is_exporters(body: Mapping[str, Any]) -> bool:
    return bool(body["metadata"]["labels"][COMPONENT] == "exporter")


def _exporter_problems(naming: Naming, pods: Manifest) -> Iterator[Problem]:
    monitor = naming.monitor
    exporter, path = monitor.exporter, monitor.exporter_path
    yield from ambiguous(exporter.pods.env, f"{path}.{monitor.env_key}")
    yield from owned(exporter, path)
    names, numbers = {"metrics"}, {exporter.port}
    for at, one in enumerate(exporter.extra_ports):
        if one.name in names or one.port in numbers:
            yield Problem(f"{path}.extraPorts[{at}]", "name and number must be no other port's")
        names.add(one.name)
        numbers.add(one.port)
    if naming.whatap and exporter.pods.image:
        # Another's program, perhaps.
        return
    complaint = naming.facts.check_exporter(exporter_run(naming, _container(pods)))
    if complaint is not None:
        yield of_exporter(complaint, monitor)


def _agent_problems(naming: Naming, config: Manifest, secrets: Secrets, pods: Manifest) -> Iterator[Problem]:
    monitor = naming.monitor
    agent, path = monitor.agent, monitor.agent_path
    yield from ambiguous(agent.pods.env, f"{path}.{monitor.env_key}")
    unknown_to_prometheus = list(_namespaces_by_label(naming)) if agent.engine == "prometheus" else []
    yield from unknown_to_prometheus
    prints = agent.engine == "prometheus" and not unknown_to_prometheus
    complaint = naming.facts.check_agent(agent_run(naming, _container(pods), config, secrets, prints=prints))
    if complaint is not None:
        yield of_agent(complaint, monitor)
    web = monitor.exporter.web_config
    if web is not None and web.scheme == "https" and scrapes_its_own(naming):
        yield Problem(
            f"{path}.targets",
            f"the exporters speak https ({monitor.exporter_path}.webConfig): name a target that has them, "
            "with tlsConfig, or autoTargets: false",
        )


def _namespaces_by_label(naming: Naming) -> Iterator[Problem]:
    for at, target in enumerate(naming.monitor.agent.targets or ()):
        spaces = target.get("namespaceSelector") or {}
        if spaces.get("matchLabels") or spaces.get("matchExpressions"):
            yield Problem(
                f"{naming.monitor.agent_path}.targets[{at}].namespaceSelector",
                "Prometheus cannot select namespaces by their labels; give matchNames, or engine: builtin",
            )


def _container(pods: Manifest) -> Manifest:
    """The one of a DaemonSet or StatefulSet."""
    (found,) = pods["spec"]["template"]["spec"]["containers"]
    return dict(found)
