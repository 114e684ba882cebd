"""Answers in gzip."""

from __future__ import annotations

import zlib

from gpuledger.exposition.negotiation import accepts_gzip
from gpuledger.outputs.routes import Request

# A gzip header without a time stamp: the same body gives the same bytes.
_GZIP_FRAME = 31


def wants_gzip(request: Request) -> bool:
    """Whether the client takes gzip."""
    return accepts_gzip(request.headers.get("accept-encoding", ""))


def gzipped(body: bytes, level: int = 1) -> bytes:
    """The body in gzip; the same one gives the same bytes."""
    return zlib.compress(body, level, _GZIP_FRAME)
