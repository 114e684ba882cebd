"""The parts of a node that runs, and the access to its machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from os import environ
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuledger.app.control_thread import ControlThread
from gpuledger.app.ledger_requests import LedgerRequests
from gpuledger.app.readers import Readers
from gpuledger.config.node import configured_node_name
from gpuledger.host.clock import SystemClock
from gpuledger.host.owner_index import BackgroundIndex, PolledIndex
from gpuledger.host.pci import PciBus
from gpuledger.host.procfs import ProcFs
from gpuledger.host.settings import HostSettings
from gpuledger.host.users import PasswdUsers, open_users
from gpuledger.ledger.ledger import Ledger
from gpuledger.model.errors import SourceUnavailable, UsageError
from gpuledger.model.node_state import IndexHealth
from gpuledger.model.settings import build_settings
from gpuledger.model.snapshot import SourceInfo
from gpuledger.model.source import Clock, Source
from gpuledger.node.loop import Namer, Node
from gpuledger.outputs.metrics_pages import MetricsPages
from gpuledger.sources.settings import SourceSettings
from gpuledger.sources.smi.settings import SmiSettings
from gpuledger.sources.source_factory import open_source
from gpuledger.web.api.api import Api
from gpuledger.web.api.ledger_access import LedgerAccess
from gpuledger.workloads.owner_index_setup import open_owner_indexes
from gpuledger.workloads.owner_indexes import OwnerIndexes
from gpuledger.workloads.owner_lookup import OwnerLookup

if TYPE_CHECKING:
    from gpuledger.ledger.store.store import Store
    from gpuledger.sources.dcgm_exporter.profiling import ProfilingValues


# Seconds that a command waits for a reading. Without persistence mode a driver takes seconds per GPU to
# initialize; a hung driver never answers.
READING_TIMEOUT = 30.0
# nvidia-smi is killed at its own limit (`--nvidia-smi-timeout`), and a reading calls it up to four times.
COMMAND_READING_TIMEOUT = 120.0


def no_reading_error(source: SourceInfo, seconds: float) -> SourceUnavailable:
    """The error for a source that returned no reading within `seconds`."""
    return SourceUnavailable(
        f"no reading for {seconds:g} s: {source.name} does not answer (look for Xid errors in dmesg; a hung"
        " driver needs a reboot)"
    )


def page_conflict(error: ValueError) -> UsageError:
    """The error for dialects that cannot be on one page."""
    return UsageError(f"--dialect: {error}; choose fewer dialects, or another --metric-prefix")


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

    def namer(self, owner_indexes: OwnerIndexes, ledger: Ledger) -> Namer:
        """The function that assigns owners to a Snapshot from these owner indexes.

        Processes and jobs keep names that they have in the ledger.
        """
        directory = owner_indexes if len(owner_indexes) else None
        lookup = OwnerLookup(
            self.users.name,
            directory,
            lambda: self.users.changes,
            known_owner=ledger.sessions.owner_of,
            job_users=ledger.job_users,
        )
        return lookup.assign_owners


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
        """Health of the current owner indexes and of the other indexes of the node."""
        return (*self.owner_indexes.health(), *[one.health for one in self._pollers])

    def start(self) -> None:
        """Start the owner indexes, then the ticks."""
        self.owner_indexes.start()
        for one in self._pollers:
            one.start()
        self.node.start()
        self.control.start()

    def stop(self) -> None:
        """Stop the node and the owner indexes, then close the ledger."""
        self.control.stop()
        self.node.stop()
        self.owner_indexes.stop()
        for one in self._pollers:
            one.stop()
        if self.store is not None:
            self.store.close()

    @property
    def _pollers(self) -> list[BackgroundIndex]:
        return [one for one in (self.profiling, self.pod_events) if one is not None]


def source_speed(values: Mapping[str, Any], source: SourceInfo) -> float:
    """Seconds on the source's clock in a second."""
    return build_settings(SourceSettings, values).speed if source.simulated else 1.0
