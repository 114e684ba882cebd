"""What the agent answers over HTTP."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Final

from gpuledger.agent import active
from gpuledger.agent.agent import AgentView
from gpuledger.agent.families import tell
from gpuledger.agent.overview import overview
from gpuledger.exposition.negotiation import accepts_gzip, choose_format
from gpuledger.outputs.health import HEALTHY, READY
from gpuledger.outputs.routes import Hosts, Request, Response, Routes, plain

_GZIP: Final = 31


def routes_of(view: Callable[[], AgentView], hosts: Hosts | None = None) -> Routes:
    """The page, the metrics, the list of targets and the probes, under these names. It lives as soon as it
    listens; it is ready once what is to be found in a cluster was looked for, well or in vain: others hand
    targets over then.
    """

    def metrics(request: Request) -> Response:
        form = choose_format(request.headers.get("accept", ""))
        body = form.encode(tell(view()))
        headers: tuple[tuple[str, str], ...] = (("Vary", "Accept, Accept-Encoding"),)
        if accepts_gzip(request.headers.get("accept-encoding", "")):
            packer = zlib.compressobj(1, zlib.DEFLATED, _GZIP)
            body = packer.compress(body) + packer.flush()
            headers += (("Content-Encoding", "gzip"),)
        return Response(200, body, form.content_type, headers)

    def well(_: Request) -> Response:
        return plain("OK")

    def ready(_: Request) -> Response:
        missing = view().unready
        return plain(f"NOT READY: {missing}", 503, (("Retry-After", "1"),)) if missing else plain("OK")

    handlers = {
        "/": overview(view),
        "/metrics": metrics,
        active.PATH: active.active_targets(view),
        HEALTHY: well,
        READY: ready,
    }
    return Routes(handlers, hosts=hosts)
