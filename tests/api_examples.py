"""Writes the examples of the API's description: `PYTHONPATH=src:tests python tests/api_examples.py FILE`.

They are the responses of a simulated node with one GPU. Run by `make docs`.
"""

from __future__ import annotations

import asyncio
import json
import sys
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from builders import FakeClock
from gpuledger.http.routes import Request, Response
from gpuledger.ledger.device_conditions import CONDITION_QUANTITIES
from gpuledger.ledger.ledger import Ledger
from gpuledger.ledger.report.settings import Prices
from gpuledger.ledger.settings import LedgerSettings
from gpuledger.ledger.store.history import History
from gpuledger.ledger.store.retention import RetentionLimits
from gpuledger.ledger.store.store import Store
from gpuledger.model.checks import fails
from gpuledger.model.node_state import IndexHealth, NodeState, ReloadHealth
from gpuledger.model.snapshot import SourceInfo
from gpuledger.node.availability_board import AvailabilityBoard
from gpuledger.node.loop import Node
from gpuledger.sources.settings import SourceSettings
from gpuledger.sources.simulator.scenario_parser import parse_scenario
from gpuledger.sources.simulator.simulator import Simulator
from gpuledger.web.api.api import Api, ApiOptions
from gpuledger.web.api.endpoints import BASE, ENDPOINTS
from gpuledger.web.api.handlers import ApiHandlers
from gpuledger.web.api.ledger_access import LedgerAccess
from gpuledger.web.api.shown_quantities import SNAPSHOT_QUANTITIES
from gpuledger.workloads.owner_lookup import OwnerLookup

SCENARIO = """
gpus:
  - model: NVIDIA H100 80GB HBM3
    memory: 81559MiB
    processes:
      - name: python3
        memory: 40GiB
        load: 0.6
        memory_load: 0.3
        start: 5s
        pod: {namespace: ml, name: train-0, container: pytorch}
faults:
  - {kind: xid, at: 20s, gpu: 0, xid: 31}
"""
STARTED = 1_795_860_000.0
TICKS = 40
INDEX = IndexHealth("pods", False, None, 0, "the API server does not answer: run gpuledger doctor")
FINDING = fails("host.pids", "host pids", "gpuledger runs in a separate pid namespace", "hostPID: true")
# Streams, archives, and texts that other examples have as numbers.
_WITHOUT_EXAMPLE = ("events", "books", "report", "explain", "idle", "openapi.json")
NAMES = tuple(one.name for one in ENDPOINTS if one.name not in _WITHOUT_EXAMPLE)

_QUERIES = {"energy": "since=1h", "receipt": "of=pod:ml/train-0"}


def build_examples() -> dict[str, Any]:
    """The response of each endpoint by its name."""
    with TemporaryDirectory() as folder:
        clock = FakeClock(STARTED)
        store = Store(Path(folder), "simulator", "", clock, RetentionLimits())
        access = LedgerAccess(clock, lambda: History(store.file), simulated=True)
        api = Api(NodeState(unix=STARTED, source=SourceInfo("simulator")), access, clock)
        try:
            run_node(api, store, clock)
            return asyncio.run(_request_all(api))
        finally:
            store.close()


def run_node(api: Api, store: Store, clock: FakeClock) -> None:
    """Publish the ticks of a simulated node."""
    ledger = Ledger(LedgerSettings(), store)
    board = AvailabilityBoard(clock, str, lambda _: False)
    node = Node(
        Simulator(parse_scenario(SCENARIO, "one-gpu"), SourceSettings(), clock),
        name=OwnerLookup(str).assign_owners,
        post=ledger.post,
        publish=lambda state: api.publish(board.update(state)),
        required_quantities=lambda: SNAPSHOT_QUANTITIES | CONDITION_QUANTITIES | ledger.required_quantities,
        clock=clock,
        interval=1.0,
        owner_indexes=lambda: (INDEX,),
    )
    node.set_reload_health(ReloadHealth(True, STARTED))
    for _ in range(TICKS):
        node.tick()
        clock.advance(1.0)


async def _request_all(api: Api) -> dict[str, Any]:
    prices = Prices(kwh=Decimal("0.3"), currency="EUR")
    handlers = ApiHandlers(api, ApiOptions("node-17", prices, lambda: [FINDING], timezone="UTC"))
    found = {}
    for name in NAMES:
        response = handlers.respond(Request("GET", BASE + name, _QUERIES.get(name, ""), {}))
        body = response.body if isinstance(response, Response) else (await response).body
        found[name] = json.loads(body)
    return found


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(build_examples(), indent=1) + "\n", encoding="utf-8")
