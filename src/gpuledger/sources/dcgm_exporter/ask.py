"""Asking a dcgm-exporter for its page: one GET a connection, HTTP/1.1 by h11."""

from __future__ import annotations

import socket
from typing import Final
from urllib.parse import urlsplit

import h11

from gpuledger.host.http import get
from gpuledger.model.errors import GpuledgerError
from gpuledger.sources.dcgm_exporter.page import Told, parse

# 16 GPUs cut into 7, all fields, many labels; a page that is longer is another program's.
_LONGEST: Final = 16 * 1024 * 1024
_HEADERS: Final = (("Accept", "text/plain;version=0.0.4"), ("Connection", "close"))
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
            status, headers, body = get(connected, target, [("Host", parts.netloc), *_HEADERS], _LONGEST)
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
