"""Answers requests on the control socket in a few threads, so that no user's request delays another's."""

from __future__ import annotations

import json
import logging
import select
import socket
import struct
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from threading import Condition, Thread
from typing import Any, Final

from gpuledger.app.readers import Peer
from gpuledger.app.stop_signals import WakePipe
from gpuledger.host.steady_thread import keep_running
from gpuledger.model.errors import GpuledgerError

log = logging.getLogger("gpuledger.control")

# Seconds that a client has to send its request, and to read each part of the answer.
_REQUEST_TIMEOUT: Final = 2.0
_ANSWER_TIMEOUT: Final = 10.0
# 0 would mean a socket that does not wait.
_SHORTEST_WAIT: Final = 0.001
_LONGEST_REQUEST: Final = 65_536
# Threads, those of them that one user can occupy, and connections that wait for one.
_MOST_THREADS: Final = 8
_MOST_PER_USER: Final = 4
_MOST_WAITING: Final = 128
_MOST_WAITING_PER_USER: Final = 64
# Linux; not in the socket module. The answer is at most 1 KiB: 256 groups.
_SO_PEERGROUPS: Final = 59

# The answer to a request: a JSON object. Raises GpuledgerError for one that is refused.
RequestHandler = Callable[[Mapping[str, Any], Peer], Mapping[str, Any]]

# `busy` comes last: see control_socket.BUSY_MARK.
_BUSY: Final = {"error": "gpuledger serve has too many requests: try again in a moment", "busy": True}


def read_peer(connection: socket.socket) -> Peer:
    """The process that connected, as the kernel recorded it then. Raises OSError."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("iII"))
    pid, uid, gid = struct.unpack("iII", raw)
    try:
        groups = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, 1024)
    except OSError:
        # An older kernel, or more groups than that: only the first one counts.
        groups = b""
    return Peer(uid, gid, pid, struct.unpack(f"{len(groups) // 4}I", groups))


class RequestThreads:
    """Accepts clients of a listening unix socket and answers one request of each.

    A request is a JSON object on one line; `do` names its handler. Handlers run in at most 8 threads, those
    of one user in at most 4. A client that is slow, or that sends nothing, occupies one of them for seconds.
    """

    def __init__(self, listening: socket.socket, handlers: Mapping[str, RequestHandler]) -> None:
        self._listening = listening
        self._handlers = handlers
        self._pipe = WakePipe()
        self._changed = Condition()
        self._waiting: deque[tuple[socket.socket, Peer]] = deque()
        self._running: Counter[int] = Counter()
        self._threads = self._idle = 0
        self._stopping = False
        # Daemon threads: a request that hangs must not keep the process from exiting.
        steps = (self._accept_all, lambda: self._stopping)
        self._acceptor = Thread(target=keep_running, args=steps, name="control socket", daemon=True)

    def start(self) -> None:
        """Start accepting clients."""
        self._acceptor.start()

    def stop(self, timeout: float) -> None:
        """Stop accepting clients; requests that run are abandoned after `timeout` seconds."""
        self._stopping = True
        self._pipe.wake()
        if self._acceptor.is_alive():
            self._acceptor.join(timeout)
        with self._changed:
            while self._waiting:
                self._waiting.popleft()[0].close()
            self._changed.notify_all()

    def _accept_all(self) -> None:
        sources: list[Any] = [self._pipe, self._listening]
        while not self._stopping:
            ready, _, _ = select.select(sources, [], [])
            if self._listening in ready and not self._stopping:
                try:
                    self._accept()
                except OSError as error:
                    log.debug("cannot accept a client of the control socket: %s", error)
                except Exception:
                    log.exception("cannot accept a client of the control socket")

    def _accept(self) -> None:
        client, _ = self._listening.accept()
        try:
            peer = read_peer(client)
            with self._changed:
                theirs = sum(one.uid == peer.uid for _, one in self._waiting)
                if len(self._waiting) < _MOST_WAITING and theirs < _MOST_WAITING_PER_USER:
                    self._waiting.append((client, peer))
                    self._start_thread()
                    self._changed.notify()
                    return
        except BaseException:
            client.close()
            raise
        with client, suppress(OSError):
            client.setblocking(False)
            _send(client, _BUSY)

    def _start_thread(self) -> None:
        """Start one more thread if none is idle. Without memory for it, the running ones do the work."""
        if not self._idle and self._threads < _MOST_THREADS:
            try:
                Thread(target=self._work, name="control request", daemon=True).start()
                self._threads += 1
            except RuntimeError:
                if not self._threads:
                    raise

    def _work(self) -> None:
        while True:
            with self._changed:
                self._idle += 1
                while (found := self._next()) is None and not self._stopping:
                    self._changed.wait()
                self._idle -= 1
                if found is None:
                    return
                client, peer = found
                self._running[peer.uid] += 1
            try:
                with client, suppress(OSError):
                    self._serve(client, peer)
            except Exception:
                log.exception("cannot answer a request on the control socket")
            with self._changed:
                self._running[peer.uid] -= 1
                self._running += Counter()
                # Another connection of this user may have waited for this thread.
                self._changed.notify_all()

    def _next(self) -> tuple[socket.socket, Peer] | None:
        """The first connection of a user who has not too many requests running."""
        for place, (client, peer) in enumerate(self._waiting):
            if self._running[peer.uid] < _MOST_PER_USER:
                del self._waiting[place]
                return client, peer
        return None

    def _serve(self, client: socket.socket, peer: Peer) -> None:
        request = _read_line(client, _REQUEST_TIMEOUT)
        answer = self._answer(request, peer)
        client.settimeout(_ANSWER_TIMEOUT)
        _send(client, answer)

    def _answer(self, line: bytes, peer: Peer) -> Mapping[str, Any]:
        malformed = {"error": "malformed request: the running gpuledger may be another version"}
        try:
            request = json.loads(line)
            do = request["do"]
        except (ValueError, KeyError, TypeError, RecursionError):
            return malformed
        handler = self._handlers.get(do) if isinstance(do, str) else None
        if handler is None:
            name = str(do)[:80]
            return {"error": f"unknown request '{name}': the running gpuledger may be another version"}
        try:
            return handler(request, peer)
        except GpuledgerError as error:
            return {"error": str(error)}
        except (ValueError, KeyError, TypeError):
            return malformed
        except Exception:
            log.exception("the request '%s' on the control socket failed", do)
            return {"error": "internal error; the log of gpuledger has the reason"}


def _send(client: socket.socket, answer: Mapping[str, Any]) -> None:
    client.sendall(json.dumps(dict(answer)).encode() + b"\n")


def _read_line(client: socket.socket, timeout: float) -> bytes:
    """Receive one line within `timeout` seconds; empty when it is too long or incomplete. Raises OSError."""
    received, until = b"", time.monotonic() + timeout
    while b"\n" not in received and len(received) < _LONGEST_REQUEST:
        # The timeout of a socket is for each part: a client that sends a byte a second would never end.
        client.settimeout(max(until - time.monotonic(), _SHORTEST_WAIT))
        more = client.recv(_LONGEST_REQUEST)
        if not more:
            break
        received += more
    return received if b"\n" in received else b""
