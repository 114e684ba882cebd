"""Whether the process lives, whether it began, and whether its data are fresh: three different questions.

All three are answered from memory, so a hanging driver cannot make a probe time out. `/-/healthy` stays 200
while the process answers, and `/health` too: a probe that restarts the pod because a driver hangs cures
nothing and takes away the very series that say so. Freshness is told in words here and in series on the
metric pages.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gpuledger.model.page import Page, ReloadHealth
from gpuledger.outputs.routes import Handler, Request, Response, plain

HEALTHY = "/-/healthy"
READY = "/-/ready"
HEALTH = "/health"

# Asked by whoever decides whether the program lives: no password and no limit is in their way.
PROBES: Final = frozenset({HEALTHY, READY, HEALTH})


def probes(unready: Callable[[], str]) -> dict[str, Handler]:
    """Well for as long as it answers; ready once `unready` has nothing to say of what was not tried yet."""

    def healthy(_: Request) -> Response:
        return plain("OK")

    def ready(_: Request) -> Response:
        missing = unready()
        return plain(f"NOT READY: {missing}", 503, (("Retry-After", "1"),)) if missing else plain("OK")

    return {HEALTHY: healthy, READY: ready}


def health_routes(current: Callable[[], Page]) -> dict[str, Handler]:
    """The three paths, answered from the Page that `current` gives."""

    def unready() -> str:
        health = current().health
        return "" if health.tried else health.status

    def health(_: Request) -> Response:
        return plain(describe(current()))

    return {**probes(unready), HEALTH: health}


def describe(page: Page) -> str:
    """The verdict; how many ticks were made, and how often; the maps of owners that fail; and settings that
    could not be taken.
    """
    health = page.health
    every = f"one every {health.interval:g} s"
    if health.interval != health.asked_interval:
        every += f" ({health.asked_interval:g} s asked)"
    ticks = "1 tick" if health.ticks == 1 else f"{health.ticks} ticks"
    failing = [f"\n{one.name}: {one.error}" for one in health.maps if not one.success]
    return f"{verdict(page)}\n{ticks}, {every}" + "".join(failing) + _settings(health.reload)


def _settings(reload: ReloadHealth | None) -> str:
    if reload is None:
        return ""
    lines = f"\nsettings: {reload.error}; the last good ones are in force" if reload.error else ""
    if reload.pending:
        lines += f"\nsettings that wait for a restart: {', '.join(reload.pending)}"
    return lines


def verdict(page: Page) -> str:
    """`OK`, or with the reason `DEGRADED` (part of the data is missing), `STALE` (all is), `PAUSED` (all is,
    because somebody asked for it), `NOT READY`.
    """
    health = page.health
    if health.paused:
        return f"PAUSED{health.status.removeprefix('paused')}"
    if not health.tried:
        return f"NOT READY: {health.status}"
    if page.snapshot is None:
        return f"STALE: {health.status}"
    return "OK" if health.healthy else f"DEGRADED: {health.status}"
