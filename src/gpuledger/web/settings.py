"""Settings of the web page and the API, and what the plain page depends on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from gpuledger.http.routes import HEALTH, HEALTHY, READY
from gpuledger.model.settings import ReloadPolicy, choice, setting


@dataclass(frozen=True)
class WebSettings:
    """What is served at `/` and below `/api/`."""

    reload: ClassVar[ReloadPolicy] = ReloadPolicy()

    page: str = setting(
        "web.page",
        choice("full", "landing", "off"),
        "full",
        "web page at / and API below /api: full; landing (GPUs and links only, no names of users or "
        "processes, no API); or off",
    )


# The query string that turns the automatic refresh of the plain page off.
NO_REFRESH_QUERY = "refresh=off"


@dataclass(frozen=True)
class Links:
    """The links shown on the web page: the path of the metrics, and the names of all dialects."""

    metrics_path: str = "/metrics"
    dialects: tuple[str, ...] = ()

    @property
    def described(self) -> Mapping[str, str]:
        """Every path with its description, in the order shown."""
        return {
            self.metrics_path: "metrics in the dialects of this address",
            **{f"/metrics/{name}": f"metrics in the dialect {name} only" for name in self.dialects},
            HEALTHY: "liveness: 200 while the process answers",
            READY: "readiness: 200 after the first read was attempted",
            HEALTH: "health as text, always 200",
        }
