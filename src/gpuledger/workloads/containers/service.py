"""Asking Docker or Podman over their socket: one GET a connection, HTTP/1.1 by h11."""

from __future__ import annotations

import json
import socket
from typing import Final

import h11

from gpuledger.http.blocking_client import get
from gpuledger.model.errors import GpuledgerError

# 5,000 containers with many labels; an answer that is longer is none.
_LONGEST: Final = 16 * 1024 * 1024
_HEADERS: Final = [("Host", "localhost"), ("Accept", "application/json"), ("Connection", "close")]
_ROOT_ONLY: Final = (
    "run gpuledger as root or in the group that owns the socket (which is as good as root), or name none "
    "with {flag} ''"
)


def list_containers(path: str, flag: str, *, timeout: float = 5.0) -> object:
    """The answer of `GET /containers/json` (what runs now) at the socket `path`, from JSON.

    `flag` is the one that names the socket. Docker serves the path without a version too, and Podman serves
    the same one. `timeout` in seconds is the longest wait for the next bytes. Raises GpuledgerError with one
    line that says what to do.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connected:
        connected.settimeout(timeout)
        try:
            connected.connect(path)
            status, _, body = get(connected, "/containers/json", _HEADERS, _LONGEST)
        except PermissionError:
            raise GpuledgerError(f"{path}: permission denied; {_ROOT_ONLY.format(flag=flag)}") from None
        except FileNotFoundError:
            raise GpuledgerError(
                f"{path} is not there; start the service behind it, or name another with {flag}"
            ) from None
        except TimeoutError:
            raise GpuledgerError(
                f"{path} said nothing for {timeout:.0f} s; see that the service behind it is well"
            ) from None
        except (OSError, h11.RemoteProtocolError) as error:
            raise GpuledgerError(
                f"{path} gave no answer ({error}); see that Docker or Podman serves its API there"
            ) from None
    if status != 200:
        raise GpuledgerError(
            f"{path} answers with status {status}; see that Docker or Podman serves its API there"
        )
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise GpuledgerError(
            f"{path} does not answer in JSON; see that Docker or Podman is behind it"
        ) from None
