"""Assemble a node from its settings: source, owner indexes, ledger, dialects, metrics pages, HTTP routes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from math import ceil
from os import environ
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuledger import __version__
from gpuledger.app.control_socket import open_control_socket
from gpuledger.app.control_thread import ControlThread
from gpuledger.app.ledger_requests import LedgerRequests
from gpuledger.app.readers import Readers
from gpuledger.app.user_services import (
    free_handler,
    offers_devices,
    open_availability_board,
    open_readers,
    socket_mode,
)
from gpuledger.config.access import OWN, AccessSettings
from gpuledger.config.collectors import dcgm_settings, read_collectors
from gpuledger.config.node import configured_node_name
from gpuledger.dialects.catalogue import check_dialect_names, create_dialects
from gpuledger.dialects.settings import (
    AmdDialectSettings,
    DialectSettings,
    EnergyDialectSettings,
    SmiDialectSettings,
)
from gpuledger.host.clock import SystemClock, seconds_suspended
from gpuledger.host.owner_index import PolledIndex
from gpuledger.host.pci import PciBus
from gpuledger.host.procfs import ProcFs
from gpuledger.host.settings import HostSettings, TimeZoneSettings, configured_time_zone
from gpuledger.host.users import PasswdUsers, open_users
from gpuledger.http.addresses import Address
from gpuledger.http.hosts import HostNameSettings, allowed_hosts
from gpuledger.http.limits import HttpLimits
from gpuledger.http.routes import Handler, Routes
from gpuledger.http.settings import HttpSettings
from gpuledger.kubernetes.settings import PodEventSettings
from gpuledger.ledger.device_conditions import CONDITION_QUANTITIES
from gpuledger.ledger.ledger import Ledger
from gpuledger.ledger.report.receipt.settings import AdviceSettings
from gpuledger.ledger.report.settings import Prices, TeamSettings
from gpuledger.ledger.settings import LedgerSettings, StoreSettings
from gpuledger.ledger.store.store_factory import open_store
from gpuledger.model.errors import GpuledgerError, SourceUnavailable, UsageError
from gpuledger.model.node_state import Dialect, IndexHealth, NodeState
from gpuledger.model.quantities import Quantity
from gpuledger.model.session import LedgerState
from gpuledger.model.settings import build_settings
from gpuledger.model.snapshot import Snapshot, SourceInfo
from gpuledger.model.source import Clock, Source
from gpuledger.node.device_log import GpuCountLog, InstanceLog, OmittedProcessLog
from gpuledger.node.loop import Namer, Node
from gpuledger.node.settings import ControlSettings, GpuCountSettings, NodeSettings
from gpuledger.outputs.metrics_pages import MetricsPages
from gpuledger.outputs.responses import health_routes
from gpuledger.sources.dcgm_exporter.settings import DcgmExporterSourceSettings
from gpuledger.sources.settings import SourceSettings
from gpuledger.sources.smi.settings import SmiSettings
from gpuledger.sources.source_factory import open_source
from gpuledger.web.api.api import Api, ApiOptions
from gpuledger.web.api.ledger_access import LedgerAccess
from gpuledger.web.api.recent import STEP_SECONDS
from gpuledger.web.api.shown_quantities import SNAPSHOT_QUANTITIES as SNAPSHOT_WANTS
from gpuledger.web.routes import (
    API_PREFIX,
    RECEIPT_PREFIX,
    api_handler,
    disabled_api_handler,
    page_handlers,
    plain_page_handler,
    receipt_handler,
)
from gpuledger.web.settings import Links, WebSettings
from gpuledger.workloads.cgroup_usage import CgroupUsageReader
from gpuledger.workloads.memory_fractions import OWNER_QUANTITIES
from gpuledger.workloads.owner_index_setup import open_owner_indexes
from gpuledger.workloads.owner_indexes import OwnerIndexes
from gpuledger.workloads.owner_lookup import OwnerLookup
from gpuledger.workloads.slurm.settings import SlurmSettings

if TYPE_CHECKING:
    from gpuledger.ledger.store.history import History
    from gpuledger.ledger.store.store import Store
    from gpuledger.model.checks import Finding
    from gpuledger.sources.dcgm_exporter.profiling import ProfilingValues


log = logging.getLogger("gpuledger.dcgm")

# Seconds that a command waits for a reading. Without persistence mode a driver takes seconds per GPU to
# initialize; a hung driver never answers.
READING_TIMEOUT = 30.0
# nvidia-smi is killed at its own limit (`--nvidia-smi-timeout`), and a reading calls it up to four times.
COMMAND_READING_TIMEOUT = 120.0


@dataclass(frozen=True)
class HostContext:
    """Access to the machine under the settings; unchanged while the program runs."""

    clock: Clock
    procfs: ProcFs
    pci: PciBus
    users: PasswdUsers

    @classmethod
    def from_values(cls, values: Mapping[str, Any], clock: Clock | None = None) -> HostContext:
        """`clock` replaces the machine's.

        Raises UsageError when the configured procfs is not a proc filesystem.
        """
        settings = build_settings(HostSettings, values)
        if not Path(settings.procfs, "stat").exists():
            raise UsageError(f"--procfs: {settings.procfs} is not a proc filesystem: it has no file 'stat'")
        users = open_users(settings, values, environ)
        procfs = ProcFs(settings.procfs, pids=settings.pids, users=users)
        return cls(clock or SystemClock(), procfs, PciBus(settings.sysfs, procfs=settings.procfs), users)

    def open_source(self, settings: SourceSettings, smi: SmiSettings) -> Source:
        """Open the Source of these settings; raises UsageError for one that does not exist."""
        return open_source(settings, smi, self.procfs, self.clock, self.pci)

    def open_owner_indexes(self, values: Mapping[str, Any], source: Source) -> OwnerIndexes:
        """Open the owner indexes; empty for simulated, recorded and remote sources, which have other pids."""
        if not source.has_local_pids:
            return OwnerIndexes()
        node = configured_node_name(values, environ)
        return open_owner_indexes(values, node, environ, self.clock, self.users)

    def namer(self, owner_indexes: OwnerIndexes) -> Namer:
        """The function that assigns owners to a Snapshot from these owner indexes."""
        directory = owner_indexes if len(owner_indexes) else None
        return OwnerLookup(self.users.name, directory, lambda: self.users.changes).assign_owners


@dataclass(slots=True)
class NodeParts:
    """A node that has not started to tick, its ledger, and the metrics pages that it will publish.

    A reload replaces source, owner indexes, pages, values and readers: read these fields on each use.
    """

    host_context: HostContext
    source: Source
    node: Node
    pages: MetricsPages
    ledger: Ledger
    store: Store | None
    owner_indexes: OwnerIndexes
    control: ControlThread
    values: Mapping[str, Any]
    readers: Readers
    ledger_access: LedgerAccess
    ledger_requests: LedgerRequests
    profiling: PolledIndex[ProfilingValues] | None = None
    api: Api | None = None
    pod_events: PolledIndex[tuple[str, ...]] | None = None

    @property
    def clock(self) -> Clock:
        """The node's clock."""
        return self.host_context.clock

    def index_health(self) -> tuple[IndexHealth, ...]:
        """Health of the current owner indexes and of the profiling poller."""
        others = (self.profiling, self.pod_events)
        return (*self.owner_indexes.health(), *[one.health for one in others if one is not None])

    def start(self) -> None:
        """Start the owner indexes, then the ticks."""
        self.owner_indexes.start()
        if self.profiling is not None:
            self.profiling.start()
        if self.pod_events is not None:
            self.pod_events.start()
        self.node.start()
        self.control.start()

    def stop(self) -> None:
        """Stop the node and the owner indexes, then close the ledger."""
        self.control.stop()
        self.node.stop()
        self.owner_indexes.stop()
        if self.profiling is not None:
            self.profiling.stop()
        if self.pod_events is not None:
            self.pod_events.stop()
        if self.store is not None:
            self.store.close()


Listeners = tuple[tuple[Address, Routes], ...]


@dataclass(frozen=True)
class AssembledNode:
    """A node that has not started to tick, and the routes of its HTTP server."""

    parts: NodeParts
    listeners: Listeners


def build_dialects(values: Mapping[str, Any]) -> dict[str, Dialect]:
    """Every dialect by name, with the user's settings.

    Raises UsageError for a collectors file without a supported field, or an invalid date of a price.
    """
    settings, dcgm = build_settings(DialectSettings, values), dcgm_settings(values)
    # Of a file the user learns at once what is wrong with it.
    collectors = read_collectors(dcgm.collectors, dcgm.schema) if dcgm.collectors else None
    for warning in () if collectors is None else collectors.warnings:
        log.warning("%s", warning)
    node = configured_node_name(values, environ)

    def create_dcgm() -> Dialect:
        from gpuledger.dialects.dcgm.collectors import DEFAULT_COLLECTORS
        from gpuledger.dialects.dcgm.dialect import DcgmDialect

        return DcgmDialect(dcgm, collectors or DEFAULT_COLLECTORS, node)

    smi = build_settings(SmiDialectSettings, values)
    price = None
    if build_settings(Prices, values) != Prices():
        # Imported lazily, as the dialects: most nodes have no prices.
        from gpuledger.app.exported_prices import exported_prices

        price = exported_prices(values, node)
    energy = build_settings(EnergyDialectSettings, values)
    amd = build_settings(AmdDialectSettings, values)
    return create_dialects(settings, __version__, create_dcgm, smi, price, energy, amd, node)


def assemble_parts(
    values: Mapping[str, Any],
    available: Mapping[str, Dialect],
    served: Iterable[str],
    on_publish: Callable[[], None] = lambda: None,
    *,
    extra_quantities: frozenset[Quantity] = frozenset(),
    keep_ledger: bool = True,
    judges_availability: bool = False,
    clock: Clock | None = None,
) -> NodeParts:
    """Join source, workloads, ledger and dialects.

    `served` are the dialects that some page exports, `extra_quantities` those that other consumers need.
    With `judges_availability`, each NodeState says which Devices can be taken. `clock` replaces the
    machine's. `on_publish` is called after each new NodeState, from the node's threads.
    Raises UsageError for an unknown source, scenario or dialect, GpuledgerError for a ledger that another
    program has open or that a newer version wrote. The driver is not used before the first tick; the ledger
    is opened last.
    """
    host = HostContext.from_values(values, clock)
    clock = host.clock
    source = host.open_source(build_settings(SourceSettings, values), build_settings(SmiSettings, values))
    owner_indexes = host.open_owner_indexes(values, source)
    exporter = build_settings(DcgmExporterSourceSettings, values)
    profiling = open_profiling_index(exporter, clock) if exporter.url else None
    pages = MetricsPages(
        available, clock, NodeState(unix=clock.unix(), source=source.info), served, extra_quantities
    )
    store = control_socket = None
    if keep_ledger:
        store = open_store(
            build_settings(StoreSettings, values),
            source.info,
            host.procfs.boot_id,
            clock,
            environ,
            zone=configured_time_zone(values),
            node=configured_node_name(values, environ),
        )
        folder = None if store is None else store.file.parent
        try:
            control_socket = open_control_socket(
                build_settings(ControlSettings, values),
                source.info,
                folder,
                environ,
                mode=socket_mode(values),
            )
        except GpuledgerError:
            if store is not None:
                store.close()
            raise

    board = None
    if judges_availability:
        board = open_availability_board(host.procfs, host.users.name, store, clock)
    gpu_count_log = GpuCountLog(build_settings(GpuCountSettings, values).expected)
    instance_log = InstanceLog()
    omitted_log = OmittedProcessLog()

    def publish(state: NodeState) -> None:
        gpu_count_log.update(state.snapshot)
        instance_log.update(state.snapshot)
        omitted_log.update(state.ledger)
        # After booking: metrics of another program are late and must not enter the ledger.
        if profiling is not None:
            from gpuledger.sources.dcgm_exporter.profiling import add_profiling

            state = add_profiling(state, profiling.value, profiling.health, exporter.period)
        if board is not None:
            state = board.update(state)
        parts.pages.publish(state)
        on_publish()

    ledger = Ledger(
        build_settings(LedgerSettings, values),
        store,
        build_settings(Prices, values).basis,
        lambda: parts.pages.clients.longest_hold(),  # noqa: PLW0108  (parts is bound later)
    )
    cgroups = CgroupUsageReader(
        build_settings(SlurmSettings, values).root(build_settings(HostSettings, values).sysfs)
    )

    def post(snapshot: Snapshot) -> LedgerState:
        # Cgroups of simulated, recorded and remote processes are not those of this machine.
        is_stored = store is not None and parts.source.has_local_pids
        return ledger.post(cgroups.add(snapshot) if is_stored else snapshot)

    node = Node(
        source,
        name=host.namer(owner_indexes),
        post=post,
        publish=publish,
        required_quantities=lambda: (
            parts.pages.required_quantities() | ledger.required_quantities | OWNER_QUANTITIES
        ),
        clock=clock,
        # The clock of a simulated source is not that of this machine.
        suspended=(lambda: None) if source.info.simulated else seconds_suspended,
        interval=build_settings(NodeSettings, values).interval,
        speed=_source_speed(values, source.info),
        owner_indexes=lambda: parts.index_health(),  # noqa: PLW0108  (parts is bound later)
        on_pause=ledger.interrupt,
        pausable=control_socket is not None,
    )
    control = ControlThread(node, control_socket, lambda peer: parts.readers.controls(peer))  # noqa: PLW0108  (parts is bound later)
    ledger_access = _ledger_access(store, clock, source.info)
    ledger_requests = LedgerRequests(
        lambda: parts.values, lambda: parts.pages.state, ledger_access, lambda: parts.readers, environ
    )
    control.add_requests(ledger_requests.handlers)
    if board is not None:
        free = free_handler(board, lambda: parts.pages.state, lambda: parts.readers, host.procfs, values)
        control.add_requests({"free": free})
    parts = NodeParts(
        host,
        source,
        node,
        pages,
        ledger,
        store,
        owner_indexes,
        control,
        values,
        open_readers(values),
        ledger_access,
        ledger_requests,
        profiling,
    )
    return parts


def _ledger_access(store: Store | None, clock: Clock, source: SourceInfo) -> LedgerAccess:
    def open_history() -> History:
        from gpuledger.ledger.store.history import History

        assert store is not None
        return History(store.file)

    return LedgerAccess(clock, None if store is None else open_history, source.simulated)


def open_profiling_index(settings: DcgmExporterSourceSettings, clock: Clock) -> PolledIndex[ProfilingValues]:
    """The last profiling metrics of the configured dcgm-exporter, polled in a thread; not started."""
    from gpuledger.sources.dcgm_exporter.profiling import fetch_profiling_values

    nothing: ProfilingValues = {}
    read = partial(fetch_profiling_values, settings.url)
    return PolledIndex("dcgm_exporter", read, nothing, period=settings.period, clock=clock)


def no_reading_error(source: SourceInfo, seconds: float) -> SourceUnavailable:
    """The error for a source that returned no reading within `seconds`."""
    return SourceUnavailable(
        f"no reading for {seconds:g} s: {source.name} does not answer (look for Xid errors in dmesg; a hung"
        " driver needs a reboot)"
    )


def read_snapshot(
    values: Mapping[str, Any], extra_quantities: frozenset[Quantity] = frozenset()
) -> Snapshot | None:
    """The Snapshot of one tick, with owners and these quantities; None when there are no readings.

    Raises as `assemble_parts` does.
    """
    parts = assemble_parts(values, {}, (), extra_quantities=extra_quantities, keep_ledger=False)
    parts.owner_indexes.read_once()
    try:
        return parts.node.tick().snapshot
    finally:
        parts.stop()


def assemble_node(values: Mapping[str, Any], clock: Clock | None = None) -> AssembledNode:
    """Assemble a serving node from parsed values by key (`config.load`); `clock` replaces the machine's.

    Raises as `assemble_parts` does.
    """
    available = build_dialects(values)

    def on_publish() -> None:
        api.publish(parts.pages.state)

    served = default_page_dialects(values, available)
    wanted = web_quantities(values)
    parts = assemble_parts(
        values,
        available,
        served,
        on_publish,
        extra_quantities=wanted,
        judges_availability=offers_devices(values),
        clock=clock,
    )
    api = parts.api = _build_api(parts, values)
    if build_settings(PodEventSettings, values).enabled:
        # Imported lazily: few nodes post Events.
        from gpuledger.app.pod_events import open_pod_events

        store = parts.store
        parts.pod_events = open_pod_events(
            values,
            environ,
            None if store is None or not store.on_disk else store.file,
            lambda: parts.pages.state.snapshot,
            lambda: parts.owner_indexes.known_pods(),  # noqa: PLW0108  (a reload replaces the indexes)
            parts.clock,
        )
    return AssembledNode(parts, build_listeners(values, available, parts.pages, parts))


def default_page_dialects(values: Mapping[str, Any], available: Mapping[str, Dialect]) -> frozenset[str]:
    """The dialects that some metrics page exports by default.

    Raises UsageError for an unknown one.
    """
    return frozenset(name for _, names in _dialects_by_address(values, available) for name in names)


def web_quantities(values: Mapping[str, Any]) -> frozenset[Quantity]:
    """The quantities that page, API and `gpuledger free` need, whichever dialects are exported."""
    shown = SNAPSHOT_WANTS if build_settings(WebSettings, values).page == "full" else frozenset()
    return shown | CONDITION_QUANTITIES if offers_devices(values) else shown


def build_listeners(
    values: Mapping[str, Any], available: Mapping[str, Dialect], pages: MetricsPages, parts: NodeParts
) -> Listeners:
    """The routes of each listen address: metrics from `pages`, the rest from the NodeState of `parts`.

    Raises UsageError for dialects that are unknown or that cannot share a page.
    """
    http = build_settings(HttpSettings, values)
    common = health_routes(lambda: parts.pages.state)
    shown = build_settings(WebSettings, values).page
    links = Links(http.metrics_path, tuple(available))
    below = {API_PREFIX: disabled_api_handler(shown)}
    if shown == "landing":
        common["/"] = plain_page_handler(lambda: parts.pages.state, links, parts.clock)
    elif shown == "full" and parts.api is not None:
        exact, files = page_handlers(lambda: parts.pages.state, links, parts.clock)
        common |= exact
        options = _api_options(values, parts)
        below = {
            **files,
            API_PREFIX: api_handler(parts.api, options),
            RECEIPT_PREFIX: receipt_handler(parts.api, options),
        }
    hosts = build_settings(HostNameSettings, values).names
    guard: Callable[[Mapping[str, Handler]], Mapping[str, Handler]] = dict
    if build_settings(AccessSettings, values).mode == OWN:
        from gpuledger.app.http_access import guard_routes

        guard = partial(guard_routes, readers=open_readers(values))
    try:
        return tuple(
            (
                address,
                Routes(
                    guard({**common, **pages.routes(http.metrics_path, names)}),
                    guard(below),
                    allowed_hosts(hosts, address),
                ),
            )
            for address, names in _dialects_by_address(values, available)
        )
    except ValueError as error:
        raise UsageError(f"--dialect: {error}") from None


def _dialects_by_address(
    values: Mapping[str, Any], available: Mapping[str, Dialect]
) -> list[tuple[Address, tuple[str, ...]]]:
    default = check_dialect_names(build_settings(DialectSettings, values).dialect, dict(available))
    return [
        (
            listen.address,
            check_dialect_names(listen.dialects, dict(available)) if listen.dialects else default,
        )
        for listen in build_settings(HttpSettings, values).listen_address
    ]


def _source_speed(values: Mapping[str, Any], source: SourceInfo) -> float:
    """Seconds on the source's clock in a second."""
    return build_settings(SourceSettings, values).speed if source.simulated else 1.0


def _build_api(parts: NodeParts, values: Mapping[str, Any]) -> Api:
    # Simulated time may run faster: a point of a chart never covers less than a tick.
    interval = build_settings(NodeSettings, values).interval
    tick_seconds = interval * _source_speed(values, parts.source.info)
    return Api(
        parts.pages.state,
        parts.ledger_access,
        parts.clock,
        STEP_SECONDS * max(1, ceil(tick_seconds / STEP_SECONDS)),
    )


def _api_options(values: Mapping[str, Any], parts: NodeParts) -> ApiOptions:
    source = parts.source.info

    def diagnose() -> list[Finding]:
        # Imported lazily: only health queries need the checks.
        from gpuledger.app.diagnosis import diagnose_serving

        return diagnose_serving(values, environ, simulated=source.simulated)

    node = configured_node_name(values, environ)
    return ApiOptions(
        node,
        build_settings(Prices, values),
        diagnose,
        build_settings(HttpLimits, values),
        build_settings(TeamSettings, values).teams,
        build_settings(TimeZoneSettings, values).timezone,
        build_settings(AdviceSettings, values),
        parts.ledger_requests.answer,
    )
