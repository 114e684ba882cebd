"""The control thread of a running node: pauses and resumes it on request, and reloads settings."""

from __future__ import annotations

import logging
import select
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from threading import Thread
from typing import Any, Final, Protocol

from gpuledger.app.control_socket import ControlSocket
from gpuledger.app.readers import Peer
from gpuledger.app.stop_signals import WakePipe
from gpuledger.app.user_requests import RequestHandler, RequestThreads
from gpuledger.host.steady_thread import keep_running
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.text import clean_name
from gpuledger.node.health import LONGEST_PAUSE
from gpuledger.node.loop import Node

log = logging.getLogger("gpuledger.control")

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
    """One thread that pauses and resumes the node, and checks for changed settings; and the control socket.

    Requests are read and answered in other threads; those that change the node run in this one, one after the
    other. `may_control` says whether a peer may pause the node. Without a `control_socket` no requests are
    accepted.
    """

    def __init__(
        self,
        node: Node,
        control_socket: ControlSocket | None = None,
        may_control: Callable[[Peer], bool] = lambda _: True,
    ) -> None:
        self._node = node
        self._control_socket = control_socket
        self._may_control = may_control
        self._watcher: SettingsWatcher | None = None
        self._stopping = self._reload_requested = False
        self._pipe = WakePipe()
        self._jobs: deque[tuple[Callable[[], str], Future[str]]] = deque()
        self._handlers: dict[str, RequestHandler] = {"pause": self._pause, "resume": self._resume}
        self._requests: RequestThreads | None = None
        # A daemon thread: a driver call that hangs during a pause must not keep the process from exiting.
        steps = (self._run, lambda: self._stopping)
        self._thread = Thread(target=keep_running, args=steps, name="control", daemon=True)

    def set_watcher(self, watcher: SettingsWatcher) -> None:
        """Set the watcher of settings. Call before `start`."""
        self._watcher = watcher

    def add_requests(self, handlers: Mapping[str, RequestHandler]) -> None:
        """Answer these requests of the control socket, too. Handlers run in several threads at once."""
        self._handlers |= handlers

    def start(self) -> None:
        """Start the thread if there is a control socket or a watcher."""
        if self._control_socket is not None or self._watcher is not None:
            self._thread.start()
        if self._control_socket is not None:
            self._requests = RequestThreads(self._control_socket.socket, self._handlers)
            self._requests.start()

    def stop(self, timeout: float = 2.0) -> None:
        """Stop the threads and close the control socket; abandon one that hangs for `timeout` seconds."""
        self._stopping = True
        self._pipe.wake()
        if self._requests is not None:
            self._requests.stop(timeout)
        if self._thread.is_alive():
            self._thread.join(timeout)
        if self._control_socket is not None:
            self._control_socket.close()

    def request_reload(self) -> None:
        """Request a reload of the settings. Callable from any thread and from a signal handler."""
        self._reload_requested = True
        self._pipe.wake()

    def _run(self) -> None:
        while not self._stopping:
            period = None if self._watcher is None else self._watcher.period
            ready, _, _ = select.select([self._pipe], [], [], period)
            try:
                self._handle_ready(ready)
            except Exception:
                log.exception("cannot handle a control request")

    def _handle_ready(self, ready: list[Any]) -> None:
        if ready:
            self._pipe.drain()
        if self._stopping:
            return
        requested, self._reload_requested = self._reload_requested, False
        if requested and self._watcher is not None:
            self._watcher.reload()
        while self._jobs:
            run, result = self._jobs.popleft()
            try:
                result.set_result(run())
            except BaseException as error:  # noqa: BLE001  (the request's thread raises it)
                result.set_exception(error)
        if not ready and self._watcher is not None:
            self._watcher.reload_if_changed()

    def _run_here(self, job: Callable[[], str], peer: Peer) -> Mapping[str, Any]:
        """The text that a job returns, which runs in the control thread."""
        if not self._may_control(peer):
            raise GpuledgerError(
                "only root and the user of gpuledger serve may pause it and resume it: use sudo"
            )
        result: Future[str] = Future()
        self._jobs.append((job, result))
        self._pipe.wake()
        return {"ok": result.result()}

    def _pause(self, request: Mapping[str, Any], peer: Peer) -> Mapping[str, Any]:
        seconds, reason = float(request["for"]), str(request.get("reason", ""))
        if not 0 < seconds <= LONGEST_PAUSE:
            raise GpuledgerError(f"a pause can last {LONGEST_PAUSE:g} s at most")
        shown = clean_name(" ".join(reason.split()), _LONGEST_REASON)
        return self._run_here(lambda: str(self._node.pause(seconds, shown)), peer)

    def _resume(self, _: Mapping[str, Any], peer: Peer) -> Mapping[str, Any]:
        return self._run_here(self._resume_node, peer)

    def _resume_node(self) -> str:
        page = self._node.resume()
        if page is None:
            return "not paused"
        if page.snapshot is None:
            raise GpuledgerError(f"resumed, but the source cannot be read: {page.health.status}")
        return "resumed" if page.health.healthy else f"resumed; {page.health.status}"
