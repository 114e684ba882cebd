"""Machine instructions, counted by valgrind's callgrind: what a piece of work costs, whatever else runs.

Per piece they are the difference between a run that does everything a little and one that does this more
often, with hashes that are the same in each: equal to the second decimal from run to run.
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
WORKS = {"post": "post a tick", "render": "make a page", "scrape": "answer a scrape"}
FEW, MANY = 2, 10

WORKER = """
import sys
from gpuledger.dialects.catalogue import dialects
from gpuledger.dialects.settings import DEFAULT, DialectSettings
from gpuledger.ledger.ledger import Ledger
from gpuledger.ledger.settings import LedgerSettings
from gpuledger.model.node_state import Health, Page
from gpuledger.model.quantities import QUANTITIES
from gpuledger.outputs.metrics_pages import PageStore
from gpuledger.http.routes import Request
from gpuledger.sources.settings import SourceSettings
from gpuledger.sources.simulator.reader import parse
from gpuledger.sources.simulator.simulator import Simulator

class Clock:
    now = 0.0
    def unix(self): return 1_700_000_000.0 + self.now
    def elapsed(self): return 5_000.0 + self.now

clock = Clock()
gpu = "  - {count: 8, memory: 80GB, processes: [" + ", ".join(["{name: python, load: 0.1}"] * 8) + "]}\\n"
source = Simulator(parse("gpus:\\n" + gpu, "bench"), SourceSettings(seed=1), clock)
snapshots = []
# As many whatever is to be done: what it costs to make them up is nobody's.
for _ in range(11):
    snapshots.append(source.read(frozenset(QUANTITIES.values())))
    clock.now += 1.0
ledger, state = Ledger(LedgerSettings()), None
every = dialects(DialectSettings(), "0")
request = Request("GET", "/metrics", "", {"accept-encoding": "gzip"})
state = ledger.post(snapshots[0])
page = Page(clock.unix(), source.info, snapshots[0], state, Health())
kept = PageStore(every, clock, page, DEFAULT).handler(DEFAULT)
kept(request)
posts, renders, scrapes = map(int, sys.argv[1:])
for seen in snapshots[1 : posts + 1]:
    ledger.post(seen)
for _ in range(renders):
    PageStore(every, clock, page, DEFAULT).handler(DEFAULT)(request)
for _ in range(scrapes):
    kept(request)
"""


def instructions(*times: int) -> int:
    """Of a whole process that does each of the works so often."""
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
def fewest() -> int:
    """Of the process that the others are compared with."""
    return instructions(*[FEW] * len(WORKS))


def per_piece(work: str) -> float:
    """What one more piece of work costs."""
    return (instructions(*(MANY if one == work else FEW for one in WORKS)) - fewest()) / (MANY - FEW)
