"""The parts of a node joined: source, workloads, ledger, dialects, pages, routes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import ceil
from os import environ
from pathlib import Path
from socket import gethostname
from typing import TYPE_CHECKING, Any

from gpuledger import __version__
from gpuledger.app.control import Control
from gpuledger.app.control_socket import open_doorway
from gpuledger.app.profiling import Profiling, open_profiling
from gpuledger.config.dcgm import dcgm_settings, read_collectors
from gpuledger.config.node import owner_index_settings
from gpuledger.dialects.catalogue import dialects, known
from gpuledger.dialects.dcgm.dialect import DcgmDialect
from gpuledger.dialects.settings import DialectSettings, SmiDialectSettings
from gpuledger.host.clock import SystemClock
from gpuledger.host.pci import PciBus
from gpuledger.host.procfs import ProcFs
from gpuledger.host.settings import HostSettings
from gpuledger.host.users import PasswdUsers
from gpuledger.http.addresses import Address
from gpuledger.http.hosts import HostNames, allowed_hosts
from gpuledger.http.limits import Limits
from gpuledger.http.routes import Routes
from gpuledger.http.settings import HttpSettings
from gpuledger.kubernetes.settings import node_name
from gpuledger.ledger.ledger import Ledger
from gpuledger.ledger.report.settings import Prices
from gpuledger.ledger.settings import LedgerSettings, StoreSettings
from gpuledger.ledger.store.open import open_store
from gpuledger.ledger.store.store import Store
from gpuledger.model.checks import Finding
from gpuledger.model.errors import GpuledgerError, SourceUnavailable, UsageError
from gpuledger.model.node_state import Dialect, IndexHealth, NodeState
from gpuledger.model.quantities import Quantity
from gpuledger.model.settings import build
from gpuledger.model.snapshot import Snapshot, SourceInfo
from gpuledger.model.source import Clock, Source
from gpuledger.node.device_log import Census, InstanceLog
from gpuledger.node.loop import Namer, Node
from gpuledger.node.settings import CensusSettings, ControlSettings, NodeSettings
from gpuledger.outputs.metrics_pages import MetricsPages
from gpuledger.outputs.responses import health_routes
from gpuledger.sources.dcgm_exporter.settings import DcgmExporterSourceSettings
from gpuledger.sources.open import open_source
from gpuledger.sources.settings import SourceSettings
from gpuledger.sources.smi.settings import SmiSettings
from gpuledger.web.api.api import Api, Terms
from gpuledger.web.api.books import BooksAsRead
from gpuledger.web.api.recent import STEP
from gpuledger.web.api.snapshot import WANTS as SNAPSHOT_WANTS
from gpuledger.web.routes import PREFIX, landing, not_served, page_routes, served
from gpuledger.web.settings import Links, WebSettings
from gpuledger.workloads.naming import Workloads
from gpuledger.workloads.open import Machine, open_owner_indexes
from gpuledger.workloads.owner_indexes import OwnerIndexes

if TYPE_CHECKING:
    from gpuledger.http.web_config.web import Web
    from gpuledger.ledger.store.history import History


log = logging.getLogger("gpuledger.dcgm")

# Seconds that a command waits for a reading: a driver without persistence mode takes some per GPU to wake,
# and one that hangs takes for ever.
PATIENCE = 30.0


@dataclass(frozen=True, slots=True)
class Ground:
    """The machine as the settings show it: what stays while a program runs."""

    clock: Clock
    host: ProcFs
    pci: PciBus
    users: PasswdUsers
    machine: Machine

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Ground:
        """Raises UsageError when there is no procfs where the settings say."""
        settings = build(HostSettings, values)
        if not Path(settings.procfs, "stat").exists():
            raise UsageError(f"--procfs: {settings.procfs} is no proc filesystem: it has no file 'stat'")
        users = PasswdUsers(settings.passwd)
        return cls(
            SystemClock(),
            ProcFs(settings.procfs, pids=settings.pids, users=users),
            PciBus(settings.sysfs),
            users,
            Machine(settings.procfs, settings.sysfs, users.name),
        )

    def source(self, settings: SourceSettings, smi: SmiSettings) -> Source:
        """The Source of these settings; raises UsageError for one that is not there."""
        return open_source(settings, smi, self.host, self.clock, self.pci)

    def maps(self, values: Mapping[str, Any], source: SourceInfo) -> OwnerIndexes:
        """Who owns what; none of a machine that is made up, recorded or far away: this one knows nothing."""
        local = source.name == "nvml" or (source.name == "smi" and not source.detail)
        return (
            open_owner_indexes(owner_index_settings(values), self.machine, environ, self.clock)
            if local
            else OwnerIndexes()
        )

    def naming(self, maps: OwnerIndexes) -> Namer:
        """What names a Snapshot by these maps."""
        return Workloads(self.users.name, maps if len(maps) else None).name


@dataclass(slots=True)
class Parts:
    """A node that has not begun to tick, its books, and the pages that it will publish.

    Source, maps and pages may be others later: `pages` is to be asked for anew each time.
    """

    ground: Ground
    source: Source
    node: Node
    pages: MetricsPages
    ledger: Ledger
    store: Store | None
    maps: OwnerIndexes
    control: Control
    profiling: Profiling | None = None
    api: Api | None = None

    @property
    def clock(self) -> Clock:
        """The node's own."""
        return self.ground.clock

    def map_health(self) -> tuple[IndexHealth, ...]:
        """Of the present maps, and of whoever else is asked beside the tick."""
        other = () if self.profiling is None else (self.profiling.health,)
        return (*self.maps.health(), *other)

    def start(self) -> None:
        """Begin to look: who owns what, then who runs."""
        self.maps.start()
        if self.profiling is not None:
            self.profiling.start()
        self.node.start()
        self.control.start()

    def stop(self) -> None:
        """End the node and the maps, then close the books."""
        self.control.stop()
        self.node.stop()
        self.maps.stop()
        if self.profiling is not None:
            self.profiling.stop()
        if self.store is not None:
            self.store.close()


Listeners = tuple[tuple[Address, Routes], ...]


@dataclass(frozen=True, slots=True)
class Assembly:
    """A node that has not begun to tick, and what its HTTP server answers."""

    parts: Parts
    listeners: Listeners
    web: Web | None = None


def vocabularies(values: Mapping[str, Any]) -> dict[str, Dialect]:
    """Every dialect by name, under the user's settings.

    Raises UsageError for a collectors file of which nothing can be told.
    """
    settings, dcgm = build(DialectSettings, values), dcgm_settings(values)
    collectors = read_collectors(dcgm.collectors)
    for warning in collectors.warnings:
        log.warning("%s", warning)
    node = node_name(settings.node_name, environ, gethostname())
    smi = build(SmiDialectSettings, values)
    return dialects(settings, __version__, DcgmDialect(dcgm, collectors, node), smi)


def assemble_parts(
    values: Mapping[str, Any],
    every: Mapping[str, Dialect],
    listed: Iterable[str],
    published: Callable[[], None] = lambda: None,
    *,
    beside: frozenset[Quantity] = frozenset(),
    keeps_books: bool = True,
) -> Parts:
    """Source, workloads, ledger and dialects joined; `listed` are the dialects that somebody reads, `beside`
    the quantities that somebody else looks at.

    `published` is called after each new Page, from the node's own threads. Raises UsageError for a source,
    scenario or dialect that is not there, GpuledgerError for books that another program has open or a newer
    version made. The driver is not touched before the first tick; the books are the last to be opened.
    """
    ground = Ground.of(values)
    clock = ground.clock
    source = ground.source(build(SourceSettings, values), build(SmiSettings, values))
    maps = ground.maps(values, source.info)
    profiling = open_profiling(build(DcgmExporterSourceSettings, values), clock)
    pages = MetricsPages(every, clock, NodeState(unix=clock.unix(), source=source.info), listed, beside)
    store = doorway = None
    if keeps_books:
        store = open_store(build(StoreSettings, values), source.info, ground.host.boot_id, clock, environ)
        folder = None if store is None else store.file.parent
        try:
            doorway = open_doorway(build(ControlSettings, values), source.info, folder, environ)
        except GpuledgerError:
            if store is not None:
                store.close()
            raise

    census, instances = Census(build(CensusSettings, values).expected), InstanceLog()

    def publish(page: NodeState) -> None:
        census.take(page.snapshot)
        instances.take(page.snapshot)
        # After the books: what another program says is late, and not for them.
        parts.pages.publish(page if profiling is None else profiling.added_to(page))
        published()

    def health() -> tuple[IndexHealth, ...]:
        return parts.map_health()

    ledger = Ledger(build(LedgerSettings, values), store)
    node = Node(
        source,
        name=ground.naming(maps),
        post=ledger.post,
        publish=publish,
        wanted=lambda: parts.pages.wants() | ledger.wants,
        clock=clock,
        interval=build(NodeSettings, values).interval,
        maps=health,
        interrupted=ledger.interrupt,
        pausable=doorway is not None,
    )
    control = Control(node, doorway)
    parts = Parts(ground, source, node, pages, ledger, store, maps, control, profiling)
    return parts


def does_not_answer(source: SourceInfo, seconds: float) -> SourceUnavailable:
    """What is said of a source that gave no reading for so long."""
    return SourceUnavailable(
        f"no reading for {seconds:g} s: {source.name} does not answer (look for Xid errors in dmesg; a hung"
        " driver needs a reboot)"
    )


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
    http = build(HttpSettings, values)
    web = _open_web(http.web_config) if http.web_config else None
    every = vocabularies(values)

    def published() -> None:
        api.publish(parts.pages.page)

    listed = told_unasked(values, every)
    parts = assemble_parts(values, every, listed, published, beside=shown_beside(values))
    api = parts.api = _api_of(parts, values)
    return Assembly(parts, listeners_of(values, every, parts.pages, parts), web)


def told_unasked(values: Mapping[str, Any], every: Mapping[str, Dialect]) -> frozenset[str]:
    """The dialects that some metrics page tells without being asked for them by name.

    Raises UsageError for one that is not there.
    """
    return frozenset(name for _, names in _listed(values, every) for name in names)


def shown_beside(values: Mapping[str, Any]) -> frozenset[Quantity]:
    """What the page and its API show, whatever the dialects tell."""
    return SNAPSHOT_WANTS if build(WebSettings, values).page == "full" else frozenset()


def listeners_of(
    values: Mapping[str, Any], every: Mapping[str, Dialect], pages: MetricsPages, parts: Parts
) -> Listeners:
    """What is answered at each address: metrics from `pages`, all else of the Page that `parts` show.

    Raises UsageError for dialects that are not there or that cannot share a page.
    """
    http = build(HttpSettings, values)
    common = health_routes(lambda: parts.pages.page)
    shown = build(WebSettings, values).page
    links = Links(http.metrics_path, tuple(every))
    below = {PREFIX: not_served(shown)}
    if shown == "landing":
        common["/"] = landing(lambda: parts.pages.page, links, parts.clock)
    elif shown == "full" and parts.api is not None:
        exact, files = page_routes(lambda: parts.pages.page, links, parts.clock)
        common |= exact
        below = {**files, PREFIX: served(parts.api, _terms(values, parts.source.info))}
    hosts = build(HostNames, values).names
    try:
        return tuple(
            (
                address,
                Routes(
                    {**common, **pages.routes(http.metrics_path, names)}, below, allowed_hosts(hosts, address)
                ),
            )
            for address, names in _listed(values, every)
        )
    except ValueError as error:
        raise UsageError(f"--dialect: {error}") from None


def _listed(values: Mapping[str, Any], every: Mapping[str, Dialect]) -> list[tuple[Address, tuple[str, ...]]]:
    default = known(build(DialectSettings, values).dialect, dict(every))
    return [
        (listen.address, known(listen.dialects, dict(every)) if listen.dialects else default)
        for listen in build(HttpSettings, values).listen_address
    ]


def _api_of(parts: Parts, values: Mapping[str, Any]) -> Api:
    store = parts.store

    def books() -> History:
        from gpuledger.ledger.store.history import History

        assert store is not None
        return History(store.file)

    made_up = parts.source.info.simulated
    read = BooksAsRead(parts.clock, None if store is None else books, made_up)
    # Made-up time may go faster: a point is never of less than a tick.
    passes = build(NodeSettings, values).interval * (build(SourceSettings, values).speed if made_up else 1.0)
    return Api(parts.pages.page, read, parts.clock, STEP * max(1, ceil(passes / STEP)))


def _terms(values: Mapping[str, Any], source: SourceInfo) -> Terms:
    def diagnose() -> list[Finding]:
        # Whoever never asks how the node is does not pay for what finds it out.
        from gpuledger.app.diagnosis import diagnose_serving

        return diagnose_serving(values, environ, simulated=source.simulated)

    node = node_name(build(DialectSettings, values).node_name, environ, gethostname())
    return Terms(node, build(Prices, values), diagnose, build(Limits, values))


def _open_web(file: str) -> Web:
    # Who has no web config does not pay for it.
    from gpuledger.http.web_config.web import Web

    return Web(Path(file), SystemClock())
