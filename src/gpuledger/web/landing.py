"""The handler of the plain page. It is made from the current Page when asked, which is rarely."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gpuledger.model.page import Page
from gpuledger.model.source import Clock
from gpuledger.outputs.health import HEALTH, HEALTHY, READY
from gpuledger.outputs.routes import Handler, Request, Response

# The query that stops the page from refreshing itself.
STILL = "refresh=off"


@dataclass(frozen=True, slots=True)
class Links:
    """Where the metrics are: the path of the metrics page, and the names of all dialects."""

    metrics_path: str = "/metrics"
    dialects: tuple[str, ...] = ()

    @property
    def described(self) -> Mapping[str, str]:
        """Every path with a few words about it, in the order shown."""
        return {
            self.metrics_path: "metrics, as this address serves them",
            **{f"/metrics/{name}": f"metrics of the dialect {name} alone" for name in self.dialects},
            HEALTHY: "liveness: 200 while the process answers",
            READY: "readiness: 200 once the first reading was tried",
            HEALTH: "health in words, always 200",
        }


@dataclass(frozen=True, slots=True)
class View:
    """What the page depends on beside the Page: the time in unix seconds, and how it was asked."""

    now: float
    host: str = ""
    refreshing: bool = True
    path: str = "/"


def landing(current: Callable[[], Page], links: Links, clock: Clock, path: str = "/") -> Handler:
    """The handler of `path` for the Page that `current` gives."""

    def serve(request: Request) -> Response:
        # Where nobody looks, the table of HTML entities and OpenSSL are not in memory.
        from gpuledger.web.document import render
        from gpuledger.web.style import styled

        view = View(clock.unix(), request.headers.get("host", ""), request.query != STILL, path)
        return styled(render(current(), links, view))

    return serve
