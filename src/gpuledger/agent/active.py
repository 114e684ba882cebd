"""Targets as Prometheus tells them at /api/v1/targets: for programs that want to know why one is down."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from textwrap import shorten
from typing import Any, Final

from gpuledger.agent.agent import AgentView
from gpuledger.agent.scrape.loop import TargetLoop
from gpuledger.outputs.routes import Handler, Request, Response

PATH: Final = "/api/v1/targets"
_HEALTH: Final = {True: "up", False: "down", None: "unknown"}
# Answers are of any size; those of thousands of targets that are down are few and alike.
_LONGEST: Final = 300
_NEVER: Final = "0001-01-01T00:00:00Z"


def active_targets(view: Callable[[], AgentView]) -> Handler:
    """The handler of `PATH`. What relabelling drops is counted in the metrics, and not listed here."""

    def serve(_: Request) -> Response:
        data = {"activeTargets": [_active(loop) for loop in view().loops], "droppedTargets": []}
        body = json.dumps({"status": "success", "data": data}, separators=(",", ":"))
        return Response(200, body.encode(), "application/json")

    return serve


def _active(loop: TargetLoop) -> dict[str, Any]:
    state, target = loop.state, loop.target
    return {
        "labels": dict(target.labels),
        "scrapePool": target.group,
        "scrapeUrl": target.url,
        "lastError": shorten(state.error, _LONGEST, placeholder=" ..."),
        "lastScrape": _time(state.last_scrape),
        "lastScrapeDuration": state.duration or 0.0,
        "health": _HEALTH[state.up],
    }


def _time(unix: float | None) -> str:
    """As Prometheus writes it, which has a year for never."""
    return _NEVER if unix is None else datetime.fromtimestamp(unix, UTC).isoformat().replace("+00:00", "Z")
