"""Counts machine instructions with valgrind's callgrind, which other load on the machine does not affect.

One process does all kinds of work. It marks the start and end of each with a call that callgrind recognizes
and at which it saves the count. Callgrind counts from the first work on; what precedes is much faster so.
Hash seeds are fixed: results agree to the second decimal.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
WORKS = {
    "post": "post a tick",
    "store": "post and store a tick",
    "render": "render a page",
    "scrape": "respond to a scrape",
}
REPETITIONS = 8
# A function of the C library that Python calls nowhere else.
MARK = "getpgid"
START = "#include <valgrind/callgrind.h>\nvoid start(void) { CALLGRIND_START_INSTRUMENTATION; }\n"

WORKER = """
import ctypes
import os
import sys
from pathlib import Path
from gpuledger.dialects.catalogue import create_dialects
from gpuledger.dialects.settings import DEFAULT_DIALECTS, DialectSettings
from gpuledger.ledger.ledger import Ledger
from gpuledger.ledger.settings import LedgerSettings
from gpuledger.ledger.store.retention import RetentionLimits
from gpuledger.ledger.store.store import Store
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

def post(repetitions):
    for _ in range(repetitions):
        ledger.post(next(posted))

file = Store(Path(sys.argv[2]), "books", "boot", clock, RetentionLimits())
with_file = Ledger(LedgerSettings(), file)
with_file.post(snapshots[0])

def store(repetitions):
    for _ in range(repetitions):
        with_file.post(next(stored))

def render(repetitions):
    for _ in range(repetitions):
        new_pages()(request)

def scrape(repetitions):
    for _ in range(repetitions):
        rendered(request)

posted, stored = iter(snapshots[1:]), iter(snapshots[1:])
rendered = new_pages()
ctypes.CDLL(sys.argv[3]).start()
for work in (post, store, render, scrape):
    # The first repetitions import modules and fill caches.
    work(2)
    os.getpgid(0)
    work(int(sys.argv[1]))
    os.getpgid(0)
"""


def instructions_per_repetition(repetitions: int = REPETITIONS) -> dict[str, float]:
    """Return the instructions of one more repetition of each kind of work (at most REPETITIONS)."""
    with tempfile.TemporaryDirectory() as folder:
        env = {
            **os.environ,
            "PYTHONHASHSEED": "0",
            "PYTHONPATH": str(ROOT / "src"),
            "GPULEDGER_STATE_DIR": "none",
        }
        (source := Path(folder) / "start.c").write_text(START)
        library = str(source.with_suffix(".so"))
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", str(source), "-o", library], check=True)
        command = [
            "valgrind",
            "--tool=callgrind",
            "--instr-atstart=no",
            f"--callgrind-out-file={folder}/out",
            f"--dump-before={MARK}",
        ]
        command += [sys.executable, "-s", "-c", WORKER, str(repetitions), folder, library]
        subprocess.run(command, env=env, check=True, capture_output=True, text=True)
        # Part 1 is what precedes the first mark; then parts with and without the repetitions alternate.
        parts = [(Path(folder) / f"out.{2 * number}").read_text() for number, _ in enumerate(WORKS, start=1)]
    totals = [re.findall(r"^totals: (\d+)$", part, re.MULTILINE) for part in parts]
    return {work: int(total) / repetitions for work, (total,) in zip(WORKS, totals, strict=True)}
