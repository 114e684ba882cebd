"""Whether the process lives, whether it began, and whether its data are fresh: three different questions.

All three are answered from memory, so a hanging driver cannot make a probe time out. `/-/healthy` stays 200
while the process answers, and `/health` too: a probe that restarts the pod because a driver hangs cures
nothing and takes away the very series that say so. Freshness is told in words here and in series on the
metric pages.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from dataclasses import replace

from gpuledger.exposition.negotiation import Format, accepts_gzip, choose_format
from gpuledger.http.routes import HEALTH, HEALTHY, READY, Handler, Request, Response, plain
from gpuledger.model.family import Family
from gpuledger.model.node_state import NodeState, ReloadHealth


def probes(unready: Callable[[], str]) -> dict[str, Handler]:
    """Well for as long as it answers; ready once `unready` has nothing to say of what was not tried yet."""

    def healthy(_: Request) -> Response:
        return plain("OK")

    def ready(_: Request) -> Response:
        missing = unready()
        return plain(f"NOT READY: {missing}", 503, (("Retry-After", "1"),)) if missing else plain("OK")

    return {HEALTHY: healthy, READY: ready}


def health_routes(current: Callable[[], NodeState]) -> dict[str, Handler]:
    """The three paths, answered from the Page that `current` gives."""

    def unready() -> str:
        health = current().health
        return "" if health.tried else health.status

    def health(_: Request) -> Response:
        return plain(describe(current()))

    return {**probes(unready), HEALTH: health}


def describe(page: NodeState) -> str:
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


def verdict(page: NodeState) -> str:
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


# A page of 5,600 lines, 1,228 KB: level 1 gives 302 KB in 11 ms, level 6 266 KB in 29 ms. The time is spent
# up to once a tick, on a machine that is there to work for someone else.
_LEVEL = 1
# A gzip header without a time stamp: the same body gives the same bytes.
_GZIP_FRAME = 31


def wants_gzip(request: Request) -> bool:
    """Whether the client takes gzip."""
    return accepts_gzip(request.headers.get("accept-encoding", ""))


def gzipped(body: bytes, level: int = _LEVEL) -> bytes:
    """The body in gzip; the same one gives the same bytes."""
    return zlib.compress(body, level, _GZIP_FRAME)


def metrics_page(tell: Callable[[], Iterable[Family]]) -> Handler:
    """The handler of a page of what `tell` tells then, in the format and coding that the scraper likes."""

    def serve(request: Request) -> Response:
        offered = choose_format(request.headers.get("accept", ""))
        gzip = wants_gzip(request)
        body = offered.encode(tell())
        return replace(description(offered, gzip=gzip), body=gzipped(body) if gzip else body)

    return serve


def description(offered: Format, *, gzip: bool) -> Response:
    """The answer but for its body."""
    coding = (("Content-Encoding", "gzip"),) if gzip else ()
    return Response(content_type=offered.content_type, headers=(("Vary", "Accept, Accept-Encoding"), *coding))
