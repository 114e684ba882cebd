"""What the program in a container is given, as far as that is known before the container runs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from gpuledger.operator.programs import Run
from gpuledger.operator.render.collectors import CSV_FILE, collectors_csv
from gpuledger.operator.render.names import Naming
from gpuledger.operator.render.program import COLLECTORS, program_config
from gpuledger.operator.render.secrets import Secrets
from gpuledger.operator.spec import Plain

# `$(NAME)` in arguments and values, and `$$`, which is a dollar sign: Kubernetes' own expansion.
_REFERENCE: Final = re.compile(r"\$\$|\$\(([-._a-zA-Z][-._a-zA-Z0-9]*)\)")


class _Unknown(Exception):
    """It refers to a variable whose value only the pod will know."""


def exporter_run(naming: Naming, container: Plain) -> Run:
    """Of the exporter's container."""
    exporter = naming.monitor.exporter
    if naming.whatap:
        return _run(container, (), {}, {CSV_FILE: exporter.collectors or collectors_csv()})
    files = {COLLECTORS: exporter.collectors} if exporter.collectors else {}
    return _run(container, container["args"][1:], program_config(exporter), files)


def agent_run(naming: Naming, container: Plain, config: Plain, secrets: Secrets, *, prints: bool) -> Run:
    """Of the agent's container; where it `prints`, of the one before it, for Prometheus."""
    agent = naming.monitor.agent
    if prints:
        arguments = ["--engine=prometheus", f"--shard=0/{agent.replicas}"]
    else:
        # Those of Prometheus's own container are Prometheus's.
        arguments = container["args"][1:] if agent.engine == "builtin" else []
    return _run(container, arguments, config, secrets.files)


def _run(
    container: Plain,
    arguments: Sequence[str],
    configuration: Mapping[str, Any],
    files: Mapping[str, str],
) -> Run:
    """Variables that only the pod will know are left out; with one in the arguments, so are all arguments."""
    known = _environment(container.get("env") or ())
    try:
        given = [_expanded(one, known) for one in arguments]
    except _Unknown:
        given = []
    environment = {name: value for name, value in known.items() if value is not None}
    return Run(given, environment, configuration, files)


def _environment(env: Iterable[Plain]) -> dict[str, str | None]:
    """The value of each variable, None where it is not known."""
    found: dict[str, str | None] = {}
    for one in env:
        try:
            value = None if one.get("valueFrom") else _expanded(str(one.get("value") or ""), found)
        except _Unknown:
            value = None
        found[one["name"]] = value
    return found


def _expanded(text: str, known: Mapping[str, str | None]) -> str:
    def put(found: re.Match[str]) -> str:
        name = found.group(1)
        if name is None:
            return "$"
        value = known.get(name, found.group())
        if value is None:
            raise _Unknown
        return value

    return _REFERENCE.sub(put, text)
