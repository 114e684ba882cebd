"""Assembles a node from its settings: source, owner indexes, ledger, dialects and metrics pages."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from os import environ
from typing import TYPE_CHECKING, Any

from gpuledger import __version__
from gpuledger.app.control_socket import open_control_socket
from gpuledger.app.control_thread import ControlThread
from gpuledger.app.ledger_requests import LedgerRequests
from gpuledger.app.node_listeners import (
    Listeners,
    build_api,
    build_listeners,
    default_page_dialects,
    web_quantities,
)
from gpuledger.app.node_parts import HostContext, NodeParts, source_speed
from gpuledger.app.user_services import (
    free_handler,
    offers_devices,
    open_availability_board,
    open_readers,
    socket_mode,
)
from gpuledger.config.collectors import dcgm_settings, read_collectors
from gpuledger.config.node import configured_node_name
from gpuledger.dialects.catalogue import create_dialects
from gpuledger.dialects.settings import (
    AmdDialectSettings,
    DialectSettings,
    EnergyDialectSettings,
    SmiDialectSettings,
)
from gpuledger.host.clock import seconds_suspended
from gpuledger.host.owner_index import PolledIndex
from gpuledger.host.settings import HostSettings, configured_time_zone
from gpuledger.kubernetes.settings import PodEventSettings
from gpuledger.ledger.ledger import Ledger
from gpuledger.ledger.report.settings import Prices
from gpuledger.ledger.settings import LedgerSettings, StoreSettings
from gpuledger.ledger.store.store_factory import open_store
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.node_state import Dialect, NodeState
from gpuledger.model.quantities import Quantity
from gpuledger.model.session import LedgerState
from gpuledger.model.settings import build_settings
from gpuledger.model.snapshot import Snapshot, SourceInfo
from gpuledger.model.source import Clock
from gpuledger.node.device_log import GpuCountLog, InstanceLog, OmittedProcessLog
from gpuledger.node.loop import Node
from gpuledger.node.settings import ControlSettings, GpuCountSettings, NodeSettings
from gpuledger.outputs.metrics_pages import MetricsPages
from gpuledger.sources.dcgm_exporter.settings import DcgmExporterSourceSettings
from gpuledger.sources.settings import SourceSettings
from gpuledger.sources.smi.settings import SmiSettings
from gpuledger.web.api.ledger_access import LedgerAccess
from gpuledger.workloads.cgroup_usage import CgroupUsageReader
from gpuledger.workloads.memory_fractions import OWNER_QUANTITIES
from gpuledger.workloads.slurm.settings import SlurmSettings

if TYPE_CHECKING:
    from gpuledger.ledger.store.history import History
    from gpuledger.ledger.store.store import Store
    from gpuledger.sources.dcgm_exporter.profiling import ProfilingValues


log = logging.getLogger("gpuledger.dcgm")


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
        name=host.namer(owner_indexes, ledger),
        post=post,
        publish=publish,
        required_quantities=lambda: (
            parts.pages.required_quantities() | ledger.required_quantities | OWNER_QUANTITIES
        ),
        clock=clock,
        # The clock of a simulated source is not that of this machine.
        suspended=(lambda: None) if source.info.simulated else seconds_suspended,
        interval=build_settings(NodeSettings, values).interval,
        speed=source_speed(values, source.info),
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
    api = parts.api = build_api(parts, values)
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
