"""What a user sets about the page that people look at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from gpuledger.http.routes import HEALTH, HEALTHY, READY
from gpuledger.model.settings import Reload, choice, setting


@dataclass(frozen=True, slots=True)
class WebSettings:
    """What is shown at `/`."""

    reload: ClassVar[Reload] = Reload()

    page: str = setting(
        "web.page",
        choice("full", "landing", "off"),
        "full",
        "page at / and the API below /api: full; landing (state of the GPUs and links, no names of users or "
        "processes, no API); or off",
        metavar="full|landing|off",
    )


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
