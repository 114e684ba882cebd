"""Counts machine instructions with valgrind's callgrind, which other load on the machine does not affect.

The count of one repetition is computed from the difference between a run with few repetitions of all kinds of
work and a run with many of this kind. Hash seeds are fixed: results agree to the second decimal.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
WORKS = {"post": "post a tick", "render": "render a page", "scrape": "respond to a scrape"}
FEW, MANY = 2, 10

WORKER = """
import sys
from gpuledger.dialects.catalogue import create_dialects
from gpuledger.dialects.settings import DEFAULT_DIALECTS, DialectSettings
from gpuledger.ledger.ledger import Ledger
from gpuledger.ledger.settings import LedgerSettings
from gpuledger.model.node_state import Health, NodeState
from gpuledger.model.quantities import QUANTITIES
from gpuledger.outputs.metrics_pages import MetricsPages
from gpuledger.http.routes import Request
from gpuledger.sources.settings import SourceSettings
from gpuledger.sources.simulator.scenario_parser import parse_scenario
from gpuledger.sources.simulator.simulator import Simulator

class Clock:
    now = 0.0
    def unix(self): return 1_700_000_000.0 + self.now
    def elapsed(self): return 5_000.0 + self.now

clock = Clock()
gpu = "  - {count: 8, memory: 80GB, processes: [" + ", ".join(["{name: python, load: 0.1}"] * 8) + "]}\\n"
source = Simulator(parse_scenario("gpus:\\n" + gpu, "bench"), SourceSettings(seed=1), clock)
snapshots = []
# The same number in all runs, so that simulating them does not count.
for _ in range(11):
    snapshots.append(source.read(frozenset(QUANTITIES.values())))
    clock.now += 1.0
ledger = Ledger(LedgerSettings())
dialects = create_dialects(DialectSettings(), "0")
request = Request("GET", "/metrics", "", {"accept-encoding": "gzip"})
state = NodeState(clock.unix(), source.info, snapshots[0], ledger.post(snapshots[0]), Health())

def new_pages():
    return MetricsPages(dialects, clock, state, DEFAULT_DIALECTS).handler(DEFAULT_DIALECTS)

rendered = new_pages()
rendered(request)
posts, renders, scrapes = map(int, sys.argv[1:])
for seen in snapshots[1 : posts + 1]:
    ledger.post(seen)
for _ in range(renders):
    new_pages()(request)
for _ in range(scrapes):
    rendered(request)
"""


def instructions(*times: int) -> int:
    """Return the instructions of a process that does each kind of work this many times (see WORKS)."""
    with tempfile.TemporaryDirectory() as folder:
        env = {
            **os.environ,
            "PYTHONHASHSEED": "0",
            "PYTHONPATH": str(ROOT / "src"),
            "GPULEDGER_STATE_DIR": "none",
        }
        command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={folder}/out"]
        command += [sys.executable, "-s", "-c", WORKER, *map(str, times)]
        done = subprocess.run(command, env=env, check=True, capture_output=True, text=True)
    found = re.search(r"Collected : (\d+)", done.stderr)
    assert found, done.stderr
    return int(found[1])


@cache
def baseline() -> int:
    """Return the instructions of the process with which others are compared."""
    return instructions(*[FEW] * len(WORKS))


def instructions_per_repetition(work: str) -> float:
    """Return the instructions of one more repetition of this work."""
    return (instructions(*(MANY if one == work else FEW for one in WORKS)) - baseline()) / (MANY - FEW)
