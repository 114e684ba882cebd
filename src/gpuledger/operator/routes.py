"""What the operator answers over HTTP."""

from __future__ import annotations

from collections.abc import Callable

from gpuledger.operator.families import View, tell
from gpuledger.outputs.health import probes
from gpuledger.outputs.metrics_page import metrics_page
from gpuledger.outputs.routes import Hosts, Routes


def routes_of(view: Callable[[], View], hosts: Hosts | None = None) -> Routes:
    """The metrics and the probes, under these names. An operator that waits for its turn is well and ready,
    too.
    """
    return Routes({"/metrics": metrics_page(lambda: tell(view())), **probes(lambda: "")}, hosts=hosts)
