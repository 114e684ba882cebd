"""The exporter's configuration file, and the input of programs in pods for `ProgramCheck`."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from math import ceil
from typing import Any, Final

from gpuledger.ledger.settings import LedgerSettings
from gpuledger.operator.program_checks import ProgramRun
from gpuledger.operator.render.exporter_pod import CSV_FILE, collectors_csv
from gpuledger.operator.render.naming import Manifest, Naming
from gpuledger.operator.render.pods import to_plain
from gpuledger.operator.render.secrets import SecretFiles
from gpuledger.operator.render.targets import longest_scrape
from gpuledger.operator.schema.nodes import Problem
from gpuledger.operator.spec import ExporterSpec
from gpuledger.operator.spec_sections import Plain

# The path of a GpuMonitor's collectors file in the pod.
COLLECTORS: Final = "/etc/gpuledger/config/collectors.csv"
# Settings that the operator passes as flags, which override the file, and the fields that set them.
FLAG_FIELDS: Final = {
    "listen_address": "port",
    "metrics_path": "metricsPath",
    "source": "source",
    "devices": "devices",
    "gpu_count": "gpuCount",
    "state_dir": "stateDir",
    "passwd_file": "passwdFile",
    "web.config.file": "webConfig",
    "textfile.dir": "textfile.directory",
    "textfile.file": "textfile.file",
    "textfile.every": "textfile.every",
}


def program_config(naming: Naming) -> Manifest:
    """The exporter's configuration: from the resource's fields, overridden by its `config`."""
    exporter = naming.monitor.exporter
    kubernetes: Manifest = {"names": exporter.pod_names}
    if exporter.pod_label_allowlist:
        kubernetes["pod_label_allowlist"] = list(exporter.pod_label_allowlist)
    config: Manifest = {"kubernetes": kubernetes}
    if not exporter.collects:
        config["web"] = {"page": exporter.web_page}
    # Without dialects, a file has those that `gpuledger collect` writes by default.
    if dialects := exporter.dialects if exporter.collects else exporter.page_dialects:
        config["dialect"] = list(dialects)
    if exporter.collectors:
        config["dcgm"] = {"collectors": COLLECTORS}
    if exporter.on_host and exporter.runs_smi:
        config["nvidia_smi"] = {"command": "/usr/local/nvidia/bin/nvidia-smi"}
    hold = ceil(longest_scrape(naming))
    if hold > LedgerSettings().zero_hold and "energy.zero_hold" not in _flatten(exporter.config):
        config["energy"] = {"zero_hold": f"{hold}s"}
    return _merge(_without(config, _flatten(exporter.config)), to_plain(exporter.config))


def find_overridden_keys(exporter: ExporterSpec, path: str) -> Iterator[Problem]:
    """Problems of keys in `config` that have no effect, because a flag overrides them."""
    for key in _flatten(exporter.config):
        # A configuration may have settings of other commands.
        if key in FLAG_FIELDS and (exporter.collects or not key.startswith("textfile.")):
            yield Problem(f"{path}.config.{key}", f"has no effect; set {path}.{FLAG_FIELDS[key]} instead")


def restart_settings(naming: Naming, restarts: Collection[str]) -> Manifest:
    """The settings that need a restart: when they change, the pods are replaced."""
    return {key: value for key, value in _flatten(program_config(naming)).items() if key in restarts}


def to_yaml(value: Any) -> str:
    """The value as YAML, the same text for the same value."""
    import yaml

    return str(yaml.safe_dump(to_plain(value), sort_keys=True, allow_unicode=True))


def restart_annotation(settings: Any) -> dict[str, str]:
    """The annotation of pods that are replaced when these settings change."""
    return {"gpuledger/restart-on": sha256(to_yaml(settings).encode()).hexdigest()}


def _merge(base: Manifest, overrides: Mapping[str, Any]) -> Manifest:
    merged = dict(base)
    for key, value in overrides.items():
        below = merged.get(key)
        merged[key] = _merge(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged


def _without(base: Manifest, keys: Collection[str], prefix: str = "") -> Manifest:
    """Without these keys, which `config` has with dots: the program refuses a key that is given twice."""
    return {
        key: _without(value, keys, f"{prefix}{key}.") if isinstance(value, dict) else value
        for key, value in base.items()
        if f"{prefix}{key}" not in keys
    }


def _flatten(config: Mapping[str, Any], prefix: str = "") -> Manifest:
    found: Manifest = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            found |= _flatten(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found


# Kubernetes expands `$(NAME)` in arguments and values; `$$` is a dollar sign.
_REFERENCE: Final = re.compile(r"\$\$|\$\(([-._a-zA-Z][-._a-zA-Z0-9]*)\)")


def exporter_run(naming: Naming, container: Plain) -> ProgramRun:
    """The input of the program in the exporter's container."""
    exporter = naming.monitor.exporter
    if naming.whatap:
        return _run(container, (), {}, {CSV_FILE: exporter.collectors or collectors_csv()})
    files = {COLLECTORS: exporter.collectors} if exporter.collectors else {}
    command, *arguments = container["args"]
    return _run(container, arguments, program_config(naming), files, command)


def agent_run(
    naming: Naming, container: Plain, config: Plain, secrets: SecretFiles, *, prints: bool
) -> ProgramRun:
    """The input of the program in the agent's container.

    With `prints`, that of the init container, which prints the configuration for Prometheus.
    """
    agent = naming.monitor.agent
    if prints:
        arguments = ["--engine=prometheus", f"--shard=0/{agent.replicas}"]
    else:
        # The container of engine prometheus has arguments of Prometheus, which are not checked.
        arguments = container["args"][1:] if agent.engine == "builtin" else []
    return _run(container, arguments, config, secrets.files)


def _run(
    container: Plain,
    arguments: Sequence[str],
    configuration: Mapping[str, Any],
    files: Mapping[str, str],
    command: str = "serve",
) -> ProgramRun:
    """Omits variables that are known only in the pod; if an argument refers to one, omits all arguments."""
    known = _known_environment(container.get("env") or ())
    expanded = [text for argument in arguments if (text := _expand(argument, known)) is not None]
    if len(expanded) < len(arguments):
        expanded = []
    environment = {name: value for name, value in known.items() if value is not None}
    return ProgramRun(expanded, environment, configuration, files, command)


def _known_environment(env: Iterable[Plain]) -> dict[str, str | None]:
    """The value of each variable, None if it is known only in the pod."""
    found: dict[str, str | None] = {}
    for entry in env:
        value = None if entry.get("valueFrom") else _expand(str(entry.get("value") or ""), found)
        found[entry["name"]] = value
    return found


def _expand(text: str, known: Mapping[str, str | None]) -> str | None:
    """The text with the values of its variables; None if a value is known only in the pod."""
    if any(known.get(name, "") is None for name in _REFERENCE.findall(text)):
        return None
    return _REFERENCE.sub(lambda match: known.get(match[1], match[0]) or "" if match[1] else "$", text)
