"""The input of rendering besides the spec: the owning resource and the operator's configuration."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from gpuledger.host.yaml_documents import read_yaml
from gpuledger.kubernetes.access import ApiServerAccess
from gpuledger.model.errors import UsageError, raise_errors
from gpuledger.operator.program_checks import ProgramCheck, accept_every_run
from gpuledger.operator.schema.nodes import Problem, TextNode
from gpuledger.operator.schema.pods import NAME, PULL_POLICY, PULL_SECRETS, image_node
from gpuledger.operator.schema.scraping import EXTERNAL_LABELS, REMOTE_WRITE
from gpuledger.operator.schema.sections import section, section_values, spec_field
from gpuledger.operator.spec_sections import Plain

_NAME: Final = TextNode(pattern=NAME, expected="a name")
# The path of the receivers of agents without other ones, in problems.
DEFAULT_RECEIVERS: Final = "operator.defaultRemoteWrite"


@dataclass(frozen=True, slots=True)
class MonitorReference:
    """The resource that owns the objects."""

    api_version: str
    kind: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class RenderContext:
    """The input of rendering that does not depend on the resource's spec.

    `namespace` is for the objects of GpuMonitors, `whatap_namespace` for those of a WhatapAgent.
    `exporter_role` and `agent_role` are ClusterRoles of the chart; `agent_own_role` is the ClusterRole for
    the agent's own namespace. `check_agent` and `check_exporter` validate the input of these programs.
    `exporter_restarts` are the settings that need a restart of the exporter. These three are passed in,
    because this package must not import the programs. `cron_job_version` is the API version of CronJobs that
    the server has. `gpu_nodes` are the names of the nodes for Jobs, None if the operator does not know them.
    """

    owner: MonitorReference = MonitorReference("", "", "", "")
    namespace: str = spec_field(_NAME, "gpuledger")
    whatap_namespace: str = spec_field(_NAME, "whatap-monitoring")
    image: str = spec_field(image_node(""), "gpuledger")
    image_pull_policy: str = spec_field(PULL_POLICY, "IfNotPresent")
    image_pull_secrets: tuple[Plain, ...] = spec_field(PULL_SECRETS, ())
    prometheus_image: str = spec_field(image_node(""), "quay.io/prometheus/prometheus:v3.5.0")
    exporter_role: str = spec_field(_NAME, "gpuledger")
    agent_role: str = spec_field(_NAME, "gpuledger-agent")
    agent_own_role: str = spec_field(_NAME, "gpuledger-agent-own")
    scc_role: str = spec_field(TextNode(pattern=f"{NAME}|^$", expected="a name"), "")
    # None in place of a receiver: it is left out, because it has a problem.
    default_remote_write: tuple[Plain | None, ...] = spec_field(REMOTE_WRITE, ())
    external_labels: Mapping[str, str] = spec_field(EXTERNAL_LABELS, {})
    check_agent: ProgramCheck = accept_every_run
    check_exporter: ProgramCheck = accept_every_run
    exporter_restarts: frozenset[str] = frozenset()
    cron_job_version: str = "batch/v1"
    gpu_nodes: tuple[str, ...] | None = None


def without_receivers(context: RenderContext, problems: Iterable[Problem]) -> RenderContext | None:
    """The context without the default receivers that the problems are about; None if none is left or changed.

    The others keep their numbers.
    """
    found = (re.match(rf"{re.escape(DEFAULT_RECEIVERS)}\[(\d+)\]", problem.path) for problem in problems)
    numbers = {int(one[1]) for one in found if one is not None}
    kept = tuple(
        None if index in numbers else receiver for index, receiver in enumerate(context.default_remote_write)
    )
    if not any(kept) or kept == context.default_remote_write:
        return None
    return replace(context, default_remote_write=kept)


def read_operator_file(file: Path) -> RenderContext:
    """Read the operator's configuration file, which the chart writes. The owner is empty.

    Raises UsageError with one line that names the file and each wrong key.
    """
    content = read_yaml(file) or {}
    problems = [UsageError(str(problem)) for problem in section(RenderContext).check(content, str(file))]
    raise_errors(problems, f"{file}.")
    return RenderContext(**section_values(RenderContext, content))


@dataclass(frozen=True, slots=True)
class OperatorIdentity:
    """The API server, the operator's own namespace, and its identity in the Lease."""

    access: ApiServerAccess
    namespace: str
    holder_identity: str
