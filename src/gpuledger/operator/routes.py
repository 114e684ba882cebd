"""What the operator answers over HTTP."""

from __future__ import annotations

from collections.abc import Callable

from gpuledger.http.routes import Hosts, Routes
from gpuledger.operator.families import View, operator_families
from gpuledger.outputs.responses import metrics_page, probes


def routes_of(view: Callable[[], View], hosts: Hosts | None = None) -> Routes:
    """The metrics and the probes, under these names. An operator that waits for its turn is well and ready,
    too.
    """
    return Routes(
        {"/metrics": metrics_page(lambda: operator_families(view())), **probes(lambda: "")}, hosts=hosts
    )
