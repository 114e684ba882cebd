"""The parts of a node joined: source, workloads, ledger, dialects, pages, routes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from os import environ
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuledger import __version__
from gpuledger.dialects.catalogue import dialects, known
from gpuledger.dialects.settings import DialectSettings
from gpuledger.host.clock import SystemClock
from gpuledger.host.pci import PciBus
from gpuledger.host.procfs import ProcFs
from gpuledger.host.settings import HostSettings
from gpuledger.host.users import PasswdUsers
from gpuledger.ledger.ledger import Ledger
from gpuledger.ledger.settings import LedgerSettings, StoreSettings
from gpuledger.ledger.store.open import open_store
from gpuledger.ledger.store.store import Store
from gpuledger.model.errors import UsageError
from gpuledger.model.page import Dialect, Page
from gpuledger.model.settings import build
from gpuledger.model.snapshot import Snapshot
from gpuledger.model.source import Clock, Source
from gpuledger.node.loop import Node
from gpuledger.node.settings import NodeSettings
from gpuledger.outputs.addresses import Address
from gpuledger.outputs.health import health_routes
from gpuledger.outputs.pages import PageStore
from gpuledger.outputs.routes import Routes
from gpuledger.outputs.settings import HttpSettings
from gpuledger.sources.open import open_source
from gpuledger.sources.settings import SourceSettings
from gpuledger.sources.smi.settings import SmiSettings
from gpuledger.web.landing import Links, landing
from gpuledger.web.settings import WebSettings
from gpuledger.workloads.containers.settings import ContainerSettings
from gpuledger.workloads.job_map.settings import JobMapSettings
from gpuledger.workloads.knowledge import Maps
from gpuledger.workloads.naming import Workloads
from gpuledger.workloads.open import Machine, MapSettings, open_maps
from gpuledger.workloads.pod_resources.settings import PodResourcesSettings
from gpuledger.workloads.pods.settings import KubernetesSettings
from gpuledger.workloads.slurm.settings import SlurmSettings

if TYPE_CHECKING:
    from gpuledger.outputs.web_config.web import Web


@dataclass(frozen=True, slots=True)
class Parts:
    """A node that has not begun to tick, its books, and the pages that it will publish."""

    clock: Clock
    source: Source
    node: Node
    pages: PageStore
    store: Store | None
    maps: Maps

    def start(self) -> None:
        """Begin to look: who owns what, then who runs."""
        self.maps.start()
        self.node.start()

    def stop(self) -> None:
        """End the node and the maps, then close the books."""
        self.node.stop()
        self.maps.stop()
        if self.store is not None:
            self.store.close()


@dataclass(frozen=True, slots=True)
class Assembly:
    """A node that has not begun to tick, and what its HTTP server answers."""

    parts: Parts
    listeners: tuple[tuple[Address, Routes], ...]
    web: Web | None = None


def map_settings(values: Mapping[str, Any]) -> MapSettings:
    """What is set about maps of owners."""
    return MapSettings(
        build(KubernetesSettings, values),
        build(PodResourcesSettings, values),
        build(SlurmSettings, values),
        build(JobMapSettings, values),
        build(ContainerSettings, values),
        build(DialectSettings, values).node_name,
    )


def vocabularies(values: Mapping[str, Any]) -> dict[str, Dialect]:
    """Every dialect by name, under the user's settings."""
    return dialects(build(DialectSettings, values), __version__)


def assemble_parts(
    values: Mapping[str, Any],
    every: Mapping[str, Dialect],
    listed: Iterable[str],
    published: Callable[[], None] = lambda: None,
    *,
    keeps_books: bool = True,
) -> Parts:
    """Source, workloads, ledger and dialects joined; `listed` are the dialects that somebody reads.

    `published` is called after each new Page, from the node's own threads. Raises UsageError for a source,
    scenario or dialect that is not there, GpuledgerError for books that another program has open or a newer
    version made. The driver is not touched before the first tick; the books are the last to be opened.
    """
    clock = SystemClock()
    host_settings = build(HostSettings, values)
    users = PasswdUsers(host_settings.passwd)
    if not Path(host_settings.procfs, "stat").exists():
        raise UsageError(f"--procfs: {host_settings.procfs} is no proc filesystem: it has no file 'stat'")
    host = ProcFs(host_settings.procfs, pids=host_settings.pids, users=users)
    pci = PciBus(host_settings.sysfs)
    source = open_source(build(SourceSettings, values), build(SmiSettings, values), host, clock, pci)
    # Of a machine that is made up, recorded or far away this one's owners know nothing.
    local = source.info.name == "nvml" or (source.info.name == "smi" and not source.info.detail)
    machine = Machine(host_settings.procfs, host_settings.sysfs, users.name)
    maps = open_maps(map_settings(values), machine, environ, clock) if local else Maps()
    pages = PageStore(every, clock, Page(unix=clock.unix(), source=source.info), listed)
    store = None
    if keeps_books:
        store = open_store(build(StoreSettings, values), source.info, host.boot_id, clock, environ)

    def publish(page: Page) -> None:
        pages.publish(page)
        published()

    ledger = Ledger(build(LedgerSettings, values), store)
    node = Node(
        source,
        name=Workloads(users.name, maps if len(maps) else None).name,
        post=ledger.post,
        publish=publish,
        wanted=lambda: pages.wants() | ledger.wants,
        clock=clock,
        interval=build(NodeSettings, values).interval,
        maps=maps.health,
    )
    return Parts(clock, source, node, pages, store, maps)


def read_once(values: Mapping[str, Any]) -> Snapshot | None:
    """One tick of these settings, its processes named; None when there are no readings.

    Raises as `assemble_parts` does.
    """
    parts = assemble_parts(values, {}, (), keeps_books=False)
    parts.maps.read_once()
    try:
        return parts.node.tick().snapshot
    finally:
        parts.stop()


def assemble_node(values: Mapping[str, Any]) -> Assembly:
    """Everything of a serving node out of parsed values by key (`config.assemble`).

    Raises as `assemble_parts` does, and UsageError for a web config that cannot be used.
    """
    every = vocabularies(values)
    http = build(HttpSettings, values)
    web = _open_web(http.web_config) if http.web_config else None
    default = known(build(DialectSettings, values).dialect, every)
    listed = [
        (listen.address, known(listen.dialects, every) if listen.dialects else default)
        for listen in http.listen_address
    ]
    parts = assemble_parts(values, every, {name for _, names in listed for name in names})
    pages = parts.pages
    common = health_routes(lambda: pages.page)
    if build(WebSettings, values).page == "landing":
        common["/"] = landing(lambda: pages.page, Links(http.metrics_path, tuple(every)), parts.clock)
    listeners = tuple(
        (address, Routes({**common, **pages.routes(http.metrics_path, names)})) for address, names in listed
    )
    return Assembly(parts, listeners, web)


def _open_web(file: str) -> Web:
    # Who has no web config does not pay for it.
    from gpuledger.outputs.web_config.web import Web

    return Web(Path(file), SystemClock())
