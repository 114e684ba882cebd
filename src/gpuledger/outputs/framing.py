"""Requests that h11 takes and that are refused all the same: two programs may read them in two ways.

A proxy that ends a request elsewhere than we do would give one client the answer of another.
"""

from __future__ import annotations

from typing import Final

import h11

from gpuledger.outputs.limits import Limits
from gpuledger.outputs.routes import Response, plain

_SPOKEN: Final = (b"1.0", b"1.1")


def fault_of(message: h11.Request, limits: Limits) -> Response | None:
    """What is wrong with how a request is written, as the answer to it; None when nothing is.

    Length and transfer encoding together, and a transfer encoding before HTTP/1.1, are what request smuggling
    is made of (RFC 9112, 6.1 and 11.2). Versions are those of RFC 9110, 15.6.6.
    """
    if message.http_version not in _SPOKEN:
        return plain("HTTP/1.1 is spoken here", 505)
    if message.method == b"CONNECT":
        # Whoever does not wait for the answer goes on in another protocol: no request may be read into that.
        return plain("no tunnel begins here", 405, (("Allow", "GET, HEAD"),))
    if len(message.headers) > limits.headers:
        return plain(f"more than {limits.headers} headers", 431)
    names = [name for name, _ in message.headers]
    if b"transfer-encoding" in names:
        if b"content-length" in names:
            return plain("the request has a length and a transfer encoding", 400)
        if message.http_version == b"1.0":
            return plain("HTTP/1.0 knows no transfer encoding", 400)
    return None
