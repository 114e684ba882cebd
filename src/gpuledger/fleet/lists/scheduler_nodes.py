"""Lists of nodes from schedulers: the GPU nodes of a Slurm cluster, and pods of a Kubernetes cluster."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any, Final

from gpuledger.fleet.lists.node_list import (
    LONGEST_LIST,
    AddressDefaults,
    UnreadableList,
    require_valid_nodes,
)
from gpuledger.fleet.node_address import NodeAddress
from gpuledger.host.commands import CommandRunner
from gpuledger.kubernetes.access import ApiServerAccess
from gpuledger.kubernetes.object_client import ApiRequest, ApiTransport, HttpApiTransport
from gpuledger.model.errors import GpuledgerError, UsageError, collect_errors
from gpuledger.model.text import decode_utf8, join_host_port, to_short_line

# Without a heading: name, address and generic resources; one line for each node and partition.
_SINFO: Final = ("sinfo", "-h", "-N", "-o", "%N|%o|%G")
_PAGE: Final = "500"
_MOST_PAGES: Final = 100
# Seconds for the answer of sinfo.
_SECONDS: Final = 30.0


class SlurmNodes:
    """The nodes of this Slurm cluster that have GPUs, whatever their state."""

    name = "Slurm (sinfo)"

    def __init__(self, defaults: AddressDefaults, command: Sequence[str] = _SINFO) -> None:
        self._defaults, self._command = defaults, command
        self._run = CommandRunner(LONGEST_LIST)

    async def read_nodes(self) -> Sequence[NodeAddress]:
        """See NodeList."""
        done = await asyncio.to_thread(self._run, tuple(self._command), _SECONDS)
        command = self._command[0]
        if done.not_started:
            raise UnreadableList(
                f"--slurm: cannot run {command} ({to_short_line(done.detail)}): install Slurm's commands "
                "here, or list the nodes in a file"
            )
        if done.timed_out:
            raise UnreadableList(
                f"--slurm: {command} did not answer within {_SECONDS:g} s: check slurmctld (`scontrol ping`)"
            )
        if done.overran:
            raise UnreadableList(
                f"--slurm: {command} writes more than {LONGEST_LIST >> 20} MiB, or very many short lines: "
                "list the nodes in a file"
            )
        if done.exit_code:
            why = to_short_line(decode_utf8(done.stderr)) or f"status {done.exit_code}"
            raise UnreadableList(f"--slurm: {command} failed: {why}")
        return parse_sinfo(decode_utf8(done.stdout), self._defaults)


def parse_sinfo(text: str, defaults: AddressDefaults) -> list[NodeAddress]:
    """The GPU nodes in the output of sinfo. Raises InvalidEntries for addresses that are none."""
    found: dict[str, NodeAddress] = {}
    errors: dict[str, UsageError] = {}
    for line in text.splitlines():
        name, _, rest = line.strip().partition("|")
        place, _, resources = rest.partition("|")
        # Several kinds are joined by commas: gpu:h100:8(S:0-1),shard:32.
        has_gpus = any(one.strip().partition(":")[0] == "gpu" for one in resources.split(","))
        if name and has_gpus:
            host = place.strip() or name
            written = join_host_port(host, defaults.port)
            try:
                found[name] = defaults.parse_address(written, f"--slurm, node {to_short_line(name)}", name)
            except UsageError as error:
                errors[name] = error
    return require_valid_nodes(list(found.values()), list(errors.values()), "--slurm")


class PodNodes:
    """The running pods with some labels. `selector` is `[NAMESPACE/]LABELS`."""

    def __init__(
        self,
        selector: str,
        defaults: AddressDefaults,
        access: ApiServerAccess,
        transport: ApiTransport | None = None,
    ) -> None:
        # A label's name has a slash as well: a namespace has neither = nor !.
        namespace, slash, labels = selector.partition("/")
        if not slash or any(sign in namespace for sign in "=!.( ,"):
            namespace, labels = "", selector
        if not labels:
            raise UsageError("--kubernetes-pods: expected labels, as in app.kubernetes.io/name=gpuledger")
        self._path = f"/api/v1/namespaces/{namespace}/pods" if namespace else "/api/v1/pods"
        self._labels, self._defaults = labels, defaults
        self._transport = transport or HttpApiTransport(access)
        self.name = f"Kubernetes pods {selector}"

    async def read_nodes(self) -> Sequence[NodeAddress]:
        """See NodeList."""
        found: list[NodeAddress] = []
        errors: list[UsageError] = []
        query = {"labelSelector": self._labels, "limit": _PAGE}
        for _ in range(_MOST_PAGES):
            page = await self._read_page(query)
            try:
                pods = page.get("items") or ()
                for pod in pods:
                    with collect_errors(errors):
                        found += self._addresses(pod)
                following = (page.get("metadata") or {}).get("continue")
            except (AttributeError, TypeError):
                raise UnreadableList(f"{self.name} cannot be listed: the answer is no list of pods") from None
            require_valid_nodes(found, (), self.name)
            if not following:
                return require_valid_nodes(found, errors, self.name)
            query["continue"] = str(following)
        raise UnreadableList(f"{self.name} cannot be listed: the list has no end")

    async def _read_page(self, query: dict[str, str]) -> dict[str, Any]:
        try:
            status, body, *_ = await self._transport.send(ApiRequest("GET", self._path, dict(query)))
        except GpuledgerError as error:
            raise UnreadableList(f"{self.name} cannot be listed: {error}") from None
        try:
            page = json.loads(body)
        except (ValueError, RecursionError):
            page = None
        if status != 200 or not isinstance(page, dict):
            message = to_short_line(page.get("message", "")) if isinstance(page, dict) else ""
            needed = "; it needs a Role that may list pods" if status == 403 else ""
            raise UnreadableList(f"{self.name} cannot be listed ({status}): {message}{needed}")
        return page

    def _addresses(self, pod: Any) -> Sequence[NodeAddress]:
        status, spec = (pod.get(key) or {} for key in ("status", "spec"))
        host = status.get("podIP")
        if status.get("phase") != "Running" or not host:
            return ()
        written = join_host_port(str(host), self._defaults.port)
        return [self._defaults.parse_address(written, self.name, str(spec.get("nodeName") or ""))]
