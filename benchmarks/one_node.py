"""Measures a node in this process, as JSON: CPU ms per tick and per rendered page, and calls per tick.

python benchmarks/one_node.py VALUES TICKS

`node.py` runs it in a separate process for each row, so that no row profits from the caches of another.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from ctypes import CDLL, c_ulonglong
from statistics import median
from typing import Any

from gpuledger.app.node_assembly import assemble_node
from gpuledger.dialects.catalogue import create_dialects
from gpuledger.dialects.settings import DEFAULT_DIALECTS, DialectSettings
from gpuledger.host.clock import SystemClock
from gpuledger.http.routes import Request
from gpuledger.node.loop import Node
from gpuledger.outputs.metrics_pages import MetricsPages


def measure_node(
    values: Mapping[str, Any], ticks: int, second: float = 1.0
) -> tuple[float, float, int | None]:
    """Return the median CPU ms of a tick and of rendering a page, and the driver calls of a usual tick."""
    parts = assemble_node(values).parts
    parts.owner_indexes.read_once()
    names = tuple(values.get("dialect", DEFAULT_DIALECTS))
    dialects = create_dialects(DialectSettings(), "0")
    request = Request("GET", "/metrics", "", {"accept-encoding": "gzip"})
    for _ in range(5):
        parts.node.tick()
    posted, rendered = [], []
    for _ in range(ticks):
        time.sleep(second / 100)
        began = time.thread_time()
        parts.node.tick()
        posted.append(time.thread_time() - began)
        # New pages each time, so that the page is rendered here and not within the next tick.
        serve = MetricsPages(dialects, SystemClock(), parts.pages.state, names).handler(names)
        began = time.thread_time()
        serve(request)
        rendered.append(time.thread_time() - began)
    calls = calls_per_tick(parts.node, second) if values["source"] == "nvml" else None
    parts.stop()
    return median(posted) * 1000, median(rendered) * 1000, calls


def calls_per_tick(node: Node, second: float) -> int:
    """Return the calls into the tests' NVML library in a tick that does not read slow quantities.

    The fewest of two ticks: one in ten reads them. A second apart, because GPM needs time between samples.
    """
    counter = CDLL("libnvidia-ml.so.1").test_nvml_calls
    counter.restype = c_ulonglong
    made = []
    for _ in range(2):
        time.sleep(second)
        before = counter()
        node.tick()
        made.append(counter() - before)
    return int(min(made))


if __name__ == "__main__":
    print(json.dumps(measure_node(json.loads(sys.argv[1]), int(sys.argv[2]))))
