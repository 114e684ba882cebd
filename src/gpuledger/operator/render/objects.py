"""Renders the objects of a resource. Pure: the same resource always gives the same objects."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from re import fullmatch, sub
from typing import Any, Final

from gpuledger.dialects.catalogue import ONCE_DIALECTS
from gpuledger.operator.program_checks import ProgramProblem
from gpuledger.operator.render.agent import (
    agent_config,
    agent_config_map,
    agent_service,
    receivers_of,
    stateful_set,
)
from gpuledger.operator.render.cron_job import cron_job, plan_jobs
from gpuledger.operator.render.exporter import csv_config, daemon_set, exporter_config, exporter_service
from gpuledger.operator.render.naming import COMPONENT, Manifest, Naming
from gpuledger.operator.render.network_policies import network_policies
from gpuledger.operator.render.pods import find_env_problems
from gpuledger.operator.render.program import (
    FLAG_FIELDS,
    agent_run,
    exporter_run,
    find_overridden_keys,
    program_config,
)
from gpuledger.operator.render.secrets import SecretFiles
from gpuledger.operator.render.targets import own_target_name, scrapes_its_own
from gpuledger.operator.render_context import RenderContext, without_receivers
from gpuledger.operator.schema.nodes import Problem
from gpuledger.operator.spec import GpuMonitor
from gpuledger.operator.spec_sections import PodSettings
from gpuledger.operator.target_parts import kept_items, leave_out

_GROUP: Final = "rbac.authorization.k8s.io"


def access_objects(naming: Naming) -> list[Manifest]:
    """ServiceAccounts and bindings of the exporters and agents."""
    monitor, context, names = naming.monitor, naming.context, naming.names
    found: list[Manifest] = []
    if monitor.exporter.enabled:
        exporter = names.exporter
        found.append(naming.object("v1", "ServiceAccount", exporter, "exporter"))
        if monitor.exporter.pod_names in ("auto", "api"):
            role = context.exporter_role
            found.append(_role_binding(naming, "exporter", exporter, exporter, role, True))
        if context.scc_role:
            name = f"{exporter}-scc"
            found.append(_role_binding(naming, "exporter", name, exporter, context.scc_role, False))
    if monitor.agent.enabled:
        account = names.agent_account
        found += [
            naming.object("v1", "ServiceAccount", account, "agent"),
            _role_binding(naming, "agent", names.agent_binding, account, context.agent_role, True),
            # The agent reads its number of replicas.
            _role_binding(naming, "agent", names.agent_binding, account, context.agent_own_role, False),
        ]
    return found


def _role_binding(
    naming: Naming, component: str, name: str, account: str, role: str, cluster: bool
) -> Manifest:
    return naming.object(
        f"{_GROUP}/v1",
        "ClusterRoleBinding" if cluster else "RoleBinding",
        name,
        component,
        cluster=cluster,
        roleRef={"apiGroup": _GROUP, "kind": "ClusterRole", "name": role},
        subjects=[{"kind": "ServiceAccount", "name": account, "namespace": naming.names.namespace}],
    )


def exporter_problem(problem: ProgramProblem, monitor: GpuMonitor) -> Problem:
    """The problem with the path of the exporter's field that causes it."""
    path, exporter = monitor.exporter_path, monitor.exporter
    flags = {argument.partition("=")[0] for argument in exporter.args}
    location, _, message = problem.text.partition(": ")
    if problem.part == "environment":
        return _variable_problem(problem.text, exporter, path, monitor)
    name = location.removeprefix("--").replace("-", "_")
    field = FLAG_FIELDS.get(name) or FLAG_FIELDS.get(f"textfile.{name}")
    if problem.part == "arguments" and field and location not in flags:
        return Problem(f"{path}.{field}", message)
    if problem.part == "arguments" or f"--{problem.part}" in flags:
        return Problem(f"{path}.args", problem.text)
    if problem.part == "dialect":
        where = "config" if "dialect" in exporter.config else monitor.env_key
        return Problem(f"{path}.{where}", problem.text)
    return Problem(f"{path}.{'config' if problem.part == 'configuration' else problem.part}", problem.text)


def agent_problem(problem: ProgramProblem, naming: Naming) -> Problem:
    """The problem with the path of the agent's field, or of the operator's configuration, that causes it.

    The agent reports `KEY: message` with keys such as `features.openAgent.targets[0]`, or the name of a
    target or receiver instead of the key.
    """
    monitor = naming.monitor
    path, agent = monitor.agent_path, monitor.agent
    if problem.part == "arguments":
        return Problem(f"{path}.args", problem.text)
    if problem.part == "environment":
        return _variable_problem(problem.text, agent, path, monitor)
    receivers_path, receivers = receivers_of(naming)
    paths = {
        "features.openAgent": path,
        "global.external_labels": f"{path}.externalLabels",
        "remote_write": receivers_path,
    }
    location, _, message = problem.text.partition(": ")
    if found := fullmatch(r"features\.openAgent\.targets\[(\d+)\](.*)", location):
        return Problem(_target_path(int(found[1]), found[2], monitor), message)
    for prefix, replacement in paths.items():
        if location.startswith(prefix):
            below = location.removeprefix(prefix)
            if prefix == "remote_write":
                # In the agent's configuration, receivers have the keys of Prometheus.
                below = sub("_([a-z])", lambda letter: letter[1].upper(), below)
                below = sub(r"^\[(\d+)\]", lambda number: f"[{receivers[int(number[1])][0]}]", below)
            return Problem(replacement + below, message)
    for index, target in kept_items(agent.targets):
        if location == target["targetName"]:
            return Problem(f"{path}.targets[{index}]", message)
    for index, receiver in receivers:
        if location == receiver.get("name"):
            return Problem(f"{receivers_path}[{index}]", message)
    return Problem(path, problem.text)


def _target_path(number: int, below: str, monitor: GpuMonitor) -> str:
    """The path in the resource of a target in the agent's configuration, which lacks those left out."""
    path, kept = f"{monitor.agent_path}.targets", kept_items(monitor.agent.targets)
    if number < len(kept):
        index, target = kept[number]
        if found := fullmatch(r"\.endpoints\[(\d+)\](.*)", below):
            endpoint, _ = kept_items(target["endpoints"])[int(found[1])]
            below = f".endpoints[{endpoint}]{found[2]}"
        return f"{path}[{index}]{below}"
    # The automatic target of the resource's own exporters.
    if below == ".targetName":
        own = own_target_name(monitor)
        return next((f"{path}[{index}]{below}" for index, one in kept if one["targetName"] == own), path)
    rules = sub(r"\[\d+\].*", "", below.replace(".endpoints[0]", ""))
    return f"{monitor.exporter_path}{rules}"


def _variable_problem(text: str, pods: PodSettings, path: str, monitor: GpuMonitor) -> Problem:
    """The problem with the path of the variable; of two with the same name, the later one."""
    name, _, message = text.partition(": ")
    env_path = f"{path}.{monitor.env_key}"
    for index, entry in reversed(list(enumerate(pods.env))):
        if entry["name"] == name:
            return Problem(f"{env_path}[{index}].value", message)
    return Problem(env_path, text)


@dataclass(frozen=True, slots=True)
class Rendered:
    """The result of rendering.

    `objects` must exist with this content and are applied in this order. `seeds` are created if they do not
    exist; then users may edit them. `kept` are seeds that are not needed now: users may have edited them.
    Targets, and receivers of the operator, with `problems` are left out; because of `refusing` ones, nothing
    is applied. `receiver_missing`: the agent is enabled, but not deployed, because it has no receiver. `note`
    says what runs instead of a CronJob, and why.
    """

    objects: tuple[Mapping[str, Any], ...]
    problems: tuple[Problem, ...] = ()
    receiver_missing: bool = False
    seeds: tuple[Mapping[str, Any], ...] = ()
    kept: tuple[Mapping[str, Any], ...] = ()
    refusing: tuple[Problem, ...] = ()
    note: str = ""

    @property
    def refused(self) -> bool:
        """Whether nothing is applied."""
        return bool(self.refusing)

    def without_exporters(self) -> Rendered:
        """A copy without the objects of the exporters; the agent keeps scraping its other targets."""
        return replace(
            self,
            objects=tuple(body for body in self.objects if _component_of(body) != "exporter"),
            seeds=(),
            kept=(*self.kept, *self.seeds),
        )

    def without_changes_of(self, components: Collection[str]) -> Rendered:
        """A copy that neither creates, changes nor deletes the objects of these components."""
        left = [body for body in (*self.objects, *self.seeds) if _component_of(body) in components]
        return replace(
            self,
            objects=tuple(body for body in self.objects if _component_of(body) not in components),
            seeds=tuple(body for body in self.seeds if _component_of(body) not in components),
            kept=(*self.kept, *left),
        )


def render_objects(monitor: GpuMonitor, context: RenderContext) -> Rendered:
    """Render the objects of a resource. Never raises for a resource that its schema allows."""
    naming = Naming(monitor, context)
    objects = access_objects(naming)
    seeds: list[Manifest] = []
    missing = monitor.agent.enabled and not (monitor.agent.remote_write or context.default_remote_write)
    agent = _RenderedAgent(naming)
    if monitor.agent.enabled and not missing:
        agent = _render_agent(naming)
        naming = agent.naming
    problems: list[Problem] = []
    note = ""
    if monitor.exporter.enabled:
        workloads, note = _exporter_workloads(naming)
        problems += _exporter_problems(naming, workloads[0])
        objects += [*exporter_config(naming), *exporter_service(naming), *workloads]
        if naming.whatap and not monitor.exporter.collectors:
            seeds.append(csv_config(naming))
    objects += agent.objects
    objects += network_policies(naming, agent=monitor.agent.enabled and not missing)
    kept = [csv_config(naming)] if naming.whatap and not monitor.exporter.enabled else []
    return Rendered(
        tuple(objects),
        (*problems, *agent.problems),
        missing,
        tuple(seeds),
        tuple(kept),
        refusing=(*problems, *agent.refusing),
        note=note,
    )


def _exporter_workloads(naming: Naming) -> tuple[list[Manifest], str]:
    """The DaemonSet, the CronJob or both, with a note if a DaemonSet runs instead of a CronJob."""
    if naming.monitor.exporter.mode != "cronjob":
        return [daemon_set(naming)], ""
    plan = plan_jobs(naming)
    made = [] if plan.runs else [daemon_set(naming)]
    return [*made, *([cron_job(naming, plan)] if plan.has_job else [])], plan.note


@dataclass(frozen=True, slots=True)
class _RenderedAgent:
    """The agent's objects, with a naming without the targets and receivers that are left out."""

    naming: Naming
    objects: tuple[Manifest, ...] = ()
    problems: tuple[Problem, ...] = ()
    refusing: tuple[Problem, ...] = ()


def _render_agent(naming: Naming) -> _RenderedAgent:
    problems: dict[Problem, None] = {}
    while True:
        secrets = SecretFiles(naming.names.namespace)
        config = agent_config(naming, secrets)
        pods = stateful_set(naming, config, secrets)
        found = [*secrets.problems, *_agent_problems(naming, config, secrets, pods)]
        problems.update(dict.fromkeys(found))
        # What is left without the bad targets is checked again: targets can depend on each other.
        kept = leave_out(naming.monitor, found)
        receivers = without_receivers(naming.context, found)
        if kept is None and receivers is None:
            objects = (agent_config_map(naming, config), agent_service(naming), pods)
            return _RenderedAgent(naming, objects, tuple(problems), tuple(found))
        naming = replace(naming, monitor=kept or naming.monitor, context=receivers or naming.context)


def _component_of(body: Mapping[str, Any]) -> str:
    return str(body["metadata"]["labels"][COMPONENT])


def _exporter_problems(naming: Naming, pods: Manifest) -> Iterator[Problem]:
    monitor = naming.monitor
    exporter, path = monitor.exporter, monitor.exporter_path
    yield from find_env_problems(exporter.env, f"{path}.{monitor.env_key}")
    yield from find_overridden_keys(exporter, path)
    if exporter.collects and (exporter.extra_ports or exporter.web_config):
        yield Problem(f"{path}.mode", f"{exporter.mode} serves no page: leave out extraPorts and webConfig")
    yield from _dialect_problems(naming)
    names, numbers = {"metrics"}, {exporter.port}
    for index, port in enumerate(exporter.extra_ports):
        if port.name in names or port.port in numbers:
            yield Problem(f"{path}.extraPorts[{index}]", "its name or number is already used by another port")
        names.add(port.name)
        numbers.add(port.port)
    if naming.whatap and exporter.image:
        # The image may not be gpuledger.
        return
    for problem in naming.context.check_exporter(exporter_run(naming, _only_container(pods))):
        yield exporter_problem(problem, monitor)


def _dialect_problems(naming: Naming) -> Iterator[Problem]:
    """The problem of dialects that a Job cannot export."""
    if naming.monitor.exporter.mode != "cronjob":
        return
    stated = program_config(naming).get("dialect") or ()
    names = stated.split(",") if isinstance(stated, str) else stated
    if counting := sorted({str(name).strip() for name in names} - {*ONCE_DIALECTS}):
        yield Problem(
            f"{naming.monitor.exporter_path}.dialects",
            f"a CronJob supports only {' and '.join(ONCE_DIALECTS)}, because the counters of "
            f"{', '.join(counting)} need a program that keeps running; set mode to collect or daemonset",
        )


def _agent_problems(
    naming: Naming, config: Manifest, secrets: SecretFiles, pods: Manifest
) -> Iterator[Problem]:
    monitor = naming.monitor
    agent, path = monitor.agent, monitor.agent_path
    yield from find_env_problems(agent.env, f"{path}.{monitor.env_key}")
    unsupported = list(_find_label_selected_namespaces(naming)) if agent.engine == "prometheus" else []
    yield from unsupported
    prints = agent.engine == "prometheus" and not unsupported
    run = agent_run(naming, _only_container(pods), config, secrets, prints=prints)
    for problem in naming.context.check_agent(run):
        yield agent_problem(problem, naming)
    web = monitor.exporter.web_config
    if web is not None and web.scheme == "https" and scrapes_its_own(naming):
        yield Problem(
            f"{path}.targets",
            f"the exporters serve https ({monitor.exporter_path}.webConfig): add a target with tlsConfig "
            "that selects them, or set autoTargets: false",
        )


def _find_label_selected_namespaces(naming: Naming) -> Iterator[Problem]:
    for index, target in kept_items(naming.monitor.agent.targets):
        selector = target.get("namespaceSelector") or {}
        if selector.get("matchLabels") or selector.get("matchExpressions"):
            yield Problem(
                f"{naming.monitor.agent_path}.targets[{index}].namespaceSelector",
                "Prometheus cannot select namespaces by their labels; use matchNames, or engine: builtin",
            )


def _only_container(pods: Manifest) -> Manifest:
    """The only container of a DaemonSet, StatefulSet or CronJob."""
    template = (pods["spec"]["jobTemplate"] if pods["kind"] == "CronJob" else pods)["spec"]["template"]
    (found,) = template["spec"]["containers"]
    return dict(found)
