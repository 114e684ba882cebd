"""Judges a specification part by part: what of it can be applied, and everything that is wrong with it.

A wrong target or endpoint is left out. Wrong receivers are left out at the first apply; later, the receivers
that run are kept. If another field of the exporter or of the agent is wrong, this section is kept as it was
applied last, or omitted if it never was, and the other one is applied. If it is not known what was applied
last, nothing is changed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, Final

from gpuledger.kubernetes.fields import mapping_at
from gpuledger.kubernetes.object_client import Json
from gpuledger.operator.monitor_parser import ParsedMonitor, parse_monitor
from gpuledger.operator.render.objects import Rendered
from gpuledger.operator.schema.nodes import Problem
from gpuledger.operator.spec import GPU_MONITOR, WHATAP_AGENT, GpuMonitor
from gpuledger.operator.spec_sections import Plain
from gpuledger.operator.target_parts import find_part

# The API server limits the whole resource to 1.5 MiB.
_MAX_STATUS_SPEC_BYTES: Final = 256 << 10


@dataclass(slots=True)
class AppliedSpec:
    """A specification as text, as a monitor and as objects (None until they are rendered)."""

    text: str
    monitor: GpuMonitor
    rendered: Rendered | None = None

    @property
    def status_text(self) -> str | None:
        """The text for `status.appliedSpec`; None if it is too long."""
        return self.text if len(self.text.encode()) <= _MAX_STATUS_SPEC_BYTES else None


def spec_text(body: Mapping[str, Any]) -> str:
    """The specification as canonical JSON."""
    return json.dumps(body.get("spec") or {}, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def last_applied_spec(body: Json) -> AppliedSpec | None:
    """The applied specification in the resource's status; None if it is absent or no longer valid."""
    text = str((body.get("status") or {}).get("appliedSpec") or "")
    try:
        found = parse_monitor({**body, "spec": json.loads(text)})
    except ValueError:
        return None
    return None if found.monitor is None else AppliedSpec(text, found.monitor)


# Renders the objects of a resource, which is given as received and as parsed.
RenderObjects = Callable[[Json, GpuMonitor], Rendered]


@dataclass(frozen=True, slots=True)
class JudgedSpec:
    """All problems of a specification, and what to apply of it: None if nothing can be applied.

    `kept` has a line for each section that is not applied as specified; without such a line, only targets,
    endpoints and receivers with problems are left out.
    """

    problems: tuple[Problem, ...]
    spec: AppliedSpec | None
    kept: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Section:
    """A section that is applied or kept as a whole. `keys` lead to it in the specification; `off` disables
    it.
    """

    keys: tuple[str, ...]
    off: Plain

    @property
    def path(self) -> str:
        return ".".join(("spec", *self.keys))

    def contains(self, path: str) -> bool:
        return path == self.path or path.startswith((f"{self.path}.", f"{self.path}["))


_OFF: Final[Plain] = {"enabled": False}
# The section of the exporters and that of the agent.
_SECTIONS: Final[Mapping[str, tuple[_Section, _Section]]] = {
    GPU_MONITOR: (_Section(("exporter",), _OFF), _Section(("agent",), _OFF)),
    WHATAP_AGENT: (
        _Section(("features", "k8sAgent"), {"gpuMonitoring": _OFF}),
        _Section(("features", "openAgent"), _OFF),
    ),
}
# The path of the receivers of the operator's configuration, which agents without other receivers have.
_OPERATOR: Final = "operator."
# Without these, other problems would be found than there are.
_DECISIVE_KEYS: Final = ("enabled", "engine", "mode")


def judge_spec(
    body: Json,
    parsed: ParsedMonitor,
    applied: AppliedSpec | None,
    render: RenderObjects,
    refused: Sequence[Problem] = (),
) -> JudgedSpec:
    """Judge the newest specification of a resource; `parsed` is the parsed resource, `applied` the
    specification that was applied last.

    `refused` are problems that only the API server finds, with the paths of sections.
    """
    rendered = None if parsed.monitor is None else render(body, parsed.monitor)
    if parsed.monitor is not None and rendered is not None and not rendered.refused and not refused:
        problems = (*parsed.problems, *rendered.problems)
        return JudgedSpec(problems, AppliedSpec(spec_text(body), parsed.monitor, rendered))
    sections = _SECTIONS.get(str(body.get("kind")))
    if sections is None or not isinstance(body.get("spec"), dict):
        return JudgedSpec(parsed.problems, None)
    agent_path = sections[1].path
    wrong = [problem for problem in parsed.problems if find_part(problem.path, agent_path) is None]
    found = [*refused, *parsed.problems]
    if rendered is None:
        rendered = _render_without(body, wrong, render)
    wrong += refused
    before = None if applied is None else json.loads(applied.text)
    while True:
        if rendered is not None:
            found += rendered.problems
            wrong += rendered.refusing
        resource, kept, omitted = _replace_wrong_parts(body, sections, wrong, before)
        known = before is not None or not _has_run(body)
        monitor = parse_monitor(resource).monitor if kept and known else None
        if monitor is None or _scrapes_others(body, monitor):
            return JudgedSpec(_distinct(found), None)
        rendered = _renumber_receivers(render(resource, monitor), agent_path, omitted)
        if not rendered.refused:
            problems = _distinct((*found, *rendered.problems))
            return JudgedSpec(problems, AppliedSpec(spec_text(resource), monitor, rendered), kept)
        if set(rendered.refusing) <= set(wrong):
            return JudgedSpec(_distinct(found), None)


def _has_run(body: Json) -> bool:
    """Whether something was applied before: its text may have been too long for the status, or an earlier
    operator accepted what this one refuses. Omitting a section would delete what runs.
    """
    status = mapping_at(body, "status")
    return any(status.get(key) is not None for key in ("appliedSpec", "gpuNodes", "targetsFound"))


def _distinct(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    return tuple(dict.fromkeys(problems))


def _scrapes_others(body: Json, monitor: GpuMonitor) -> bool:
    """Whether the agent would scrape all exporters of the cluster, only because its own ones are disabled."""
    alone = not monitor.agent.targets and monitor.agent.auto_targets is None
    return alone and not monitor.exporter.enabled and not _is_off(body)


def _is_off(body: Json) -> bool:
    """Whether a resource disables its exporters."""
    exporter, _ = _SECTIONS[str(body["kind"])]
    section = _value_at(body["spec"], exporter.keys)
    return mapping_at(section, "gpuMonitoring").get("enabled", section.get("enabled")) is False


def _replace_wrong_parts(
    body: Json, sections: Sequence[_Section], wrong: Iterable[Problem], before: Plain | None
) -> tuple[Json, tuple[str, ...], Collection[int]]:
    """The resource with wrong sections and receivers as in `before`, or without them, and a line for each.

    No line if something else is wrong, or all sections. The numbers are those of the receivers that are left
    out, while others remain.
    """
    spec, kept, agent = body["spec"], [], sections[1]
    paths = [problem.path for problem in wrong]
    receiver = re.compile(rf"{re.escape(agent.path)}[.]remoteWrite\[(\d+)\]")
    numbers = {int(found[1]) for path in paths if (found := receiver.match(path))}
    others = [path for path in paths if not receiver.match(path)]
    broken = [section for section in sections if any(map(section.contains, others))]
    if agent not in broken and any(path.startswith(_OPERATOR) for path in paths):
        broken.append(agent)
    omitted: Collection[int] = ()
    if numbers and agent not in broken:
        spec, lines, omitted = _without_receivers(spec, agent, numbers, before)
        kept += lines
        if not lines:
            broken.append(agent)
    known = [
        path for path in paths if path.startswith(_OPERATOR) or any(one.contains(path) for one in sections)
    ]
    if len(known) < len(paths) or len(broken) == len(sections):
        return body, (), ()
    for section in broken:
        value = section.off if before is None else _value_at(before, section.keys)
        fate = "is not applied" if value == section.off else "is kept as it was applied last"
        spec = _with_value(spec, section.keys, value)
        kept.append(f"{section.path} {fate}")
    return {**body, "spec": spec}, tuple(kept), omitted


def _without_receivers(
    spec: Plain, agent: _Section, numbers: Collection[int], before: Plain | None
) -> tuple[Plain, list[str], Collection[int]]:
    """The specification with the receivers of `before`, else without wrong ones; no line if none remains.

    The numbers are those of the receivers that are left out, while others remain.
    """
    keys, path = (*agent.keys, "remoteWrite"), f"{agent.path}.remoteWrite"
    running = None if before is None else _value_at(before, agent.keys).get("remoteWrite")
    if running:
        return _with_value(spec, keys, running), [f"{path} is kept as it was applied last"], ()
    stated = _value_at(spec, agent.keys)["remoteWrite"]
    good = [receiver for index, receiver in enumerate(stated) if index not in numbers]
    omitted = sorted(numbers) if good else []
    return _with_value(spec, keys, good), [f"{path}[{number}] is left out" for number in omitted], omitted


def _renumber_receivers(rendered: Rendered, agent_path: str, omitted: Collection[int]) -> Rendered:
    """The rendering; its problems have the numbers that receivers have in the resource."""
    prefix = f"{agent_path}.remoteWrite"

    def renumber(problem: Problem) -> Problem:
        found = re.match(rf"{re.escape(prefix)}\[(\d+)\]", problem.path)
        if found is None:
            return problem
        number = int(found[1])
        for left_out in sorted(omitted):
            number += left_out <= number
        return Problem(f"{prefix}[{number}]{problem.path[found.end() :]}", problem.message)

    problems, refusing = (tuple(map(renumber, some)) for some in (rendered.problems, rendered.refusing))
    return replace(rendered, problems=problems, refusing=refusing) if omitted else rendered


def _render_without(body: Json, wrong: Iterable[Problem], render: RenderObjects) -> Rendered | None:
    """Render the resource without the values that have problems, to find further problems.

    None if it cannot be parsed without them, either.
    """
    spec: Plain = body["spec"]
    for problem in wrong:
        spec = _without_value(spec, problem.path.removeprefix("spec").removeprefix("."))
    resource = {**body, "spec": spec}
    monitor = parse_monitor(resource).monitor
    return None if monitor is None else render(resource, monitor)


def _without_value(value: Plain, path: str) -> Plain:
    """The mapping without the value at `path`; without the whole list if it is in one.

    Keys may contain dots. Without a decisive key, its mapping is removed, too.
    """
    names = [name for name in value if path == name or path.startswith((f"{name}.", f"{name}["))]
    if not names:
        return {}
    name = max(names, key=len)
    below = path.removeprefix(name)
    if name in _DECISIVE_KEYS:
        return {}
    kept = {key: item for key, item in value.items() if key != name}
    if below.startswith(".") and isinstance(value[name], Mapping):
        return {**kept, name: _without_value(value[name], below[1:])}
    return kept


def _value_at(spec: Plain, keys: Iterable[str]) -> Plain:
    return reduce(mapping_at, keys, spec)


def _with_value(spec: Plain, keys: Sequence[str], value: object) -> Plain:
    """The specification with this value, without it if it is empty."""
    name, *below = keys
    changed = _with_value(mapping_at(spec, name), below, value) if below else value
    others = {key: item for key, item in spec.items() if key != name}
    return {**others, name: changed} if changed else others
