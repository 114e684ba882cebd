"""The control thread of a running node: handles pause and resume requests, and reloads settings."""

from __future__ import annotations

import json
import logging
import select
import socket
from contextlib import suppress
from threading import Thread
from typing import Any, Final, Protocol

from gpuledger.app.control_socket import ControlSocket
from gpuledger.app.stop_signals import WakePipe
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.text import clean_name
from gpuledger.node.health import LONGEST_PAUSE
from gpuledger.node.loop import Node

log = logging.getLogger("gpuledger.control")

# Seconds that a client has for its request: a silent client must not block the others.
_REQUEST_TIMEOUT: Final = 2.0
_LONGEST_REQUEST: Final = 4096
_LONGEST_REASON: Final = 200


class SettingsWatcher(Protocol):
    """Reloads settings when they change. Its methods may block."""

    @property
    def period(self) -> float | None:
        """Seconds between two checks for changes; None disables the checks."""

    def reload_if_changed(self) -> None:
        """Apply the settings if they have changed."""

    def reload(self) -> None:
        """Read the settings again, changed or not."""


class ControlThread:
    """One thread that serves the control socket, one client at a time, and checks for changed settings.

    Without a `control_socket` no requests are accepted.
    """

    def __init__(self, node: Node, control_socket: ControlSocket | None = None) -> None:
        self._node = node
        self._control_socket = control_socket
        self._watcher: SettingsWatcher | None = None
        self._stopping = self._reload_requested = False
        self._pipe = WakePipe()
        # A daemon thread: a driver call that hangs during a pause must not keep the process from exiting.
        self._thread = Thread(target=self._run, name="control", daemon=True)

    def set_watcher(self, watcher: SettingsWatcher) -> None:
        """Set the watcher of settings. Call before `start`."""
        self._watcher = watcher

    def start(self) -> None:
        """Start the thread if there is a control socket or a watcher."""
        if self._control_socket is not None or self._watcher is not None:
            self._thread.start()

    def stop(self, timeout: float = 2.0) -> None:
        """Stop the thread and close the control socket; abandon a thread that hangs for `timeout` seconds."""
        self._stopping = True
        self._pipe.wake()
        if self._thread.is_alive():
            self._thread.join(timeout)
        if self._control_socket is not None:
            self._control_socket.close()

    def request_reload(self) -> None:
        """Request a reload of the settings. Callable from any thread and from a signal handler."""
        self._reload_requested = True
        self._pipe.wake()

    def _run(self) -> None:
        sources: list[Any] = [self._pipe]
        if self._control_socket is not None:
            sources.append(self._control_socket.socket)
        while not self._stopping:
            period = None if self._watcher is None else self._watcher.period
            ready, _, _ = select.select(sources, [], [], period)
            try:
                self._handle_ready(ready)
            except Exception:
                log.exception("cannot handle a control request")

    def _handle_ready(self, ready: list[Any]) -> None:
        if self._pipe in ready:
            self._pipe.drain()
        if self._stopping:
            return
        requested, self._reload_requested = self._reload_requested, False
        if requested and self._watcher is not None:
            self._watcher.reload()
        if self._control_socket is not None and self._control_socket.socket in ready:
            self._serve_client(self._control_socket.socket)
        if not ready and self._watcher is not None:
            self._watcher.reload_if_changed()

    def _serve_client(self, listening: socket.socket) -> None:
        client, _ = listening.accept()
        with client, suppress(OSError):
            client.settimeout(_REQUEST_TIMEOUT)
            answer = self._answer(_read_line(client))
            client.sendall(json.dumps(answer).encode() + b"\n")

    def _answer(self, request: bytes) -> dict[str, str]:
        try:
            command = json.loads(request)
            if command["do"] == "pause":
                return {"ok": self._pause(float(command["for"]), str(command.get("reason", "")))}
            if command["do"] == "resume":
                return {"ok": self._resume()}
            return {
                "error": f"unknown request '{command['do']}': the running gpuledger may be another version"
            }
        except GpuledgerError as error:
            return {"error": str(error)}
        except (ValueError, KeyError, TypeError):
            return {"error": "malformed request: the running gpuledger may be another version"}

    def _pause(self, seconds: float, reason: str) -> str:
        if not 0 < seconds <= LONGEST_PAUSE:
            raise GpuledgerError(f"a pause can last {LONGEST_PAUSE:g} s at most")
        return str(self._node.pause(seconds, clean_name(" ".join(reason.split()), _LONGEST_REASON)))

    def _resume(self) -> str:
        page = self._node.resume()
        if page is None:
            return "not paused"
        if page.snapshot is None:
            raise GpuledgerError(f"resumed, but the source cannot be read: {page.health.status}")
        return "resumed" if page.health.healthy else f"resumed; {page.health.status}"


def _read_line(client: socket.socket) -> bytes:
    """Receive one line; empty when it is too long or incomplete."""
    received = b""
    while b"\n" not in received and len(received) < _LONGEST_REQUEST:
        more = client.recv(_LONGEST_REQUEST)
        if not more:
            break
        received += more
    return received if b"\n" in received else b""
