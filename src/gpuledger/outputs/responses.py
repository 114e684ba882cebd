"""HTTP responses: probes (`/-/healthy`, `/-/ready`), the text of `/health`, and metrics pages.

All are served from memory, so a hanging driver cannot make a probe time out. `/-/healthy` and `/health`
return 200 as long as the process responds: restarting the pod because of a hanging driver would not help, and
would remove the series that show the problem. `/health` has the freshness of the data as text, metrics pages
have it as series.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from dataclasses import replace

from gpuledger.exposition.negotiation import Format, accepts_gzip, choose_format
from gpuledger.http.routes import HEALTH, HEALTHY, READY, Handler, Request, Response, text_response
from gpuledger.model.family import Family
from gpuledger.model.node_state import NodeState, ReloadHealth


def probe_routes(unready: Callable[[], str]) -> dict[str, Handler]:
    """Returns the routes of the probes: always healthy, and ready once `unready` returns an empty text."""

    def healthy(_: Request) -> Response:
        return text_response("OK")

    def ready(_: Request) -> Response:
        missing = unready()
        return (
            text_response(f"NOT READY: {missing}", 503, (("Retry-After", "1"),))
            if missing
            else text_response("OK")
        )

    return {HEALTHY: healthy, READY: ready}


def health_routes(current: Callable[[], NodeState]) -> dict[str, Handler]:
    """Returns the routes of the probes and of `/health` for the state that `current` returns."""

    def unready() -> str:
        health = current().health
        return "" if health.attempted else health.status

    def health(request: Request) -> Response:
        state = current()
        more = _describe_devices(state) if request.query == "verbose" else ""
        return text_response(describe_health(state) + more)

    return {**probe_routes(unready), HEALTH: health}


def describe_health(state: NodeState) -> str:
    """Returns the text of `/health`: verdict, ticks, failing owner indexes, settings, problems of GPUs."""
    health = state.health
    interval = f"one every {health.interval:g} s"
    if health.interval != health.configured_interval:
        interval += f" (configured: {health.configured_interval:g} s)"
    ticks = "1 tick" if health.ticks == 1 else f"{health.ticks} ticks"
    failing = [f"\n{index.name}: {index.error}" for index in health.owner_indexes if not index.success]
    return (
        f"{health_verdict(state)}\n{ticks}, {interval}"
        + "".join(failing)
        + _settings(health.reload)
        + _gpu_problems(state)
    )


def _describe_devices(state: NodeState) -> str:
    """The last line of `/health?verbose`, which the operator reads: number of GPUs, version of the driver."""
    if state.snapshot is None:
        return ""
    number = len({reading.device.gpu.uuid for reading in state.snapshot.readings})
    driver = f", driver {state.source.driver_version}" if state.source.driver_version else ""
    return f"\n{number} GPU{'s' * (number != 1)}{driver}"


def _gpu_problems(state: NodeState) -> str:
    """One line per problem of each GPU, and the number of rejected values."""
    # Imported lazily: probes do not judge the GPUs.
    from gpuledger.model.gpu_problems import find_problems

    ledger = state.ledger
    lines = ""
    for reading in state.snapshot.readings if state.snapshot is not None else ():
        gpu = reading.device.gpu
        rows = ledger.throttling.get(gpu.uuid, ())
        for problem in find_problems(reading, rows, ledger.xid_log, state.unix):
            lines += f"\nGPU {gpu.index} ({gpu.uuid}) {problem}; {problem.remedy}"
    if ledger.invalid:
        lines += f"\nrejected values since the start: {ledger.invalid} (the log has the first of each kind)"
    return lines


def _settings(reload: ReloadHealth | None) -> str:
    if reload is None:
        return ""
    lines = f"\nsettings: {reload.error}; the previous settings are in force" if reload.error else ""
    if reload.pending:
        lines += f"\nsettings that need a restart: {', '.join(reload.pending)}"
    return lines


def health_verdict(state: NodeState) -> str:
    """Returns `OK`, or one of the following with a reason.

    `DEGRADED`: some data is missing. `STALE`: all data is missing. `PAUSED`: all data is missing on request.
    `NOT READY`: no tick was attempted yet.
    """
    health = state.health
    if health.paused:
        return f"PAUSED{health.status.removeprefix('paused')}"
    if not health.attempted:
        return f"NOT READY: {health.status}"
    if state.snapshot is None:
        return f"STALE: {health.status}"
    return "OK" if health.healthy else f"DEGRADED: {health.status}"


# For a page of 5,600 lines, 1,228 KB, level 1 yields 302 KB in 11 ms and level 6 266 KB in 29 ms. Pages are
# compressed up to once per tick, on a machine that needs its CPUs for other work.
_LEVEL = 1
# gzip format (zlib window bits 31): the header has no timestamp, so equal bodies compress to equal bytes.
_GZIP_FRAME = 31


def wants_gzip(request: Request) -> bool:
    """Returns whether the client accepts gzip."""
    return accepts_gzip(request.headers.get("accept-encoding", ""))


def compress_gzip(body: bytes, level: int = _LEVEL) -> bytes:
    """Compresses a body with gzip; equal bodies result in equal bytes."""
    return zlib.compress(body, level, _GZIP_FRAME)


# Bytes. Below this size gzip costs more than it saves.
_GZIP_FROM = 1024


def content_response(
    request: Request,
    body: bytes,
    content_type: str,
    headers: tuple[tuple[str, str], ...] = (),
    tag: str = "",
    level: int = _LEVEL,
) -> Response:
    """Returns a response with this body, compressed if the client accepts it and the body is large enough.

    With a `tag` it has this ETag, and is a 304 for a client that has the body.
    """
    headers = (*headers, ("Vary", "Accept-Encoding"))
    if tag:
        headers = (*headers, ("ETag", tag))
        if request.has_etag(tag):
            return Response(304, b"", content_type, headers)
    if wants_gzip(request) and len(body) >= _GZIP_FROM:
        body, headers = compress_gzip(body, level), (*headers, ("Content-Encoding", "gzip"))
    return Response(200, body, content_type, headers)


def metrics_page_handler(families: Callable[[], Iterable[Family]]) -> Handler:
    """Returns the handler of a page of `families`, in the format and coding that the scraper prefers."""

    def serve(request: Request) -> Response:
        offered = choose_format(request.headers.get("accept", ""))
        gzip = wants_gzip(request)
        body = offered.encode(families())
        return replace(page_response(offered, gzip=gzip), body=compress_gzip(body) if gzip else body)

    return serve


def page_response(offered: Format, *, gzip: bool) -> Response:
    """Returns the response without its body."""
    coding = (("Content-Encoding", "gzip"),) if gzip else ()
    return Response(content_type=offered.content_type, headers=(("Vary", "Accept, Accept-Encoding"), *coding))
