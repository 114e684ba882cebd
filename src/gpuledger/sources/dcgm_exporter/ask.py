"""Asking a dcgm-exporter for its page: one GET a connection, HTTP/1.1 by h11."""

from __future__ import annotations

import socket
from typing import Final
from urllib.parse import urlsplit

import h11

from gpuledger.model.errors import GpuledgerError
from gpuledger.sources.dcgm_exporter.page import Told, parse

# 16 GPUs cut into 7, all fields, many labels; a page that is longer is another program's.
_LONGEST: Final = 16 * 1024 * 1024
_CHUNK: Final = 64 * 1024
# Both are on every metrics page of gpuledger, and together on none of dcgm-exporter.
_OWN: Final = {b"vary": b"Accept, Accept-Encoding", b"x-content-type-options": b"nosniff"}


def ask(url: str, *, timeout: float = 5.0) -> Told:
    """What the dcgm-exporter at `url` tells now. May wait: not to be called in the tick.

    `timeout` in seconds is the longest wait for the next bytes. Raises GpuledgerError with one line that says
    what to do.
    """
    parts = urlsplit(url)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    try:
        with socket.create_connection((parts.hostname or "", parts.port or 80), timeout) as connected:
            status, headers, body = _get(connected, parts.netloc, target)
    except TimeoutError:
        raise GpuledgerError(
            f"{url} said nothing for {timeout:.0f} s; see that dcgm-exporter is well"
        ) from None
    except (OSError, h11.ProtocolError) as error:
        raise GpuledgerError(
            f"{url} gave no answer ({error}); see that dcgm-exporter runs, or leave --dcgm-exporter-url out"
        ) from None
    if headers.items() >= _OWN.items():
        # What was merged would come back, and never grow old.
        raise GpuledgerError(f"{url} is gpuledger itself; name dcgm-exporter's page by --dcgm-exporter-url")
    if status != 200:
        raise GpuledgerError(
            f"{url} answers with status {status}; name dcgm-exporter's metrics page by --dcgm-exporter-url"
        )
    told = parse(body.decode("utf-8", "replace"))
    if not told:
        raise GpuledgerError(
            f"{url} tells no DCGM_FI_PROF_* field; enable them in its collectors file, and give it SYS_ADMIN"
        )
    return told


def _get(connected: socket.socket, host: str, target: str) -> tuple[int, dict[bytes, bytes], bytes]:
    http = h11.Connection(h11.CLIENT)
    headers = [("Host", host), ("Accept", "text/plain;version=0.0.4"), ("Connection", "close")]
    request = http.send(h11.Request(method="GET", target=target, headers=headers)) or b""
    connected.sendall(request + (http.send(h11.EndOfMessage()) or b""))
    status, answered, body = 0, dict[bytes, bytes](), bytearray()
    while True:
        event = http.next_event()
        if event is h11.NEED_DATA:
            http.receive_data(connected.recv(_CHUNK))
        elif isinstance(event, h11.Response):
            status, answered = event.status_code, dict(event.headers)
        elif isinstance(event, h11.Data):
            body += event.data
            if len(body) > _LONGEST:
                raise OSError(f"more than {_LONGEST // 1024 // 1024} MiB")
        elif isinstance(event, h11.EndOfMessage):
            return status, answered, bytes(body)
        elif isinstance(event, h11.ConnectionClosed):
            raise OSError("closed")
