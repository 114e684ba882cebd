"""Runs `gpuledger operator`, kills it after each of its writes, and restarts it until it writes nothing more.

SIGKILL comes after the API server has executed the write and before the operator sees the response. A new
process thus starts from every state that a crash can leave behind. Each kill is reported on stderr. A
repeated write that changes nothing does not kill again.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from hashlib import sha256

from gpuledger.cli import operator as command
from gpuledger.kubernetes.object_client import ApiReply, ApiRequest, HttpApiTransport

_send = HttpApiTransport.send


class KillLog:
    """The writes that killed a process. A process reports its last write to the parent through a pipe."""

    def __init__(self) -> None:
        self.writes: set[str] = set()
        self._read_end = self._write_end = -1

    def open_pipe(self) -> None:
        self._read_end, self._write_end = os.pipe()

    def read_pipe(self) -> None:
        """Add the write that killed the last process."""
        os.close(self._write_end)
        with os.fdopen(self._read_end) as pipe:
            self.writes.update(pipe.read().splitlines())

    def kill_once(self, request: ApiRequest, response: bytes) -> None:
        """Kill this process, unless this write has killed a process before."""
        summary = f"{request.method} {request.path}"
        write = f"{summary} {_object_digest(response)}"
        if write in self.writes:
            return
        os.write(self._write_end, f"{write}\n".encode())
        os.write(2, f"killed after {summary}\n".encode())
        os.kill(os.getpid(), signal.SIGKILL)


def _object_digest(response: bytes) -> str:
    """Digest of an object without resourceVersion and managedFields: Kubernetes 1.20 changes both at each
    apply of a StatefulSet with volume claims if a second has passed.
    """
    body = json.loads(response) or {}
    for name in ("resourceVersion", "managedFields"):
        (body.get("metadata") or {}).pop(name, None)
    return sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


KILL_LOG = KillLog()


async def _send_and_kill(self: HttpApiTransport, request: ApiRequest) -> ApiReply:
    reply = await _send(self, request)
    if request.writes and "/leases" not in request.path and reply[0] < 400:
        KILL_LOG.kill_once(request, reply[1])
    return reply


def main() -> int:
    HttpApiTransport.send = _send_and_kill  # type: ignore[method-assign]
    # All processes have the same identity, so that a restarted one does not wait for its own Lease to expire.
    command.token_hex = lambda _: "same"  # type: ignore[assignment]
    child = 0

    def forward_signal(number: int, _: object) -> None:
        if child:
            os.kill(child, number)

    signal.signal(signal.SIGTERM, forward_signal)
    while True:
        KILL_LOG.open_pipe()
        # fork: modules are already imported, so that a process starts immediately.
        child = os.fork()
        if not child:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os._exit(command.run(sys.argv[2:]))
        _, status = os.waitpid(child, 0)
        KILL_LOG.read_pipe()
        if not (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL):
            return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    sys.exit(main())
