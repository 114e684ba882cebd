"""What the operator answers over HTTP."""

from __future__ import annotations

from collections.abc import Callable

from gpuledger.exposition.negotiation import choose_format
from gpuledger.operator.families import View, tell
from gpuledger.outputs.health import HEALTHY, READY
from gpuledger.outputs.routes import Request, Response, Routes, plain


def routes_of(view: Callable[[], View]) -> Routes:
    """The metrics and the probes. An operator that waits for its turn is well and ready, too."""

    def metrics(request: Request) -> Response:
        form = choose_format(request.headers.get("accept", ""))
        return Response(200, form.encode(tell(view())), form.content_type, (("Vary", "Accept"),))

    def well(_: Request) -> Response:
        return plain("OK")

    return Routes({"/metrics": metrics, HEALTHY: well, READY: well})
