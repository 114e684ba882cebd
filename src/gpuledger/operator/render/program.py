"""The exporter's configuration file, which it reads anew when it changes."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from gpuledger.operator.programs import Run
from gpuledger.operator.render.exporter_pod import CSV_FILE, collectors_csv
from gpuledger.operator.render.names import Manifest, Naming
from gpuledger.operator.render.pods import plain
from gpuledger.operator.render.secrets import Secrets
from gpuledger.operator.spec import Exporter, Plain, Problem

# Where the pod has the collectors file of a GpuMonitor.
COLLECTORS: Final = "/etc/gpuledger/config/collectors.csv"
# What is given by flags, which would beat the file, and the field of the exporter that says it.
_OWNED: Final = {
    "listen_address": "port",
    "metrics_path": "metricsPath",
    "source": "source",
    "devices": "devices",
    "gpu_count": "gpuCount",
    "state_dir": "stateDir",
    "passwd_file": "passwdFile",
    "web.config.file": "webConfig",
}


def program_config(exporter: Exporter) -> Manifest:
    """What the file says: the resource's own fields, and over them its `config`."""
    names: Manifest = {"names": exporter.pod_names}
    if exporter.pod_label_allowlist:
        names["pod_label_allowlist"] = list(exporter.pod_label_allowlist)
    made: Manifest = {
        "kubernetes": names,
        "web": {"page": exporter.web_page},
        "dialect": list(exporter.dialects),
    }
    if exporter.collectors:
        made["dcgm"] = {"collectors": COLLECTORS}
    if exporter.on_host and exporter.source == "smi":
        made["nvidia_smi"] = {"command": "/usr/local/nvidia/bin/nvidia-smi"}
    return _merged(made, plain(exporter.config))


def owned(exporter: Exporter, path: str) -> Iterator[Problem]:
    """Keys of `config` that would stand there in vain."""
    for key in _flat(exporter.config):
        if key in _OWNED:
            yield Problem(f"{path}.config.{key}", f"is said by {path}.{_OWNED[key]}; set that one")


def restarting(exporter: Exporter, restarts: Collection[str]) -> Manifest:
    """Of the configuration, what takes a restart: when it changes, pods are exchanged."""
    return {key: value for key, value in _flat(program_config(exporter)).items() if key in restarts}


def written(value: Any) -> str:
    """As YAML, the same text for the same value."""
    import yaml

    return str(yaml.safe_dump(plain(value), sort_keys=True, allow_unicode=True))


def _merged(below: Manifest, above: Mapping[str, Any]) -> Manifest:
    found = dict(below)
    for key, value in above.items():
        mine = found.get(key)
        found[key] = _merged(mine, value) if isinstance(mine, dict) and isinstance(value, dict) else value
    return found


def _flat(config: Mapping[str, Any], prefix: str = "") -> Manifest:
    found: Manifest = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found


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
