"""Lists containers over the Docker or Podman socket: one HTTP/1.1 GET per connection."""

from __future__ import annotations

import json
import socket
from time import monotonic
from typing import Final

from gpuledger.http.blocking_client import BlockingConnection
from gpuledger.http.client_messages import HttpRequestFailed, encode_request
from gpuledger.model.errors import GpuledgerError

# In bytes: enough for 5,000 containers with many labels. A longer response is an error.
_MAX_BODY: Final = 16 * 1024 * 1024
_REQUEST: Final = encode_request(
    "GET",
    "/containers/json",
    [("Host", "localhost"), ("Accept", "application/json"), ("Connection", "close")],
)
_API_REMEDY: Final = "check that Docker or Podman serves its API there"
_PERMISSION_REMEDY: Final = (
    "run gpuledger as root or in the group that owns the socket (which is equivalent to root), or disable it "
    "with {flag} ''"
)


def list_containers(path: str, flag: str, *, timeout: float = 5.0) -> object:
    """The decoded JSON of `GET /containers/json` (running containers) from the socket `path`.

    Docker and Podman both serve this path without an API version. `flag` is the command-line flag of the
    socket. `timeout` is of the whole response, in seconds. Raises GpuledgerError with a one-line
    remedy.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connected:
        connected.settimeout(timeout)
        try:
            connected.connect(path)
            response = BlockingConnection(connected).exchange(_REQUEST, _MAX_BODY, monotonic() + timeout)
        except PermissionError:
            raise GpuledgerError(
                f"{path}: permission denied; {_PERMISSION_REMEDY.format(flag=flag)}"
            ) from None
        except FileNotFoundError:
            remedy = f"start the service of this socket, or set another with {flag}"
            raise GpuledgerError(f"{path} does not exist; {remedy}") from None
        except TimeoutError:
            why = f"no response within {timeout:.0f} s; check the service of this socket"
            raise GpuledgerError(f"{path}: {why}") from None
        except (OSError, HttpRequestFailed) as error:
            raise GpuledgerError(f"{path}: no response ({error}); {_API_REMEDY}") from None
    if response.status != 200:
        raise GpuledgerError(f"{path}: HTTP status {response.status}; {_API_REMEDY}")
    try:
        return json.loads(response.body)
    except (ValueError, RecursionError):
        raise GpuledgerError(f"{path}: the response is not JSON; {_API_REMEDY}") from None
