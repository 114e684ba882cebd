"""What the agent answers over HTTP."""

from __future__ import annotations

from collections.abc import Callable

from gpuledger.agent import active
from gpuledger.agent.agent import AgentView
from gpuledger.agent.families import tell
from gpuledger.agent.overview import overview
from gpuledger.outputs.health import probes
from gpuledger.outputs.metrics_page import metrics_page
from gpuledger.outputs.routes import Hosts, Routes


def routes_of(view: Callable[[], AgentView], hosts: Hosts | None = None) -> Routes:
    """The page, the metrics, the list of targets and the probes, under these names. It lives as soon as it
    listens; it is ready once what is to be found in a cluster was looked for, well or in vain: others hand
    targets over then.
    """
    handlers = {
        "/": overview(view),
        "/metrics": metrics_page(lambda: tell(view())),
        active.PATH: active.active_targets(view),
        **probes(lambda: view().unready),
    }
    return Routes(handlers, hosts=hosts)
