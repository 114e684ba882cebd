"""`gpuledger demo`: show the whole product on a simulated node with a day of books and invented prices."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import quote
from time import monotonic
from typing import Any

from gpuledger.app.demo import (
    DEMO_SOURCE,
    HISTORY,
    HistoryClock,
    demo_directory,
    history_of,
    write_demo_configuration,
    write_history,
)
from gpuledger.app.flags import CommandLine, ReadSettings, parse_command
from gpuledger.app.node_parts import NodeParts
from gpuledger.cli.serve import serve_node
from gpuledger.config.commands import NODE_GROUPS
from gpuledger.host.clock import SystemClock
from gpuledger.ledger.journal import StoredLedger
from gpuledger.ledger.settings import MEMORY_ONLY, StoreSettings
from gpuledger.ledger.store.state_directory import ledger_name
from gpuledger.model.errors import UsageError
from gpuledger.model.settings import build_settings
from gpuledger.sources.settings import SourceSettings
from gpuledger.sources.source_factory import open_made_up_source

log = logging.getLogger("gpuledger.demo")

_ABOUT = """\
Show the whole product without a GPU: a simulated node, a day of history in its ledger, and demo prices.

The simulator runs a day in seconds, and the ledger books it as it books real GPUs. Then the node runs on in
real time. The books are in a temporary directory that is removed at the end, or in --state-dir. All flags of
`gpuledger serve` work; without --source, the source is simulator:demo.
"""
_EXAMPLES = """\
examples:
  gpuledger demo                                   five GPUs: training, services, MIG, an idle notebook
  gpuledger demo --listen-address 127.0.0.1:9500   on another port, for this machine only
  gpuledger demo --source simulator:workstation    another scenario
  gpuledger demo --state-dir demo-books            keep the books

then, with the files that it names:
  gpuledger report --config demo-books/demo.yaml --by team
  gpuledger explain --config demo-books/demo.yaml ml-research/llama-pretrain-0
"""


def run(arguments: Sequence[str]) -> int:
    """Serve until SIGTERM or SIGINT."""
    given, read = _parse(arguments)
    values = {"source": DEMO_SOURCE, **read()}
    chosen, source = build_settings(StoreSettings, values).state_dir, build_settings(SourceSettings, values)
    if source.source.partition(":")[0] != "simulator":
        raise UsageError(f"demo only simulates GPUs; run gpuledger serve --source {source.source}")
    if chosen == MEMORY_ONLY:
        raise UsageError("--state-dir none: a demo keeps books; leave it out, or name a directory")
    with demo_directory(chosen) as folder:
        if given.config is not None:
            # The user's own configuration gets no demo prices.
            options = f"--config {quote(str(given.config))} --state-dir {quote(str(folder))}"
            return _serve(read, folder, given.config, f": gpuledger report {options}")
        file = write_demo_configuration(folder, source.source)
        _, read = _parse(["--config", str(file), *arguments])
        return _serve(read, folder, file, f", with demo prices: gpuledger report --config {quote(str(file))}")


def _parse(arguments: Sequence[str]) -> tuple[CommandLine, ReadSettings]:
    return parse_command("demo", _ABOUT, _EXAMPLES, NODE_GROUPS, arguments)


def _serve(read: ReadSettings, folder: Path, file: Path, report: str) -> int:
    """Serve these settings with the books in the folder; `report` ends the line of the log about them."""

    def read_with_defaults() -> Mapping[str, Any]:
        return {"source": DEMO_SOURCE, **read(), "state_dir": str(folder)}

    values = read_with_defaults()
    source = build_settings(SourceSettings, values)
    name = ledger_name(open_made_up_source(source, SystemClock()).info)
    clock = HistoryClock(SystemClock(), history_of(folder / f"{name}.db", HISTORY), source.speed)

    async def prepare(parts: NodeParts, stop: asyncio.Event) -> None:
        earlier = StoredLedger() if parts.store is None else parts.store.stored_ledger
        began = monotonic()
        writing = asyncio.to_thread(write_history, parts, clock, stop.is_set, _progress, earlier.unix)
        made, stopped = asyncio.ensure_future(writing), asyncio.ensure_future(stop.wait())
        await asyncio.wait((made, stopped), return_when=asyncio.FIRST_COMPLETED)
        if stop.is_set():
            # A driver that is simulated to hang would not return while the clock stands still.
            parts.source.close()
        stopped.cancel()
        await made
        if stop.is_set():
            # Removes the line of the progress.
            _progress(1)
            return
        where = report if parts.store is not None and parts.store.on_disk else ""
        if earlier.gpus:
            log.info("books of an earlier demo in %s%s", folder, where)
        else:
            log.info("a simulated day of books, made in %.0f s%s", monotonic() - began, where)

    return serve_node(values, read_with_defaults, (file,), clock, prepare)


def _progress(done: float) -> None:
    """Show how much of the history is made, if a person waits for it."""
    if sys.stderr.isatty():
        sys.stderr.write("\r\033[K" if done == 1 else f"\rmaking a day of books: {done:4.0%} ")
        sys.stderr.flush()
