"""The parts of a node joined: source, workloads, ledger, dialects, pages, routes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuledger import __version__
from gpuledger.dialects.catalogue import dialects, known
from gpuledger.dialects.settings import DialectSettings
from gpuledger.host.clock import SystemClock
from gpuledger.host.procfs import ProcFs
from gpuledger.host.settings import HostSettings
from gpuledger.host.users import PasswdUsers
from gpuledger.ledger.ledger import Ledger
from gpuledger.ledger.settings import LedgerSettings
from gpuledger.model.errors import UsageError
from gpuledger.model.page import Page
from gpuledger.model.settings import build
from gpuledger.model.source import Source
from gpuledger.node.loop import Node
from gpuledger.node.settings import NodeSettings
from gpuledger.outputs.addresses import Address
from gpuledger.outputs.health import health_routes
from gpuledger.outputs.pages import PageStore
from gpuledger.outputs.routes import Routes
from gpuledger.outputs.settings import HttpSettings
from gpuledger.sources.open import open_source
from gpuledger.sources.settings import SourceSettings
from gpuledger.web.landing import Links, landing
from gpuledger.web.settings import WebSettings
from gpuledger.workloads.naming import Workloads


@dataclass(frozen=True, slots=True)
class Assembly:
    """A node that has not begun to tick, and what its HTTP server answers."""

    source: Source
    node: Node
    pages: PageStore
    listeners: tuple[tuple[Address, Routes], ...]


def assemble_node(values: Mapping[str, Any]) -> Assembly:
    """Everything of a node out of parsed values by key (`config.assemble`).

    Raises UsageError for a source, scenario or dialect that is not there.
    """
    clock = SystemClock()
    host_settings = build(HostSettings, values)
    users = PasswdUsers(host_settings.passwd)
    if not Path(host_settings.procfs, "stat").exists():
        raise UsageError(f"--procfs: {host_settings.procfs} is no proc filesystem: it has no file 'stat'")
    host = ProcFs(host_settings.procfs, pids=host_settings.pids, users=users)
    source = open_source(build(SourceSettings, values), host, clock)
    telling = build(DialectSettings, values)
    every = dialects(telling, __version__)
    http = build(HttpSettings, values)
    default = known(telling.dialect, every)
    listed = [
        (listen.address, known(listen.dialects, every) if listen.dialects else default)
        for listen in http.listen_address
    ]
    first = Page(unix=clock.unix(), source=source.info)
    pages = PageStore(every, clock, first, {name for _, names in listed for name in names})
    node = Node(
        source,
        name=Workloads(users.name).name,
        post=Ledger(build(LedgerSettings, values)).post,
        publish=pages.publish,
        wanted=pages.wants,
        clock=clock,
        interval=build(NodeSettings, values).interval,
    )
    common = health_routes(lambda: pages.page)
    if build(WebSettings, values).page == "landing":
        common["/"] = landing(lambda: pages.page, Links(http.metrics_path, tuple(every)), clock)
    listeners = tuple(
        (address, Routes({**common, **pages.routes(http.metrics_path, names)})) for address, names in listed
    )
    return Assembly(source, node, pages, listeners)
