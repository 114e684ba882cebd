"""The exporter's configuration file, which it reads anew when it changes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from gpuledger.operator.problem import Problem
from gpuledger.operator.render.names import Manifest
from gpuledger.operator.render.pods import plain
from gpuledger.operator.spec import Exporter

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
