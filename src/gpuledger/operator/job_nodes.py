"""The names of the nodes for the Jobs of mode cronjob, by the labels by which a DaemonSet finds them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from gpuledger.kubernetes.fields import mapping_at
from gpuledger.kubernetes.object_client import Json, ObjectClient, WriteRefused
from gpuledger.model.errors import GpuledgerError
from gpuledger.operator.kinds import NODE_KIND
from gpuledger.operator.object_lists import list_objects
from gpuledger.operator.render.exporter import GPU_NODE_LABELS, node_selector_of
from gpuledger.operator.spec import ExporterSpec

log = logging.getLogger("gpuledger.operator")

# More nodes than a CronJob may have: a node has some 15 KB.
_MOST_NODES: Final = 101


def node_queries(exporter: ExporterSpec) -> Iterator[str]:
    """The label selectors of the nodes for Jobs: a node has a pod if one of them matches.

    None if the nodes are named, or if there is an affinity, which only the scheduler evaluates.
    """
    if exporter.mode != "cronjob" or exporter.cron_job.nodes or exporter.affinity:
        return
    fixed = [f"{name}={value}" for name, value in sorted(node_selector_of(exporter).items())]
    if exporter.node_selector or exporter.simulated:
        yield ",".join(fixed)
        return
    for name, values in GPU_NODE_LABELS.items():
        yield ",".join([*fixed, f"{name} in ({','.join(values)})" if values else name])


@dataclass(eq=False, slots=True)
class JobNodes:
    """The names of nodes by label selector. Selectors that rendering needs are listed by `look_up`."""

    api: ObjectClient
    # None: the operator may not list nodes.
    _names: dict[str, tuple[str, ...] | None] = field(default_factory=dict, init=False)
    _missing: set[str] = field(default_factory=set, init=False)

    def names(self, exporter: ExporterSpec) -> tuple[str, ...] | None:
        """The names (labels kubernetes.io/hostname) of the nodes for Jobs; None if they are not known.

        Rendering calls it in a thread. Then `look_up` says whether selectors were missing.
        """
        queries = [*node_queries(exporter)]
        self._missing.update(query for query in queries if query not in self._names)
        found = [self._names.get(query) for query in queries]
        known = [names for names in found if names is not None]
        if not queries or len(known) < len(found):
            return None
        return tuple(sorted({name for names in known for name in names}))

    async def look_up(self) -> bool:
        """List the nodes of missing selectors; True if there were any.

        Raises what ObjectClient.get raises.
        """
        missing, self._missing = self._missing, set()
        for query in sorted(missing):
            self._names[query] = await self._list(query)
        return bool(missing)

    async def refresh(self, exporters: Iterable[ExporterSpec]) -> bool:
        """List the known nodes of these exporters again, and forget others; True if they changed.

        What cannot be listed now is kept.
        """
        needed = {query for exporter in exporters for query in node_queries(exporter)}
        before = {query: names for query, names in self._names.items() if query in needed}
        self._names = dict(before)
        for query in before:
            try:
                self._names[query] = await self._list(query)
            except GpuledgerError as error:
                log.warning("could not list GPU nodes: %s", error)
                break
        return self._names != before

    async def _list(self, query: str) -> tuple[str, ...] | None:
        selector = {"labelSelector": query} if query else {}
        try:
            nodes, _ = await list_objects(self.api, NODE_KIND, limit=str(_MOST_NODES), **selector)
        except WriteRefused as error:
            if not error.is_permission_denied:
                raise
            log.warning("GPU nodes for CronJobs are not known: %s", error)
            return None
        return tuple(sorted(map(_host_name, nodes)))


def _host_name(node: Json) -> str:
    metadata = mapping_at(node, "metadata")
    return str(mapping_at(metadata, "labels").get("kubernetes.io/hostname") or metadata["name"])
