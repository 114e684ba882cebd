"""What the programs say against their pods, at the fields of the resource that they were given."""

from __future__ import annotations

from typing import Final

from gpuledger.operator.problem import Problem
from gpuledger.operator.programs import Complaint
from gpuledger.operator.spec import GpuMonitor, Pods

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
