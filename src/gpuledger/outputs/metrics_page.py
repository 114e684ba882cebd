"""A page of metrics that is made whenever somebody asks; `pages` keeps bytes for who asks every second."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from gpuledger.exposition.negotiation import Format, choose_format
from gpuledger.model.family import Family
from gpuledger.outputs.compression import gzipped, wants_gzip
from gpuledger.outputs.routes import Handler, Request, Response


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
