"""Lists of nodes from schedulers: the GPU nodes of a Slurm cluster, and pods of a Kubernetes cluster."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from gpuledger.fleet.lists.node_list import (
    LONGEST_LIST,
    AddressDefaults,
    UnreadableList,
    require_few_nodes,
)
from gpuledger.fleet.node_address import NodeAddress
from gpuledger.kubernetes.access import ApiServerAccess
from gpuledger.kubernetes.object_client import ApiRequest, ApiTransport, HttpApiTransport
from gpuledger.model.errors import GpuledgerError, UsageError
from gpuledger.model.text import join_host_port, to_short_line

# Without a heading: name, address and generic resources; one line for each node and partition.
_SINFO: Final = ("sinfo", "-h", "-N", "-o", "%N|%o|%G")
_PAGE: Final = "500"
_MOST_PAGES: Final = 100
# Seconds for the end of a killed command.
_KILL_SECONDS: Final = 1.0


class SlurmNodes:
    """The nodes of this Slurm cluster that have GPUs, whatever their state."""

    name = "Slurm (sinfo)"

    def __init__(self, defaults: AddressDefaults, command: Sequence[str] = _SINFO) -> None:
        self._defaults, self._command = defaults, command

    async def read_nodes(self) -> Sequence[NodeAddress]:
        """See NodeList."""
        try:
            running = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
        except OSError as error:
            raise UnreadableList(
                f"--slurm: cannot run {self._command[0]} ({error.strerror}): install Slurm's commands here, "
                "or list the nodes in a file"
            ) from None
        assert running.stdout is not None and running.stderr is not None
        streams = (running.stdout, running.stderr)
        reads = [asyncio.create_task(_read_output(stream, self._command[0])) for stream in streams]
        try:
            # The first that is too long ends both: the command waits for its reader.
            output, errors = await asyncio.gather(*reads)
            await running.wait()
        finally:
            if running.returncode is None:
                running.kill()
                for read in reads:
                    read.cancel()
                await asyncio.wait(reads)
                # Without reading the rest, asyncio would wait for ever for the end of the pipes.
                with suppress(TimeoutError):
                    async with asyncio.timeout(_KILL_SECONDS):
                        await asyncio.gather(*map(_discard, streams))
                        await running.wait()
        if running.returncode:
            why = to_short_line(errors.decode("utf-8", "replace")) or f"status {running.returncode}"
            raise UnreadableList(f"--slurm: {self._command[0]} failed: {why}")
        return parse_sinfo(output.decode("utf-8", "replace"), self._defaults)


async def _discard(stream: asyncio.StreamReader) -> None:
    while await stream.read(1 << 16):
        pass


async def _read_output(stream: asyncio.StreamReader, command: str) -> bytes:
    """What a command writes. Raises UnreadableList if that is longer than a list can be."""
    found = bytearray()
    while data := await stream.read(1 << 16):
        found += data
        if len(found) > LONGEST_LIST:
            raise UnreadableList(
                f"--slurm: {command} writes more than {LONGEST_LIST >> 20} MiB: list the nodes in a file"
            )
    return bytes(found)


def parse_sinfo(text: str, defaults: AddressDefaults) -> list[NodeAddress]:
    """The GPU nodes in the output of sinfo. Raises UsageError for an address that is none."""
    found: dict[str, NodeAddress] = {}
    for line in text.splitlines():
        name, _, rest = line.strip().partition("|")
        place, _, resources = rest.partition("|")
        # Several kinds are joined by commas: gpu:h100:8(S:0-1),shard:32.
        has_gpus = any(one.strip().partition(":")[0] == "gpu" for one in resources.split(","))
        if name and has_gpus:
            host = place.strip() or name
            written = join_host_port(host, defaults.port)
            found[name] = defaults.parse_address(written, "--slurm", name)
    return require_few_nodes(list(found.values()), "--slurm")


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
        query = {"labelSelector": self._labels, "limit": _PAGE}
        for _ in range(_MOST_PAGES):
            page = await self._read_page(query)
            try:
                pods = page.get("items") or ()
                found += [address for pod in pods for address in self._addresses(pod)]
                following = (page.get("metadata") or {}).get("continue")
            except (AttributeError, TypeError):
                raise UnreadableList(f"{self.name} cannot be listed: the answer is no list of pods") from None
            require_few_nodes(found, self.name)
            if not following:
                return found
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
