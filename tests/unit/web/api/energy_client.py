"""Energy reports of a ledger in which seven teams shared a GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from builders import FakeClock, gpu, node_state, process, snapshot
from gpuledger.ledger.report.settings import Prices
from gpuledger.ledger.report.teams import Team
from gpuledger.ledger.store.history import History
from gpuledger.model.workload import Workload
from gpuledger.web.api.api import ApiOptions
from gpuledger.web.api.endpoints import ENDPOINTS
from gpuledger.web.api.energy import EnergyReports
from gpuledger.web.api.json_values import JsonObject
from gpuledger.web.api.ledger_access import LedgerAccess
from gpuledger.web.api.parameters import read_query
from ledger_helpers import UNIX, Run

CARD = gpu(0, name="NVIDIA H100")
STATE = node_state(snapshot(unix=UNIX))
(PARAMETERS,) = (one.parameters for one in ENDPOINTS if one.name == "energy")
PEOPLE = [
    process(CARD, n, ticks=n, workload=Workload("pod", f"team-{n}", f"p-{n}", "c")) for n in range(1, 8)
]


def shared_ledger(folder: Path) -> Run:
    """A ledger in which seven teams shared a Gpu, which was idle afterwards."""
    run = Run(folder)
    energy = 0
    for second in range(12):
        energy += 70_000 + second
        run.tick({CARD: energy}, PEOPLE if second < 9 else ())
    return run


def parameters(query: str = "") -> dict[str, Any]:
    return read_query(query, PARAMETERS)


class EnergyClient:
    """A client of the energy reports of a ledger, with a manual clock."""

    def __init__(self, run: Run, prices: Prices | None = None) -> None:
        self.file = run.store.file
        self.clock = FakeClock(run.clock.now_unix, 0.0)
        self.prices = prices or Prices()
        ledger_access = LedgerAccess(self.clock, lambda: History(self.file))
        self.teams: tuple[Team, ...] = ()
        self.timezone = "UTC"
        self.reports = EnergyReports(ledger_access, self.options, self.clock.elapsed)

    def options(self) -> ApiOptions:
        return ApiOptions("node-17", self.prices, teams=self.teams, timezone=self.timezone)

    def request(self, query: str = "") -> JsonObject:
        body: JsonObject = json.loads(json.dumps(self.reports.report_page(STATE, parameters(query))))
        return body
