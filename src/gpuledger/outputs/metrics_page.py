"""A page of metrics that is made whenever somebody asks; `pages` keeps bytes for who asks every second."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from dataclasses import replace

from gpuledger.exposition.negotiation import Format, accepts_gzip, choose_format
from gpuledger.model.family import Family
from gpuledger.outputs.routes import Handler, Request, Response

# A page of 5,600 lines, 1,228 KB: level 1 gives 302 KB in 11 ms, level 6 266 KB in 29 ms. The time is spent
# up to once a tick, on a machine that is there to work for someone else.
_LEVEL = 1
# With its header, no time stamp: the same page gives the same bytes.
_GZIP_FRAME = 31


def metrics_page(tell: Callable[[], Iterable[Family]]) -> Handler:
    """The handler of a page of what `tell` tells then, in the format and coding that the scraper likes."""

    def serve(request: Request) -> Response:
        offered = choose_format(request.headers.get("accept", ""))
        gzip = accepts_gzip(request.headers.get("accept-encoding", ""))
        body = offered.encode(tell())
        return replace(description(offered, gzip=gzip), body=packed(body) if gzip else body)

    return serve


def description(offered: Format, *, gzip: bool) -> Response:
    """The answer but for its body."""
    coding = (("Content-Encoding", "gzip"),) if gzip else ()
    return Response(content_type=offered.content_type, headers=(("Vary", "Accept, Accept-Encoding"), *coding))


def packed(body: bytes) -> bytes:
    """A page as gzip has it."""
    return zlib.compress(body, _LEVEL, _GZIP_FRAME)
